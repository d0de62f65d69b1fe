// See options.h.
#include "trainer/train/options.h"

#include <cstdio>
#include <filesystem>

#include "trainer/data/dataset.h"
#include "trainer/job/command_line.h"
#include "trainer/model/mlp.h"

namespace sluice::train {
namespace {

void flags_add(CommandLine& line, TrainOptions& o) {
  line.number("--nproc", o.rank_count, "ranks = processes; 0 = one per visible GPU", 0, kRanksMax);
  line.number("--batch", o.batch, "samples per rank and step", 1, kBatchMax);
  line.numbers("--hidden", o.hidden, "units of the hidden layers, e.g. 128 or 256,64");
  line.number("--lr", o.rate, "learning rate", 0.0, 1e300);
  line.number(
      "--lr-batch", o.rate_batch,
      "global batch that --lr is meant for, scaled linearly to the actual one; 0 = as it is", 0,
      1ULL << 40);
  line.number(
      "--lr-low", o.rate_low,
      "lowest rate of the schedule; -1 = 0 (cosine), rate/25 (1cycle), rate/10 (triangular)", -1.0,
      1e300);
  line.number("--lr-warmup", o.rate_warmup, "steps of a linear start", 0, 1ULL << 40);
  line.number("--lr-period", o.rate_period, "steps of a triangle; 0 = two epochs", 0, 1ULL << 40);
  line.number("--momentum", o.optimizer.momentum, "of sgd and rmsprop", 0.0, 0.9999);
  line.number("--weight-decay", o.optimizer.weight_decay, "of adamw", 0.0, 1e3);
  line.number("--clip", o.optimizer.clip, "largest norm of the gradient; 0 = any", 0.0, 1e300);
  line.number("--steps", o.steps, "this many steps (default: one epoch)", 1, 1ULL << 40);
  line.number("--seconds", o.seconds, "until this much time has passed", 0.001, 1e6);
  line.number("--epochs", o.epochs, "this many passes over the data", 1, 1000000);
  line.exclusive({"--steps", "--seconds", "--epochs"});
  line.number("--seed", o.seed, "of weights, order and synthetic data");
  line.number("--eval-samples", o.eval_samples, "test samples of an evaluation; 0 = none");
  line.number("--eval-every", o.eval_every, "steps between evaluations; 0 = only at the end");
  line.text("--data", o.data,
            "what to train on: fashion-mnist, synthetic, or a directory that `sluice-train pack` "
            "wrote (see its --help)");
  line.text("--data-dir", o.data_directory, "directory of the four Fashion-MNIST files");
  line.number("--train-samples", o.train_samples, "use only the first N; 0 = all");
  line.number("--prefetch", o.prefetch,
              "batches made ready ahead; 0 = none, in the training thread", 0, kPrefetchMax);
  line.number("--load-delay-us", o.load_delay_us,
              "experiment: a store that takes this much longer for every batch", 0, 60'000'000);
  line.number("--bucket-kib", o.bucket_kib, "largest gradient bucket of an all-reduce", 1, 1 << 20);
  line.number("--link-alpha-us", o.link.alpha_us, "modelled latency of a message (software GPUs)",
              0.0, 1e6);
  line.number("--link-gbps", o.link.gigabits_per_s,
              "modelled bandwidth in gigabits/s (software GPUs); 0 = infinite", 0.0, 1e6);
  line.number("--comm-timeout", o.timeout_s, "seconds to wait for a silent rank", 0.1, 1e5);
  line.text("--log", o.log, "JSON lines: start, step, eval, end");
  line.text("--save", o.save, "write the trained weights here");
  line.flag("--quiet", o.quiet, "print nothing but errors");
}

/// What the options for the data must be among themselves.
void data_check(const TrainOptions& o) {
  const bool named = o.data == "fashion-mnist" || o.data == "synthetic";
  if (!named && !std::filesystem::is_directory(o.data)) {
    throw Failure("--data " + o.data +
                  " is not fashion-mnist, not synthetic, and no directory of shards either");
  }
  if (o.sharing != Sharing::kPresharded) return;
  if (named) {
    throw Failure(
        "--sharing presharded needs --data DIRECTORY of shards; sluice-train pack writes "
        "one");
  }
  if (o.train_samples > 0) {
    throw Failure("--train-samples is not for --sharing presharded; give it to sluice-train pack");
  }
}

/// What the options for the learning rate must be among themselves.
void rate_check(const TrainOptions& o) {
  const bool open_end = o.schedule == Schedule::kCosine || o.schedule == Schedule::kOneCycle;
  if (open_end && o.seconds > 0) {
    throw Failure(
        text_format("--schedule %s must know how many steps there will be: give --steps "
                    "or --epochs instead of --seconds",
                    schedule_name(o.schedule)));
  }
  if (o.schedule == Schedule::kOneCycle && o.rate_warmup > 0) {
    throw Failure("--schedule 1cycle has its own warm-up; leave --lr-warmup out");
  }
  if (o.rate_period > 0 && o.schedule != Schedule::kTriangular) {
    throw Failure("--lr-period is for --schedule triangular");
  }
  if (o.rate_low >= 0 && o.schedule == Schedule::kConstant) {
    throw Failure("--lr-low is for a --schedule other than constant");
  }
  if (o.optimizer.weight_decay > 0 && o.optimizer.method != Method::kAdamw) {
    throw Failure("--weight-decay is decoupled and for --optimizer adamw");
  }
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
  CommandLine line("sluice-train",
                   "Trains a multilayer perceptron, data-parallel over the visible GPUs.");
  flags_add(line, o);
  std::string algorithm = algorithm_name(o.algorithm);
  line.word("--algorithm", algorithm, "of the all-reduce", {"ring", "halving-doubling", "bcube"});
  std::string schedule = schedule_name(o.schedule);
  line.word("--schedule", schedule, "of the learning rate",
            {"constant", "cosine", "1cycle", "triangular"});
  std::string method = method_name(o.optimizer.method);
  line.word("--optimizer", method, "what makes gradients new weights",
            {"sgd", "adam", "adamw", "rmsprop"});
  std::string sharing = "index";
  line.word("--sharing", sharing,
            "index: every rank opens all data; presharded: only shards of its own",
            {"index", "presharded"});
  std::string engine = "auto";
  line.word("--comm", engine, "what carries it", {"auto", "gloo", "nccl"});
  std::string place;
  line.hidden("--as-rank", place);
  const auto whole_check = [&] {
    o.algorithm = *algorithm_parse(algorithm);
    o.engine = *engine_parse(engine);
    o.schedule = *schedule_parse(schedule);
    o.optimizer.method = *method_parse(method);
    o.sharing = sharing == "index" ? Sharing::kIndex : Sharing::kPresharded;
    rate_check(o);
    data_check(o);
    if (!place.empty() && !place_parse(place, &o.place)) {
      throw Failure("--as-rank is for the launcher alone");
    }
    mlp_shape(o.hidden);
  };
  if (!line.parse(argc, argv, exit_code, whole_check)) return false;
  if (o.steps == 0 && o.seconds == 0 && o.epochs == 0) o.epochs = 1;
  return true;
}

}  // namespace sluice::train
