// See stage.h. The order of everything is that of trainer/train/rank.cpp, network.cpp and
// update.cpp.
#include "trainer/plan/stage.h"

#include <algorithm>
#include <cassert>

#include "kernels/optimizers.h"

namespace sluice::train::planner {
namespace {

/// A message between the device and the host's memory.
double staging_ns(const Machine& machine, double floats) {
  return machine.staged ? machine.kernels.ns(copy_work(kUpload, floats * sizeof(float))) : 0;
}

/// A rank's stream: items one after the other.
class Clock {
 public:
  Clock(const Candidate& candidate, const Machine& machine)
      : candidate_(candidate), machine_(machine) {}

  void add(const Work& work) { ns_ += machine_.kernels.ns(work); }
  void add(const std::vector<Work>& works) {
    for (const Work& work : works) add(work);
  }
  void tensor_reduce(double floats) {
    const double ns = machine_.links.ns(Operation::kAllReduce, candidate_.algorithm,
                                        candidate_.tensor, floats * sizeof(float));
    const double all = ns + 2 * staging_ns(machine_, floats);
    ns_ += all;
    tensor_ns_ += all;
  }
  /// Work and meetings; the rest is the caller's.
  void add(const Item& item) {
    if (item.kind == Item::Kind::kWork) add(item.work);
    if (item.kind == Item::Kind::kTensorReduce) tensor_reduce(item.floats);
  }
  double ns() const { return ns_; }
  double tensor_ns() const { return tensor_ns_; }

