// GPT-2 of 124 M parameters trained for a few steps on one GPU, through the trainer's own network,
// products and optimizer, and what that took: tokens a second, the part of the GPU's peak that they
// are worth, memory, the optimizer's time. Weights are random, and so is the batch, which stays the
// same: what is measured is not changed by it, and the loss must fall. Prints JSON; fails where
// the loss does not fall.
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/gpu/train/gpt2_figures.h"
#include "trainer/base/random.h"
#include "trainer/data/tokenizer.h"
#include "trainer/job/command_line.h"
#include "trainer/job/statistics.h"
#include "trainer/model/gpt.h"
#include "trainer/model/optimizer.h"

namespace sluice::tests {
namespace {

using train::Failure;
using train::Nanos;

struct Gpt2Options {
  train::GptShape shape{
      .vocabulary = 50257, .context = 1024, .width = 768, .layers = 12, .heads = 12};
  int padded = 50304;  // a multiple of 128, which matrix products like; llm.c and nanoGPT pad so
  int batch = 32;
  int accumulate = 16;
  int steps = 10;
  int warmup = 3;
  double rate = 6e-4;
  double peak_tflops = 0;
  std::uint64_t seed = 1;
  train::Precision precision = train::Precision::kBf16;
  train::GemmChoice gemm = train::GemmChoice::kAuto;

  std::uint64_t tokens() const {
    return static_cast<std::uint64_t>(batch) * static_cast<std::uint64_t>(accumulate) *
           static_cast<std::uint64_t>(shape.context);
  }
};

bool options_parse(int argc, char** argv, Gpt2Options& o, int* exit_code) {
  train::CommandLine line("gpt2_train",
                          "Trains GPT-2's shape for a few steps; prints what it took.");
  line.number("--layers", o.shape.layers, "layers", 1, train::kGptLayersMax);
  line.number("--heads", o.shape.heads, "heads of attention", 1, train::kGptWidthMax);
  line.number("--width", o.shape.width, "values of a token", 1, train::kGptWidthMax);
  line.number("--context", o.shape.context, "tokens of a sample", 1, 1 << 16);
  line.number("--vocabulary", o.shape.vocabulary, "tokens that occur", 2, train::kTokensMax);
  line.number("--padded", o.padded, "rows of the embedding, those that never occur too", 2,
              train::kTokensMax);
  line.number("--batch", o.batch, "samples of a micro-batch", 1, 4096);
  line.number("--accumulate", o.accumulate, "micro-batches of a step", 1, 4096);
  line.number("--steps", o.steps, "steps that are measured", 2, 1 << 20);
  line.number("--warmup", o.warmup, "steps before them", 1, 1 << 20);
  line.number("--lr", o.rate, "learning rate", 0.0, 1.0);
  line.number("--peak-tflops", o.peak_tflops, "of the GPU, dense; 0 = by a table of data sheets",
              0.0, 1e6);
  line.number("--seed", o.seed, "of weights and tokens");
  std::string precision = "bf16";
  line.word("--precision", precision, "what matrix products take", {"bf16", "fp16", "fp32"});
  std::string gemm = "auto";
  line.word("--gemm", gemm, "who computes 16-bit matrix products", {"auto", "own", "cublaslt"});
  return line.parse(argc, argv, exit_code, [&] {
    o.precision = *train::precision_parse(precision);
    o.gemm = *train::gemm_choice_parse(gemm);
    if (o.padded < o.shape.vocabulary) throw Failure("--padded is less than --vocabulary");
    train::gpt_shape(o.shape);
  });
}

/// Everything between the first and the last step.
class Gpt2Run {
 public:
  Gpt2Run(const Gpt2Options& options, train::Stream& stream, train::GemmEngine engine)
      : options_(options),
        stream_(stream),
        shape_(padded(options)),
        network_(stream, shape_,
                 {.batch_max = options.batch,
                  .accumulates = options.accumulate > 1,
                  .precision = options.precision,
                  .gemm = engine}),
        optimizer_(stream, {.method = train::Method::kAdamw, .weight_decay = 0.1},
                   network_.parameter_count()),
        tokens_(options.tokens()),
        targets_(options.tokens()) {
    network_.parameters_upload(train::gpt_draw(shape_, options.seed));
    train::Random random(options.seed, 0x6770743274);
    const auto draw = [&] {
      return static_cast<std::uint32_t>(
          random.below(static_cast<std::uint64_t>(options.shape.vocabulary)));
    };
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = draw();
      targets_[i] = static_cast<int>(draw());
    }
  }

  struct Step {
    Nanos wall_ns, passes_ns, optimizer_ns;
    double loss;
  };
  Step step() {
    const Nanos begin = train::now_ns();
    begin_.record(stream_);
    const int all = options_.batch * options_.accumulate;
    for (int micro = 0; micro < options_.accumulate; ++micro) {
      const auto from = static_cast<std::size_t>(micro * options_.batch * shape_.context);
      network_.batch_upload(tokens_.data() + from, targets_.data() + from, options_.batch);
      network_.forward(options_.batch);
      network_.backward(options_.batch, all,
                        {.first = micro == 0, .last = micro == options_.accumulate - 1});
    }
    middle_.record(stream_);
    stream_.download(loss_.data(), network_.extra(train::kExtraLoss), sizeof(float));
    optimizer_.step(options_.rate, network_.gradients(), network_.parameters());
    end_.record(stream_);
    stream_.synchronize();
    return {train::now_ns() - begin, middle_.since(begin_), end_.since(middle_),
            static_cast<double>(loss_[0]) / static_cast<double>(options_.tokens())};
  }
  const train::GptShape& shape() const { return shape_; }
  const train::CublasLt* library() const { return network_.library(); }

