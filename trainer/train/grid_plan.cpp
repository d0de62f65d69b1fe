// See grid_plan.h.
#include "trainer/train/grid_plan.h"

#include <algorithm>

#include "trainer/job/report.h"
#include "trainer/train/pipeline_schedule.h"

namespace sluice::train {
namespace {

double mib_of(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// What goes from layer to layer for one micro-batch.
std::size_t stream_bytes(const TrainOptions& options) {
  return static_cast<std::size_t>(options.batch) * static_cast<std::size_t>(options.gpt.context) *
         static_cast<std::size_t>(options.gpt.width) * sizeof(float);
}

std::string memory_words(const RankMemory& memory) {
  return text_format(
      "%.2f MiB of device memory (weights and gradients %.2f, optimizer %.2f, activations %.2f)",
      mib_of(memory.total()), mib_of(memory.weights), mib_of(memory.optimizer),
      mib_of(memory.rest));
}

std::string part_text(const TrainPlan& plan, const TrainOptions& options, int rank) {
  const ModelPart part = part_of_rank(plan, rank);
  const PartPlace& place = part.place();
  const int layers = options.gpt.layers / place.stage_count;
  return text_format(
             "\nplan: rank %d (data %d, stage %d, tensor %d): layers %d to %d, %d of %d heads, %zu "
             "weights; ",
             rank, plan.grid.data_of(rank), place.stage, place.tensor, place.stage * layers,
             (place.stage + 1) * layers - 1, options.gpt.heads / place.tensor_count,
             options.gpt.heads, part.parameter_count()) +
         memory_words(rank_memory(options, plan, rank));
}

}  // namespace

RankMemory rank_memory(const TrainOptions& options, const TrainPlan& plan, int rank) {
  const ModelPart part = part_of_rank(plan, rank);
  const NetworkSettings settings = network_settings(options, part.place());
  const std::size_t parameters = part.parameter_count() * sizeof(float);
  RankMemory out;
  out.weights = parameters * (settings.accumulates ? 3 : 2);
  out.optimizer = parameters * state_count(options.optimizer.method);
  if (options.strategy == Strategy::kSharded)
    out.optimizer /= static_cast<std::size_t>(plan.rank_count);
  if (options.offload) out.optimizer = 0;
  const auto network = part.network_bytes(settings);
  if (network) out.rest = *network - out.weights;
  if (plan.grid.pipeline > 1) out.rest += 2 * stream_bytes(options);
  return out;
}

GridTraffic grid_traffic(const TrainOptions& options, const TrainPlan& plan) {
  const Grid& grid = plan.grid;
  const double micros = options.accumulate;
  const std::size_t bytes = stream_bytes(options);
  GridTraffic out;
  // Attention and perceptron, forward and backward.
  const double sums = 4.0 * options.gpt.layers / grid.pipeline * micros;
  if (grid.tensor > 1)
    out.tensor = sums * allreduce_cost(options.algorithm, grid.tensor, bytes).bytes;
  const int ways = std::min(grid.pipeline - 1, 2);  // of two stages each sends one way
  out.pipeline = ways * micros * static_cast<double>(bytes);
  const std::size_t shared = plan.part.shared_by_ends().count * sizeof(float);
  if (grid.pipeline > 1) out.ends = allreduce_cost(options.algorithm, 2, shared).bytes;
  return out;
}

std::string grid_text(const TrainPlan& plan, const TrainOptions& options) {
  const Grid& grid = plan.grid;
  if (!grid.is_split()) {
    if (options.model != Model::kGpt) return "";
    return "\nplan: every rank: all weights; " + memory_words(rank_memory(options, plan, 0));
  }
  std::string text = "\nplan: grid " + grid.text() + ", tensor innermost";
  const GridTraffic traffic = grid_traffic(options, plan);
  const auto bytes_add = [&](double bytes, const char* what) {
    if (bytes > 0) text += text_format("; %s send %.0f bytes per step", what, bytes);
  };
  bytes_add(traffic.tensor, "parts of a layer each");
  bytes_add(traffic.pipeline, "stages each at most");
  bytes_add(traffic.ends, "the first and the last stage each, of their embedding,");
  if (grid.pipeline > 1) {
    text += text_format("; %d micro-batch%s through %d stages, 1F1B: bubble %.1f %%",
                        options.accumulate, options.accumulate == 1 ? "" : "es", grid.pipeline,
                        100 * pipeline_bubble(grid.pipeline, options.accumulate));
  }
  for (int rank = 0; rank < plan.rank_count; ++rank) text += part_text(plan, options, rank);
  return text;
}

std::string memory_text(const TrainOptions& options) {
  const TrainPlan plan = train_plan(options, options.place.rank_count, options.place.gpu_count);
  const Device device(plan.gpu_of(options.place.rank));
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  driver_check(driver().cuMemGetInfo(&free_bytes, &all_bytes), "asking the GPU's memory");
  const RankMemory memory = rank_memory(options, plan, options.place.rank);
  const bool exact = plan.part.network_bytes({}).has_value();
  const bool quota = job_has_quota() && !options.faults.exclusive;
  return text_format(
      "%s is too small: this rank needs %s%zu bytes (weights and gradients %zu, "
      "optimizer %zu, activations %zu%s), and a little for matrix products; %zu of the %s %zu "
      "are free; %s%stake a smaller --batch with more --accumulate%s",
      quota ? "this job's memory quota on its GPU" : "the GPU's memory", exact ? "" : "more than ",
      memory.total(), memory.weights, memory.optimizer, memory.rest, exact ? "" : " and more",
      free_bytes, quota ? "quota's" : "GPU's", all_bytes,
      exact ? "split the model over more ranks (--tensor, --pipeline), " : "",
      memory.optimizer > 0 && !plan.grid.is_split()
          ? "keep the optimizer's state on the host (--offload optimizer), or "
          : "or ",
      quota ? ", or ask for more memory" : "");
}

}  // namespace sluice::train
