// See options.h.
#include "trainer/train/options.h"

#include <algorithm>
#include <cstdio>

#include "trainer/data/bpe.h"
#include "trainer/data/dataset.h"
#include "trainer/data/text.h"
#include "trainer/job/command_line.h"
#include "trainer/plan/choose.h"
#include "trainer/train/options_check.h"

namespace sluice::train {
namespace {

void model_flags_add(CommandLine& line, TrainOptions& o) {
  line.numbers("--hidden", o.hidden,
               "mlp, cnn: units of the hidden dense layers, e.g. 128 or 256,64");
  line.numbers("--channels", o.channels,
               "cnn: filters of its convolutions, each followed by 2x2 pooling");
  line.number("--layers", o.gpt.layers, "gpt: attention and perceptron, so many times", 1,
              kGptLayersMax);
  line.number("--heads", o.gpt.heads, "gpt: heads of attention, each of up to 64 values", 1,
              kGptWidthMax);
  line.number("--width", o.gpt.width, "gpt: values of a token from layer to layer", 1,
              kGptWidthMax);
  line.number("--context", o.gpt.context, "gpt: tokens of a sample", 1, kContextMax);
  line.text("--vocab", o.vocabulary,
            "gpt: vocab.json of GPT-2's tokens, with --merges; else every byte is a token");
  line.text("--merges", o.merges, "gpt: merges.txt of GPT-2's tokens");
}

void flags_add(CommandLine& line, TrainOptions& o) {
  line.number("--nproc", o.rank_count, "ranks = processes; 0 = one per visible GPU", 0, kRanksMax);
  line.number("--batch", o.batch, "samples per rank and micro-batch", 1, kBatchMax);
  line.number("--accumulate", o.accumulate,
              "micro-batches of a step: gradients of so many batches make one update", 1,
              kBatchMax);
  line.number("--tensor", o.tensor,
              "gpt: ranks that share out the heads and units of every layer. With --pipeline the "
              "ranks are a grid, data x pipeline x tensor, tensor innermost: rank = (data x P + "
              "stage) x T + tensor",
              1, kRanksMax);
  line.number(
      "--pipeline", o.pipeline,
      "gpt: stages of consecutive layers, which --accumulate micro-batches go through (1F1B)", 1,
      kRanksMax);
  model_flags_add(line, o);
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
  line.number("--loss-scale", o.loss_scale.initial, "fp16: where the loss scale begins",
              kLossScaleMin, kLossScaleMax);
  line.number("--loss-scale-steps", o.loss_scale.growth_steps,
              "fp16: good steps before the loss scale is doubled", 1, 1ULL << 40);
  line.number("--plant-overflow", o.overflow_step,
              "experiment, fp16: gradients of this step overflow (the first is 1); 0 = none", 0,
              1ULL << 40);
  line.number("--steps", o.steps, "this many steps (default: one epoch)", 1, 1ULL << 40);
  line.seconds("--seconds", o.seconds, "until this much time has passed", 0.001, 1e6);
  line.number("--epochs", o.epochs, "this many passes over the data", 1, 1000000);
  line.exclusive({"--steps", "--seconds", "--epochs"});
  line.number("--seed", o.seed, "of weights, order and synthetic data");
  line.number("--eval-samples", o.eval_samples, "test samples of an evaluation; 0 = none");
  line.number("--eval-every", o.eval_every, "steps between evaluations; 0 = only at the end");
  line.text("--data", o.data,
            "what to train on: fashion-mnist, synthetic, or a directory that `sluice-train pack` "
            "wrote (see its --help); gpt: synthetic, or any text file");
  line.text("--data-dir", o.data_directory, "directory of the four Fashion-MNIST files");
  line.number("--train-samples", o.train_samples, "use only the first N; 0 = all");
  line.number("--prefetch", o.prefetch,
              "batches made ready ahead; 0 = none, in the training thread", 0, kPrefetchMax);
  line.number("--load-delay-us", o.load_delay_us,
              "experiment: a store that takes this much longer for every batch", 0, 60'000'000);
  line.number("--bucket", o.bucket_bytes,
              "bytes of the largest gradient bucket: more of them hide more of the communication "
              "behind the backward pass, fewer pay the link's latency less often",
              4, 1ULL << 30);
  line.number("--staleness", o.staleness,
              "async: steps that a worker may be ahead of the slowest; 0 = all in step", 0,
              1ULL << 40);
  line.number("--link-alpha-us", o.link.alpha_us, "modelled latency of a message (software GPUs)",
              0.0, 1e6);
  line.number("--link-gbps", o.link.gigabits_per_s,
              "modelled bandwidth in gigabits/s (software GPUs); 0 = infinite", 0.0, 1e6);
  line.number("--wire-alpha-us", o.throttle.alpha_us,
              "experiment: Gloo's messages really leave this much later", 0.0, 1e6);
  line.number("--wire-mb-per-s", o.throttle.megabytes_per_s,
              "experiment: and at this rate; 0 = as fast as they go", 0.0, 1e6);
  line.seconds("--comm-timeout", o.timeout_s, "how long to wait for a silent rank", 0.1, 1e5);
  line.text("--calibration", o.calibration,
            "--plan auto: what `sluice-train calibrate` wrote; without it, a quick one is made");
  line.text("--log", o.log, "JSON lines: start, step, eval, end");
  line.text("--timeline", o.timeline,
            "a Chrome trace of the first steps of all ranks: compute, communication, data wait, "
            "host, evaluation");
  line.number("--timeline-steps", o.timeline_steps, "steps in it", 1, 1000000);
  line.text("--save", o.save, "write the trained weights here");
  line.flag("--quiet", o.quiet, "print nothing but errors");
  fault_options_add(line, o.faults);
}

/// The options of communication that are words.
struct CommunicationWords {
  std::string algorithm = algorithm_name(Algorithm::kRing);
  std::string start = "auto";
  std::string overlap = "on";
  std::string strategy = "data";
  std::string compression = "none";
  std::string slow;
  std::string offload = "none";
  std::string engine = "auto";
  std::string plan = "given";
};

void communication_add(CommandLine& line, CommunicationWords& words) {
  line.word("--algorithm", words.algorithm, "of the all-reduce",
            {"ring", "halving-doubling", "bcube"});
  line.word("--start", words.start,
            "auto: under mpirun or srun (one process for each rank) be the rank that they say, "
            "else start all ranks; self: start all ranks in any case",
            {"auto", "self"});
  line.word("--overlap", words.overlap, "reduce gradients while the backward pass goes on",
            {"on", "off"});
  line.word("--strategy", words.strategy,
            "data: every rank has the optimizer's whole state; sharded: 1/N of it, for one "
            "reduce-scatter and one all-gather; async: rank 0 serves the weights, the others train "
            "without waiting for each other (--staleness)",
            {"data", "sharded", "async"});
  line.word("--offload", words.offload,
            "optimizer: its state is in the host's memory, and the host makes the updates",
            {"none", "optimizer"});
  line.text("--plant-slow", words.slow,
            "experiment: RANK:US or RANK:US:EVERY, a rank that sleeps in every (EVERY-th) step");
  line.text("--compress", words.compression,
            "gradients on the wire: none, fp16, bf16, topk:RATIO (the largest, the rest later), or "
            "powersgd:RANK (matrices as products of thin ones, the rest later)");
  line.word("--comm", words.engine,
            "what carries it; auto: NCCL on hardware where it is installed, else Gloo. Ranks that "
            "share a GPU are hosts of their own to NCCL (NCCL_HOSTID, unless set)",
            {"auto", "gloo", "nccl"});
  line.word("--plan", words.plan,
            "given: as the options say; auto: strategy, buckets, algorithm and grid that are not "
            "given are chosen by predicted step time (`sluice-train plan` shows them)",
            {"given", "auto"});
}

void communication_take(const CommunicationWords& words, TrainOptions& o) {
  o.algorithm = *algorithm_parse(words.algorithm);
  o.engine = *engine_parse(words.engine);
  o.overlap = words.overlap == "on";
  o.start_self = words.start == "self";
  o.strategy = words.strategy == "sharded" ? Strategy::kSharded
               : words.strategy == "async" ? Strategy::kAsync
                                           : Strategy::kData;
  o.offload = words.offload == "optimizer";
  if (!words.slow.empty()) {
    const auto slow = slow_parse(words.slow);
    if (!slow) throw Failure("--plant-slow " + words.slow + " is not RANK:US or RANK:US:EVERY");
    o.slow = *slow;
  }
  const auto settings = compression_parse(words.compression);
  if (!settings) {
    throw Failure("--compress " + words.compression +
                  " is not none, fp16, bf16, topk:RATIO with a RATIO in (0, 1], or powersgd:RANK "
                  "with a RANK from 1 to " +
                  std::to_string(kPowersgdRankMax));
  }
  o.compression = *settings;
  o.plan_auto = words.plan == "auto";
  communication_check(o);
}

}  // namespace

std::string place_format(const RankPlace& place) {
  return text_format("%d:%d:%d:%d:%d:%d:", place.rank, place.rank_count, place.gpu_count,
                     place.board_fd, place.slot, place.joins ? 1 : 0) +
         place.directory;
}

bool place_parse(const std::string& text, RankPlace* out) {
  int used = 0;
  int joins = 0;
  const int got = std::sscanf(text.c_str(), "%d:%d:%d:%d:%d:%d:%n", &out->rank, &out->rank_count,
                              &out->gpu_count, &out->board_fd, &out->slot, &joins, &used);
  if (got != 6 || used == 0) return false;
  out->joins = joins != 0;
  out->directory = text.substr(static_cast<std::size_t>(used));
  return out->rank >= 0 && out->rank < out->rank_count && out->rank_count <= kRanksMax &&
         out->gpu_count > 0 && out->board_fd >= 0 && out->slot >= 0 && out->slot < kRanksMax &&
         !out->directory.empty();
}

std::optional<SlowRank> slow_parse(const std::string& text) {
  SlowRank slow;
  unsigned long long us = 0, every = 1;
  int used = 0;
  const int got =
      std::sscanf(text.c_str(), "%d:%llu%n:%llu%n", &slow.rank, &us, &used, &every, &used);
  const bool whole = static_cast<std::size_t>(used) == text.size();
  if (got < 2 || !whole || slow.rank < 0 || us > 60'000'000 || every == 0) return std::nullopt;
  slow.us = us;
  slow.every = every;
  return slow;
}

std::unique_ptr<Tokenizer> tokenizer_make(const TrainOptions& options) {
  if (options.vocabulary.empty()) return byte_tokenizer();
  return bpe_tokenizer(options.vocabulary, options.merges);
}

bool train_options_parse(int argc, char** argv, TrainOptions* out, int* exit_code) {
  TrainOptions& o = *out;
  o.data_directory = kFashionDirectory;
  CommandLine line(
      "sluice-train",
      "Trains a model on the visible GPUs, which share out its data, or its layers too.");
  std::string model = "mlp";
  line.word("--model", model,
            "mlp: dense layers; cnn: convolutions before them; gpt: a transformer, for text",
            {"mlp", "cnn", "gpt"});
  flags_add(line, o);
  std::string precision = precision_name(o.precision);
  line.word("--precision", precision,
            "what matrix products take; weights and sums are fp32. fp16 scales the loss",
            {"fp32", "bf16", "fp16"});
  std::string gemm = gemm_choice_name(o.gemm);
  line.word(
      "--gemm", gemm,
      "who computes 16-bit matrix products: own kernels, NVIDIA's cuBLASLt, or auto: cuBLASLt "
      "where it is installed, but not on software GPUs and not with --plan auto, which "
      "measures own kernels",
      {"auto", "own", "cublaslt"});
  std::string schedule = schedule_name(o.schedule);
  line.word("--schedule", schedule, "of the learning rate",
            {"constant", "cosine", "1cycle", "triangular"});
  std::string method = method_name(o.optimizer.method);
  line.word("--optimizer", method, "what makes gradients new weights",
            {"sgd", "adam", "adamw", "rmsprop"});
  std::string sharing = "index";
  line.word("--sharing", sharing,
            "index: every rank opens all data; scatter: rank 0 does, and sends the others their "
            "samples; presharded: every rank opens shards of its own",
            {"index", "scatter", "presharded"});
  CommunicationWords communication;
  communication_add(line, communication);
  node_options_add(line, o.nodes);
  std::string place;
  line.hidden("--as-rank", place);
  std::string planned;
  line.hidden("--as-planned", planned);
  line.config_file("TOML file: every option here as a key without dashes; the command line wins");
  const auto whole_check = [&] {
    const auto named = std::find(kModelNames.begin(), kModelNames.end(), model);
    o.model = static_cast<Model>(named - kModelNames.begin());
    o.precision = *precision_parse(precision);
    o.gemm = *gemm_choice_parse(gemm);
    precision_check(o);
    communication_take(communication, o);
    gemm_check(o);
    o.plan_fixed = {line.given("--strategy"), line.given("--bucket"), line.given("--algorithm"),
                    line.given("--tensor") || line.given("--pipeline")};
    o.schedule = *schedule_parse(schedule);
    o.optimizer.method = *method_parse(method);
    o.sharing = sharing == "index"     ? Sharing::kIndex
                : sharing == "scatter" ? Sharing::kScatter
                                       : Sharing::kPresharded;
    rate_check(o);
    data_check(o);
    fault_options_check(o);
    if (o.strategy == Strategy::kAsync && o.sharing != Sharing::kIndex)
      throw Failure("--sharing " + sharing + " is not for --strategy async; take index");
    if (!place.empty() && !place_parse(place, &o.place)) {
      throw Failure("--as-rank is for the launcher alone");
    }
    if (!planned.empty() && !planner::planned_parse(planned, &o)) {
      throw Failure("--as-planned is for the launcher alone");
    }
    model_check(o);
    grid_check(o);
    node_options_check(line, o);
  };
  if (!line.parse(argc, argv, exit_code, whole_check)) return false;
  if (o.steps == 0 && o.seconds == 0 && o.epochs == 0) o.epochs = 1;
  return true;
}

}  // namespace sluice::train