 private:
  static train::GptShape padded(const Gpt2Options& options) {
    train::GptShape shape = options.shape;
    shape.vocabulary = options.padded;
    return train::gpt_shape(shape);
  }

  const Gpt2Options& options_;
  train::Stream& stream_;
  const train::GptShape shape_;
  train::Gpt network_;
  train::Optimizer optimizer_;
  train::PinnedArray<std::uint32_t> tokens_;
  train::PinnedArray<int> targets_;
  train::PinnedArray<float> loss_{1};
  train::Event begin_, middle_, end_;
};

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  char text[32] = "";
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

/// Of NVIDIA's kernel module; empty where there is none.
std::string driver_release() {
  std::string line;
  std::ifstream file("/proc/driver/nvidia/version");
  std::getline(file, line);
  return line;
}

using Json = nlohmann::ordered_json;

Json machine_json(const train::Device& device) {
  int cuda = 0;
  train::driver_check(train::driver().cuDriverGetVersion(&cuda), "asking the driver's version");
  return {{"date", date_now()},
          {"device", device.name()},
          {"software_gpu", device.is_software()},
          {"multiprocessors", device.multiprocessors()},
          {"cuda_driver_version", cuda},
          {"driver", driver_release()}};
}

Json gemm_json(const train::CublasLt* library, const std::string& note) {
  if (library == nullptr) return {{"engine", "own"}, {"note", note}};
  return {{"engine", "cublaslt"},
          {"version", library->version()},
          {"products", library->products()},
          {"by_own_kernels", library->refused()}};
}

Json times_json(const std::vector<Gpt2Run::Step>& steps) {
  const auto median_of = [&](Nanos Gpt2Run::Step::*what) {
    std::vector<Nanos> all;
    for (const Gpt2Run::Step& one : steps) all.push_back(one.*what);
    return train::millis_of(train::percentile(all, 50));
  };
  return {{"step_ms", median_of(&Gpt2Run::Step::wall_ns)},
          {"passes_ms", median_of(&Gpt2Run::Step::passes_ns)},
          {"adamw_ms", median_of(&Gpt2Run::Step::optimizer_ns)}};
}

Json mfu_json(const Gpt2Options& options, const std::string& device, double tokens_per_s) {
  const Peak peak =
      options.peak_tflops > 0 ? Peak{options.peak_tflops * 1e12, "--peak-tflops"} : peak_of(device);
  Json out = {{"peak_flops", peak.flops}, {"peak_source", peak.source}};
  // Rows of the embedding that never occur are no useful work.
  for (const FlopsFormula& formula : kFormulas) {
    const double flops = token_flops(options.shape, formula);
    out["formulas"][formula.name] = {
        {"flops_per_token", flops},
        {"mfu", peak.flops > 0 ? Json(tokens_per_s * flops / peak.flops) : Json(nullptr)}};
  }
  return out;
}

int run(const Gpt2Options& options) {
  const train::Device device(0);
  train::Stream stream(device);
  std::string note;
  const train::GemmEngine engine =
      options.precision == train::Precision::kFp32
          ? train::GemmEngine::kOwn
          : train::gemm_engine(options.gemm, device.is_software(), train::cublaslt_library, &note);
  if (!note.empty()) std::fprintf(stderr, "sluice: gpt2_train: %s\n", note.c_str());
  Gpt2Run run(options, stream, engine);
  const double loss_first = run.step().loss;
  for (int i = 1; i < options.warmup; ++i) run.step();
  std::vector<Gpt2Run::Step> steps;
  for (int i = 0; i < options.steps; ++i) steps.push_back(run.step());

  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  train::driver_check(train::driver().cuMemGetInfo(&free_bytes, &all_bytes), "asking for memory");
  Json out = {{"program", "gpt2_train"}};
  out.update(machine_json(device));
  const train::GptShape& shape = options.shape;
  out["model"] = {{"layers", shape.layers},
                  {"heads", shape.heads},
                  {"width", shape.width},
                  {"context", shape.context},
                  {"vocabulary", shape.vocabulary},
                  {"vocabulary_padded", options.padded},
                  {"parameters", shape.parameter_count()},
                  {"parameters_padded", run.shape().parameter_count()}};
  out["precision"] = train::precision_name(options.precision);
  out["gemm"] = gemm_json(run.library(), note);
  out["batch"] = options.batch;
  out["accumulate"] = options.accumulate;
  out["tokens_per_step"] = options.tokens();
  out["warmup"] = options.warmup;
  out["steps"] = options.steps;
  out.update(times_json(steps));
  const double tokens_per_s =
      static_cast<double>(options.tokens()) / (out["step_ms"].get<double>() / 1e3);
  out["tokens_per_s"] = tokens_per_s;
  out.update(mfu_json(options, device.name(), tokens_per_s));
  out["memory_used_bytes"] = all_bytes - free_bytes;
  out["memory_total_bytes"] = all_bytes;
  out["loss_first"] = loss_first;
  out["loss_last"] = steps.back().loss;
  std::printf("%s\n", out.dump(2).c_str());
  if (steps.back().loss < loss_first) return 0;
  throw Failure(train::text_format("the loss went from %g to %g: it must fall", loss_first,
                                   steps.back().loss));
}

}  // namespace
}  // namespace sluice::tests

int main(int argc, char** argv) {
  sluice::tests::Gpt2Options options;
  int exit_code = 0;
  if (!sluice::tests::options_parse(argc, argv, options, &exit_code)) return exit_code;
  return sluice::train::program_main("gpt2_train", [&] { return sluice::tests::run(options); });
}
