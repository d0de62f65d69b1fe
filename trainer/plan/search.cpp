// See search.h.
#include "trainer/plan/search.h"

#include <algorithm>

namespace sluice::train::planner {
namespace {

constexpr int kMicroBatchesMax = 64;

/// Bytes of the largest bucket: from 16 KiB on, as far as there are gradients to cut.
std::vector<std::size_t> bucket_sizes(const SearchOptions& options, std::size_t gradient_bytes) {
  if (options.fixed.bucket || options.ranks == 1) return {options.given.bucket_bytes};
  std::vector<std::size_t> sizes;
  for (std::size_t size = 1 << 14; size <= (1 << 26); size *= 4) {
    sizes.push_back(size);
    if (size >= gradient_bytes) break;
  }
  return sizes;
}

/// How the gradients of `c.data` replicas can meet.
void reductions_add(const SearchOptions& options, std::size_t gradient_bytes, Candidate c,
                    std::vector<Candidate>& out) {
  if (c.data == 1) {
    c.strategy = Strategy::kData;
    c.bucket_bytes = options.given.bucket_bytes;
    c.algorithm = options.given.algorithm;
    return out.push_back(c);
  }
  for (const Strategy strategy : {Strategy::kData, Strategy::kSharded}) {
    if (options.fixed.strategy && strategy != options.given.strategy) continue;
    if (strategy == Strategy::kSharded && !options.sharded_possible) continue;
    c.strategy = strategy;
    // Of halving-doubling and bcube, which cost the same, the one that any number of ranks can
    // have.
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling}) {
      const bool chooses = strategy == Strategy::kData && options.algorithms;
      c.algorithm = algorithm;
      if (options.fixed.algorithm || !chooses) c.algorithm = options.given.algorithm;
      for (const std::size_t size : bucket_sizes(options, gradient_bytes)) {
        c.bucket_bytes = size;
        out.push_back(c);
      }
      if (options.fixed.algorithm || !chooses) break;
    }
  }
}

std::size_t layer_count(const ModelShape& shape) {
  return model_cost(shape, {1, 1, Precision::kFp32, 1}).layers.size();
}

/// Whether the kernels, which count in 32 bits, can take so many samples at once.
bool batch_possible(const ModelShape& shape, int batch) {
  const std::int64_t each =
      std::visit([](const auto& one) { return one.sample_width(); }, shape.any());
  return each * batch <= INT32_MAX;
}

/// Candidates of one grid.
void grid_add(const Job& job, const SearchOptions& options, int tensor, int pipeline,
              std::vector<Candidate>& out) {
  Candidate c = options.given;
  c.tensor = tensor;
  c.pipeline = pipeline;
  c.data = options.ranks / tensor / pipeline;
  const std::size_t bytes = (job.shape.parameter_count() + kExtraCount) * sizeof(float);
  if (pipeline == 1 || options.fixed.grid) {
    c.micro_batches = options.accumulate;
    const int parts = c.data * c.micro_batches;
    if (job.global_batch % parts == 0 && batch_possible(job.shape, job.global_batch / parts))
      reductions_add(options, bytes / static_cast<std::size_t>(tensor * pipeline), c, out);
    return;
  }
  for (int micro = 1; micro <= kMicroBatchesMax; micro *= 2) {
    if (job.global_batch % (c.data * micro) != 0) break;
    if (!batch_possible(job.shape, job.global_batch / (c.data * micro))) continue;
    c.micro_batches = micro;
    reductions_add(options, bytes / static_cast<std::size_t>(tensor * pipeline), c, out);
  }
}

}  // namespace

bool executable(const Job& job, const SearchOptions& options, const Candidate& candidate) {
  if (job.global_batch / candidate.data > kBatchMax) return false;
  if (candidate.tensor == 1 && candidate.pipeline == 1) return true;
  const auto* gpt = job.shape.get<GptShape>();
  return gpt != nullptr && gpt->layers % candidate.pipeline == 0 && options.split_possible &&
         candidate.strategy == Strategy::kData && job.compression.kind != Compression::kTopk;
}

std::vector<Candidate> candidates(const Job& job, const SearchOptions& options) {
  std::vector<Candidate> out;
  const auto layers = static_cast<int>(layer_count(job.shape));
  for (int tensor = 1; tensor <= options.ranks; ++tensor) {
    if (options.ranks % tensor != 0 || !tensor_possible(job.shape, tensor)) continue;
    if (options.fixed.grid && tensor != options.given.tensor) continue;
    for (int pipeline = 1; pipeline <= std::min(options.ranks / tensor, layers); ++pipeline) {
      if (options.fixed.grid && pipeline != options.given.pipeline) continue;
      if (options.ranks / tensor % pipeline == 0) grid_add(job, options, tensor, pipeline, out);
    }
  }
  return out;
}

std::vector<Ranked> search(const Job& job, const Machine& machine, const SearchOptions& options) {
  std::vector<Ranked> out;
  for (const Candidate& candidate : candidates(job, options)) {
    Ranked one;
    one.candidate = candidate;
    one.prediction = predict(job, candidate, machine);
    one.fits = one.prediction.memory_bytes * machine.ranks_per_gpu <=
               static_cast<double>(options.memory_bytes);
    one.executable = executable(job, options, candidate);
    out.push_back(one);
  }
  std::stable_sort(out.begin(), out.end(), [](const Ranked& a, const Ranked& b) {
    if (a.fits != b.fits) return a.fits;
    return a.prediction.step_ns() < b.prediction.step_ns();
  });
  return out;
}

const Ranked* best_of(const std::vector<Ranked>& ranked) {
  const auto found = std::find_if(ranked.begin(), ranked.end(),
                                  [](const Ranked& one) { return one.fits && one.executable; });
  return found == ranked.end() ? nullptr : &*found;
}

}  // namespace sluice::train::planner