 private:
  const Candidate& candidate_;
  const Machine& machine_;
  double ns_ = 0, tensor_ns_ = 0;
};

Work array_add(double count) {
  return elements_work(kernels::array_add(static_cast<int>(count), 0, 0), count);
}

Work weights_cast(std::size_t count) {
  const auto launch =
      kernels::cast_to_half(kernels::HalfFormat::kBf16, static_cast<int>(count), 0, 0);
  return elements_work(launch, static_cast<double>(count));
}

/// The optimizer's own kernel over `count` weights.
Work optimizer_work(Method method, std::size_t count) {
  const auto n = static_cast<int>(count);
  const auto amount = static_cast<double>(count);
  switch (method) {
    case Method::kSgd:
      break;
    case Method::kAdam:
    case Method::kAdamw:
      return elements_work(kernels::adamw(n, {}, 1, 0, 0, 0, 0), amount);
    case Method::kRmsprop:
      return elements_work(kernels::rmsprop(n, {}, 0, 0, 0, 0), amount);
  }
  return elements_work(kernels::sgd_momentum(n, 0, 0, 0, 0, 0), amount);
}

/// Weights that a rank updates, as sharded_update has them: its part of each bucket, and the rest.
std::vector<std::size_t> shard_parts(const Job& job, const Candidate& c, std::size_t parameters) {
  const ShardPlan plan = ShardPlan::of(parameters, c.data);
  std::vector<std::size_t> parts;
  for (const Bucket& bucket : stage_buckets(job, c, parameters))
    if (!plan.is_shared(bucket)) parts.push_back(ShardPlan::part(bucket, 0, c.data).count);
  if (parameters > plan.shared_begin) parts.push_back(parameters - plan.shared_begin);
  return parts;
}

/// The norm of all gradients, and clipping by it.
void clip_add(Clock& clock, const Candidate& c, const Machine& machine,
              const std::vector<std::size_t>& parts, double* link_ns) {
  double partials = 0;
  for (const std::size_t part : parts) {
    const auto n = static_cast<int>(part);
    clock.add(squares_work(kernels::square_sum(n, 0, 0), static_cast<double>(part)));
    clock.add(elements_work(kernels::norm_clip(n, 1, 0, 0), static_cast<double>(part)));
    partials += kernels::square_sum_parts(n);
  }
  if (c.tensor * c.pipeline > 1) {  // the sum of all parts of the model (replica.h)
    clock.add(columns_work(kernels::column_sum(static_cast<int>(partials), 1, 0, 0), partials, 1));
    *link_ns +=
        machine.links.ns(Operation::kAllReduce, c.algorithm, c.tensor * c.pipeline, sizeof(float)) +
        2 * staging_ns(machine, 1);
    clock.add(rows_work(kernels::norm_finish(1, 0, 0), 1, 1));
    return;
  }
  const int ranks = c.strategy == Strategy::kSharded ? c.data : 1;
  const double all = partials * ranks;
  *link_ns += machine.links.ns(Operation::kAllGather, c.algorithm, ranks, all * sizeof(float));
  clock.add(rows_work(kernels::norm_finish(static_cast<int>(all), 0, 0), 1, all));
}

}  // namespace

std::vector<Bucket> stage_buckets(const Job& job, const Candidate& c, std::size_t parameters) {
  return plan_buckets(parameters, c.strategy, job.compression, c.bucket_bytes, c.data);
}

double update_ns(const Job& job, const Candidate& c, const Machine& machine,
                 std::size_t parameters) {
  Clock clock(c, machine);
  double link_ns = 0;
  const bool sharded = c.strategy == Strategy::kSharded && c.data > 1;
  const std::vector<std::size_t> parts =
      sharded ? shard_parts(job, c, parameters) : std::vector{parameters};
  if (job.precision == Precision::kFp16) {
    const auto n = static_cast<int>(parameters);
    clock.add(copy_work(kZero, sizeof(int)));
    clock.add(elements_work(kernels::not_finite(n, 0, 0), n));
    clock.add(copy_work(kUpload, sizeof(int)));
    clock.add(elements_work(kernels::array_scale(n, 1, 0), n));
  }
  if (job.optimizer.clip > 0) clip_add(clock, c, machine, parts, &link_ns);
  for (const std::size_t part : parts) clock.add(optimizer_work(job.optimizer.method, part));
  return clock.ns() + link_ns;
}

Stage::Stage(const Job& job, const Candidate& c, const Machine& machine, const ModelCost& model,
             std::size_t first, std::size_t end) {
  for (std::size_t i = first; i < end; ++i) {
    for (const std::size_t range : model.layers[i].ranges) parameters_ += range;
    kept_floats_ += model.layers[i].kept_floats;
  }
  scratch_floats_ = model.scratch_floats;
  // What comes from the stage before.
  if (first > 0) kept_floats_ += model.layers[first - 1].boundary_floats;
  const bool begins = first == 0;
  const bool ends = end == model.layers.size();
  const bool tied = job.shape.get<GptShape>() != nullptr && ends && !begins;
  if (tied) parameters_ += model.layers.front().ranges.front();
  if (job.precision != Precision::kFp32) scratch_floats_ += static_cast<double>(parameters_) / 2;

  Clock input(c, machine);
  if (begins) input.add(model.input);
  if (ends) input.add(model.answers);
  input_ns_ = input.ns();
  Clock forward(c, machine);
  if (job.precision != Precision::kFp32) forward.add(weights_cast(parameters_));
  for (std::size_t i = first; i < end; ++i)
    for (const Item& item : model.layers[i].forward) forward.add(item);
  time_.forward_ns = input_ns_ + forward.ns();
  tensor_ns_ = forward.tensor_ns();
  tied_floats_ = job.shape.get<GptShape>() != nullptr && begins != ends
                     ? model.layers.front().ranges.front()
                     : 0;
  backward_time(c, machine, model, first, end);
  if (c.pipeline > 1)
    boundary_time(c, machine, begins ? model.layers[end - 1] : model.layers[first - 1]);
  if (tied_floats_ > 0) {
    tied_ns_ = machine.links.ns(Operation::kAllReduce, c.algorithm, 2,
                                static_cast<double>(tied_floats_ * sizeof(float)));
  }
}

/// As trainer/train/pipeline.cpp: what crosses, and the sender's time with it.
void Stage::boundary_time(const Candidate& c, const Machine& machine, const LayerCost& before) {
  constexpr double kStampBytes = 8;
  constexpr double kInsideFactor = 8;  // a copy within the device, against one from the host
  const double bytes = before.boundary_floats * sizeof(float);
  time_.send_ns = machine.links.stages_message_ns(c.data, c.tensor, c.pipeline, bytes);
  message_floats_ = 2 * before.boundary_floats;
  if (!machine.staged) return;
  const auto copy = [&](double amount) { return machine.kernels.ns(copy_work(kUpload, amount)); };
  time_.copy_ns = copy(bytes / kInsideFactor);
  time_.staging_ns = copy(bytes + kStampBytes) + copy(kStampBytes);
}

void Stage::backward_time(const Candidate& c, const Machine& machine, const ModelCost& model,
                          std::size_t first, std::size_t end) {
  Clock plain(c, machine);  // of a micro-batch
  Clock last(c, machine);   // of the last one, where gradients become final
  const bool adds = c.micro_batches > 1;
  last.add(copy_work(kUpload, sizeof(float)));  // the wish to stop
  if (adds) last.add(array_add(1));
  const bool ends = end == model.layers.size();
  if (!ends) {  // these stages have no loss of their own
    plain.add(copy_work(kZero, sizeof(float)));
    last.add(std::vector{copy_work(kZero, sizeof(float)), copy_work(kZero, sizeof(float))});
  }
  std::size_t begin = parameters_;
  for (std::size_t i = end; i-- > first;) {
    const LayerCost& layer = model.layers[i];
    std::vector<std::size_t> begins(layer.ranges.size());
    for (std::size_t range = layer.ranges.size(); range-- > 0;)
      begins[range] = begin -= layer.ranges[range];
    if (i == 0 && tied_floats_ > 0) {  // the last stage's part of this gradient is elsewhere
      const Work zero = copy_work(kZero, static_cast<double>(tied_floats_ * sizeof(float)));
      plain.add(zero);
      last.add(zero);
    }
    for (const Item& item : layer.backward) {
      plain.add(item);
      last.add(item);
      if (item.kind != Item::Kind::kFinal) continue;
      if (adds) last.add(array_add(static_cast<double>(layer.ranges[item.range])));
      marks_.push_back({last.ns(), begins[item.range]});
    }
  }
  if (ends && tied_floats_ > 0) {
    if (adds) last.add(array_add(static_cast<double>(tied_floats_)));
    marks_.push_back({last.ns(), 0});
  }
  const auto all = static_cast<double>(parameters_ + kExtraCount);
  if (adds) plain.add(array_add(all));
  time_.backward_ns = plain.ns();
  tensor_ns_ += plain.tensor_ns();
  last_backward_ns_ = last.ns();
  accumulate_ns_ = last.ns() - plain.ns();
  if (adds) accumulate_ns_ += machine.kernels.ns(copy_work(kZero, all * sizeof(float)));
}

namespace {

/// A transformer's stages have equally many of its layers (gpt_part.h); what no rank executes is
/// cut where it is best.
std::vector<std::size_t> stage_bounds(const ModelShape& shape, const std::vector<double>& costs,
                                      int stages) {
  const auto* gpt = shape.get<GptShape>();
  if (gpt == nullptr || gpt->layers % stages != 0) return runs_balance(costs, stages);
  std::vector<std::size_t> bounds{0};
  for (int stage = 1; stage < stages; ++stage)
    bounds.push_back(1 + static_cast<std::size_t>(gpt->layers / stages * stage));
  bounds.push_back(costs.size());
  return bounds;
}

}  // namespace

std::vector<Stage> stages_make(const Job& job, const Candidate& c, const Machine& machine) {
  const ModelUse use{job.global_batch / c.data / c.micro_batches, c.tensor, job.precision,
                     machine.kernels.multiprocessors};
  const ModelCost model = model_cost(job.shape, use);
  if (static_cast<std::size_t>(c.pipeline) > model.layers.size()) {
    throw Failure(
        text_format("%zu layers make no pipeline of %d stages", model.layers.size(), c.pipeline));
  }
  std::vector<double> costs;
  for (const LayerCost& layer : model.layers) {
    Clock clock(c, machine);
    for (const Item& item : layer.forward) clock.add(item);
    for (const Item& item : layer.backward) clock.add(item);
    costs.push_back(clock.ns());
  }
  const std::vector<std::size_t> bounds = stage_bounds(job.shape, costs, c.pipeline);
  std::vector<Stage> stages;
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    stages.emplace_back(job, c, machine, model, bounds[s], bounds[s + 1]);
  return stages;
}

}  // namespace sluice::train::planner
