// See replica.h.
#include "trainer/train/replica.h"

#include <algorithm>

#include "kernels/optimizers.h"

namespace sluice::train {
namespace {

constexpr std::size_t kGatherFloats = 1 << 16;  // of a message: little memory on a GPU that is full

class ReplicaUpdate final : public WeightUpdate {
 public:
  ReplicaUpdate(Communicator& comm, Stream& stream, const OptimizerSettings& settings,
                CUdeviceptr gradients, CUdeviceptr parameters, const ModelPart& part)
      : comm_(comm),
        stream_(stream),
        clip_(settings.clip),
        gradients_(gradients),
        parameters_(parameters),
        method_(settings.method),
        count_(static_cast<int>(part.parameter_count())),
        counted_(part.counted()),
        optimizer_(stream, unclipped(settings), part.parameter_count()) {
    if (clip_ <= 0) return;
    for (const ParameterRun& run : counted_) parts_ += square_parts(run);
    partials_ = std::make_unique<DeviceArray<float>>(static_cast<std::size_t>(parts_));
  }

  void step(double rate) override {
    if (clip_ > 0) clip();
    optimizer_.step(rate, gradients_, parameters_);
  }
  std::size_t state_bytes() const override { return optimizer_.state_bytes(); }
  OptimizerState state_take() override {
    return optimizer_take(stream_, optimizer_, method_, static_cast<std::size_t>(count_));
  }
  void state_put(const OptimizerState& state) override {
    optimizer_put(stream_, optimizer_, state);
  }

 private:
  static OptimizerSettings unclipped(OptimizerSettings settings) {
    settings.clip = 0;
    return settings;
  }
  static int square_parts(const ParameterRun& run) {
    return kernels::square_sum_parts(static_cast<int>(run.count));
  }

  void clip() {
    int at = 0;
    for (const ParameterRun& run : counted_) {
      stream_.launch(kernels::square_sum(static_cast<int>(run.count),
                                         gradients_ + run.begin * sizeof(float),
                                         partials_->at(static_cast<std::size_t>(at))));
      at += square_parts(run);
    }
    stream_.launch(kernels::column_sum(parts_, 1, partials_->at(), squares_.at()));
    comm_.all_reduce(stream_, squares_.at(), 1);
    stream_.launch(kernels::norm_finish(1, squares_.at(), norm_.at()));
    stream_.launch(kernels::norm_clip(count_, static_cast<float>(clip_), norm_.at(), gradients_));
  }

  Communicator& comm_;
  Stream& stream_;
  const double clip_;
  const CUdeviceptr gradients_, parameters_;
  const Method method_;
  const int count_;
  const std::vector<ParameterRun> counted_;
  Optimizer optimizer_;
  int parts_ = 0;  // partial sums of all runs
  std::unique_ptr<DeviceArray<float>> partials_;
  DeviceArray<float> squares_{1}, norm_{1};
};

}  // namespace

ReductionTimes Replica::reduce(Communicator* ends, const ModelPart& part, Network& network) {
  ReductionTimes times;
  if (part.place().is_whole()) return times;
  const Nanos begin = now_ns();
  if (ends != nullptr) {
    // After the reduction over the data, and of two addends: the same bits on both.
    const ParameterRun shared = part.shared_by_ends();
    ends->all_reduce(stream_, network.gradients() + shared.begin * sizeof(float), shared.count);
    times.collective_ns = times.exposed_ns =
        ends->link_ns(Operation::kAllReduce, shared.count * sizeof(float));
    times.bus_bytes = static_cast<double>(shared.count * sizeof(float));  // 2 (n-1)/n, two ends
  }
  comm_.all_reduce(stream_, network.extra(0), kExtraCount);
  stream_.synchronize();
  times.wall_ns = now_ns() - begin;
  return times;
}

float Replica::max_of(float mine) {
  stream_.upload(value_.at(), &mine, sizeof mine);
  comm_.all_reduce(stream_, value_.at(), 1, DataType::kFloat32, Reduction::kMax);
  stream_.download(&mine, value_.at(), sizeof mine);
  stream_.synchronize();
  return mine;
}

std::vector<float> Replica::weights_gather(const ModelPart& part, std::span<const float> mine) {
  std::vector<float> whole(part.whole().parameter_count());
  part.place_into(mine, whole);
  if (part.place().is_whole()) return whole;
  // What one rank has is zero on all others, so the sum is what it has.
  const DeviceArray<float> chunk(std::min(kGatherFloats, whole.size()));
  for (std::size_t at = 0; at < whole.size();) {
    const std::size_t count = std::min(chunk.size(), whole.size() - at);
    stream_.upload(chunk.at(), &whole[at], count * sizeof(float));
    comm_.reduce(stream_, chunk.at(), count, DataType::kFloat32, Reduction::kSum, 0);
    stream_.download(&whole[at], chunk.at(), count * sizeof(float));
    stream_.synchronize();
    at += count;
  }
  return whole;
}

void Replica::state_gather(const ModelPart& part, TrainState& state) {
  state.parameters = weights_gather(part, state.parameters);
  for (auto& array : state.optimizer.arrays) array = weights_gather(part, array);
}

void state_cut(const ModelPart& part, TrainState& state) {
  state.parameters = part.cut(std::move(state.parameters));
  for (auto& array : state.optimizer.arrays) array = part.cut(std::move(array));
}

std::unique_ptr<WeightUpdate> replica_update(Communicator& comm, Stream& stream,
                                             const OptimizerSettings& settings,
                                             CUdeviceptr gradients, CUdeviceptr parameters,
                                             const ModelPart& part) {
  return std::make_unique<ReplicaUpdate>(comm, stream, settings, gradients, parameters, part);
}

}  // namespace sluice::train
