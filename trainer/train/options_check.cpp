// See options_check.h.
#include "trainer/train/options_check.h"

#include <filesystem>

#include "trainer/model/model_part.h"
#include "trainer/train/plan.h"

namespace sluice::train {
namespace {

void async_check(const TrainOptions& o) {
  if (o.strategy != Strategy::kAsync) {
    if (o.staleness != TrainOptions().staleness)
      throw Failure("--staleness is for --strategy async");
    return;
  }
  if (o.compression.kind != Compression::kNone)
    throw Failure("--compress is for --strategy data; async sends 32-bit gradients and weights");
  if (o.precision == Precision::kFp16) {
    throw Failure(
        "--precision fp16 is not for --strategy async: workers would have to agree on the loss "
        "scale in every step; take bf16");
  }
  if (o.eval_every > 0) {
    throw Failure(
        "--eval-every is not for --strategy async: its workers are at different steps; it "
        "evaluates at the end");
  }
}

void text_check(const TrainOptions& o) {
  if (o.data == "fashion-mnist") {
    throw Failure("--model gpt learns text: give --data FILE, or --data synthetic");
  }
  if (o.data != "synthetic" && !std::filesystem::is_regular_file(o.data)) {
    throw Failure("--data " + o.data + " is not synthetic, and no file of text either");
  }
  if (o.sharing == Sharing::kPresharded) {
    throw Failure("--sharing presharded is for images in shards, not for --model gpt");
  }
}

}  // namespace

void communication_check(const TrainOptions& o) {
  async_check(o);
  const bool sharded = o.strategy == Strategy::kSharded;
  if (sharded && o.compression.kind != Compression::kNone)
    throw Failure("--compress is for --strategy data; sharded sends 32-bit sums");
  if (sharded && o.offload)
    throw Failure("--offload optimizer is for --strategy data and async; sharded has 1/N already");
  if (o.precision != Precision::kFp16) return;
  if (sharded) {
    throw Failure(
        "--precision fp16 is not for --strategy sharded: whether a step is left out follows from "
        "all gradients, and a rank has the sums of its part alone; take bf16");
  }
  if (o.compression.keeps_rest()) {
    throw Failure(
        "--precision fp16 is not for --compress topk and powersgd: an overflow would stay in what "
        "is kept for "
        "the next step; take --precision bf16, or --compress bf16");
  }
}

void data_check(const TrainOptions& o) {
  if (o.model == Model::kGpt) return text_check(o);
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

void model_check(TrainOptions& o) {
  const TrainOptions usual;
  const auto only_for = [&](Model model, bool given, const char* option) {
    if (!given || o.model == model) return;
    throw Failure(std::string(option) + " is for --model " +
                  kModelNames[static_cast<std::size_t>(model)]);
  };
  only_for(Model::kCnn, o.channels != usual.channels, "--channels");
  only_for(Model::kGpt, o.gpt.layers != usual.gpt.layers, "--layers");
  only_for(Model::kGpt, o.gpt.heads != usual.gpt.heads, "--heads");
  only_for(Model::kGpt, o.gpt.width != usual.gpt.width, "--width");
  only_for(Model::kGpt, o.gpt.context != usual.gpt.context, "--context");
  only_for(Model::kGpt, !o.vocabulary.empty(), "--vocab");
  if (o.vocabulary.empty() != o.merges.empty()) {
    throw Failure("--vocab and --merges are two halves of a vocabulary: give both or none");
  }
  if (o.model == Model::kGpt && o.hidden != usual.hidden) {
    throw Failure("--hidden is for --model mlp and cnn; gpt has --width");
  }
  o.gpt.vocabulary = tokenizer_make(o)->vocabulary();
  model_shape(o).batch_check(o.batch);
  const ModelPart split_check(model_shape(o), {0, o.tensor, 0, o.pipeline});
}

void grid_check(const TrainOptions& o) {
  if (o.tensor == 1 && o.pipeline == 1) return;
  const auto refuse = [](bool given, const char* option, const char* why) {
    if (given) throw Failure(std::string(option) + " is not for --tensor or --pipeline: " + why);
  };
  refuse(o.strategy == Strategy::kSharded, "--strategy sharded",
         "each rank has the state of its own part already; take --strategy data");
  refuse(o.compression.kind == Compression::kTopk, "--compress topk",
         "ranks that have the same weights would choose different gradients of them; take fp16 or "
         "bf16");
  refuse(o.compression.kind == Compression::kPowersgd, "--compress powersgd",
         "it approximates whole matrices; take fp16 or bf16");
  refuse(o.strategy == Strategy::kAsync, "--strategy async",
         "its server has the whole model; take --strategy data");
  refuse(o.offload, "--offload optimizer", "each rank has the state of its own part alone already");
  refuse(o.sharing == Sharing::kScatter, "--sharing scatter",
         "rank 0 sends samples to every rank; take --sharing index");
}

void precision_check(const TrainOptions& o) {
  const LossScaleSettings usual;
  const bool scaled = o.loss_scale.initial != usual.initial ||
                      o.loss_scale.growth_steps != usual.growth_steps || o.overflow_step > 0;
  if (scaled && o.precision != Precision::kFp16) {
    throw Failure(
        "--loss-scale, --loss-scale-steps and --plant-overflow are for --precision fp16: bf16 has "
        "the range of fp32");
  }
  if (std::int64_t{o.batch} * o.accumulate > kBatchMax) {
    throw Failure(text_format("--batch %d times --accumulate %d is more than %d samples", o.batch,
                              o.accumulate, kBatchMax));
  }
}

void gemm_check(TrainOptions& o) {
  if (o.gemm == GemmChoice::kCublaslt && o.precision == Precision::kFp32)
    throw Failure("--gemm cublaslt is for --precision bf16 and fp16");
  if (o.gemm == GemmChoice::kCublaslt && o.plan_auto)
    throw Failure("--gemm cublaslt is not for --plan auto, which measures own kernels");
  if (o.plan_auto || o.precision == Precision::kFp32) o.gemm = GemmChoice::kOwn;
}

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

}  // namespace sluice::train
