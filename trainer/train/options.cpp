// See options.h.
#include "trainer/train/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "trainer/data/dataset.h"
#include "trainer/model/mlp.h"

namespace sluice::train {
namespace {

void flags_add(CLI::App& app, TrainOptions& o) {
  app.add_option("--nproc", o.rank_count, "ranks = processes; 0 = one per visible GPU")
      ->check(CLI::Range(0, kRanksMax));
  app.add_option("--batch", o.batch, "samples per rank and step")->check(CLI::Range(1, kBatchMax));
  app.add_option("--hidden", o.hidden, "units of the hidden layers, e.g. 128 or 256,64")
      ->delimiter(',');
  app.add_option("--lr", o.rate, "learning rate")->check(CLI::NonNegativeNumber);
  app.add_option("--momentum", o.momentum, "momentum")->check(CLI::Range(0.0, 0.9999));
  auto* length = app.add_option_group("length", "how long (default: one epoch)");
  length->add_option("--steps", o.steps, "this many steps")->check(CLI::PositiveNumber);
  length->add_option("--seconds", o.seconds, "until this much time has passed")
      ->check(CLI::Range(0.001, 1e6));
  length->add_option("--epochs", o.epochs, "this many passes over the data")
      ->check(CLI::PositiveNumber);
  length->require_option(0, 1);
  app.add_option("--seed", o.seed, "of weights, order and synthetic data");
  app.add_option("--eval-samples", o.eval_samples, "test samples of an evaluation; 0 = none");
  app.add_option("--eval-every", o.eval_every, "steps between evaluations; 0 = only at the end");
  app.add_option("--data", o.data, "fashion-mnist or synthetic")
      ->check(CLI::IsMember({"fashion-mnist", "synthetic"}));
  app.add_option("--data-dir", o.data_directory, "directory of the four Fashion-MNIST files");
  app.add_option("--train-samples", o.train_samples, "use only the first N; 0 = all");
  app.add_option("--bucket-kib", o.bucket_kib, "largest gradient bucket of an all-reduce")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--link-alpha-us", o.link.alpha_us,
                 "modelled latency of a message (software GPUs)")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--link-gbps", o.link.gigabits_per_s,
                 "modelled bandwidth in gigabits/s (software GPUs); 0 = infinite")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--comm-timeout", o.timeout_s, "seconds to wait for a silent rank")
      ->check(CLI::Range(0.1, 1e5));
  app.add_option("--log", o.log, "JSON lines: start, step, eval, end");
  app.add_option("--save", o.save, "write the trained weights here");
  app.add_flag("--quiet", o.quiet, "print nothing but errors");
}

}  // namespace

std::string place_format(const RankPlace& place) {
  return text_format("%d:%d:%d:%d:", place.rank, place.rank_count, place.gpu_count,
                     place.board_fd) +
         place.directory;
}

bool place_parse(const std::string& text, RankPlace* out) {
  int used = 0;
  const int got = std::sscanf(text.c_str(), "%d:%d:%d:%d:%n", &out->rank, &out->rank_count,
                              &out->gpu_count, &out->board_fd, &used);
  if (got != 4 || used == 0) return false;
  out->directory = text.substr(static_cast<std::size_t>(used));
  return out->rank >= 0 && out->rank < out->rank_count && out->rank_count <= kRanksMax &&
         out->gpu_count > 0 && out->board_fd >= 0 && !out->directory.empty();
}

bool train_options_parse(int argc, char** argv, TrainOptions* out, int* exit_code) {
  TrainOptions& o = *out;
  o.data_directory = kFashionDirectory;
  CLI::App app("Trains a multilayer perceptron, data-parallel over the visible GPUs.",
               "sluice-train");
  flags_add(app, o);
  std::string algorithm = algorithm_name(o.algorithm);
  app.add_option("--algorithm", algorithm, "of the all-reduce: ring, halving-doubling or bcube")
      ->check(CLI::IsMember({"ring", "halving-doubling", "bcube"}));
  std::string engine = "auto";
  app.add_option("--comm", engine, "auto, gloo or nccl")
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}));
  std::string place;
  app.add_option("--as-rank", place)->group("");
  try {
    app.parse(argc, argv);
    o.algorithm = *algorithm_parse(algorithm);
    o.engine = *engine_parse(engine);
    if (!place.empty() && !place_parse(place, &o.place)) {
      throw CLI::ValidationError("--as-rank", "is for the launcher alone");
    }
    mlp_shape(o.hidden);
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", app.help().c_str());
    *exit_code = 0;
    return false;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "sluice: sluice-train: %s; see sluice-train --help\n", error.what());
    *exit_code = 2;
    return false;
  } catch (const Failure& failure) {
    std::fprintf(stderr, "sluice: sluice-train: %s; see sluice-train --help\n", failure.what());
    *exit_code = 2;
    return false;
  }
  if (o.steps == 0 && o.seconds == 0 && o.epochs == 0) o.epochs = 1;
  return true;
}

}  // namespace sluice::train
