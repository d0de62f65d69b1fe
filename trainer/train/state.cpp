// See state.h.
#include "trainer/train/state.h"

#include <algorithm>

namespace sluice::train {

std::vector<float> errors_of(const TrainState& state, int rank, int rank_count) {
  std::vector<float> sum;
  for (auto from = static_cast<std::size_t>(rank); from < state.errors.size();
       from += static_cast<std::size_t>(rank_count)) {
    const std::vector<float>& one = state.errors[from];
    sum.resize(one.size(), 0.0f);
    for (std::size_t i = 0; i < one.size(); ++i) sum[i] += one[i];
  }
  return sum;
}

TrainState StateMover::take() {
  TrainState state;
  state.rank_count = parts_.rank_count;
  state.parameters = parts_.network.parameters_download();
  state.optimizer = parts_.update.state_take();
  if (parts_.scaler != nullptr) state.loss_scale = parts_.scaler->state();
  state.warm = parts_.reduction.warm_take(parts_.stream);
  const CUdeviceptr mine = parts_.reduction.errors();
  for (int rank = 0; mine != 0 && rank < parts_.rank_count; ++rank) {
    std::vector<float>& one = state.errors.emplace_back(count());
    if (rank == parts_.rank)
      parts_.stream.copy(parts_.network.gradients(), mine, count() * sizeof(float));
    floats_share(one, rank);
  }
  return state;
}

/// Of what is in root's array of gradients.
void StateMover::floats_share(std::vector<float>& values, int root) {
  const CUdeviceptr through = parts_.network.gradients();
  parts_.comm.broadcast(parts_.stream, through, values.size(), DataType::kFloat32, root);
  parts_.stream.download(values.data(), through, values.size() * sizeof(float));
  parts_.stream.synchronize();
}

/// All of a state that is no array.
struct StateMover::Head {
  std::uint64_t step, epoch, offset, samples;
  std::uint64_t rank_count, arrays, errors, warm;
  std::int64_t optimizer_steps;
  std::uint64_t scaled;
  LossScaleState loss_scale;
};

void StateMover::share(TrainState& state, int root) {
  const LossScaleState scale = state.loss_scale.value_or(LossScaleState());
  Head head{state.step,
            state.position.epoch,
            state.position.offset,
            state.samples,
            static_cast<std::uint64_t>(state.rank_count),
            state.optimizer.arrays.size(),
            state.errors.size(),
            state.warm.empty() ? 0U : 1U,
            state.optimizer.steps,
            state.loss_scale.has_value(),
            scale};
  const DeviceArray<Head> through(1);
  parts_.stream.upload(through.at(), &head, sizeof head);
  parts_.comm.broadcast(parts_.stream, through.at(), sizeof head, DataType::kByte, root);
  parts_.stream.download(&head, through.at(), sizeof head);
  parts_.stream.synchronize();
  state.step = head.step;
  state.position = {head.epoch, head.offset};
  state.samples = head.samples;
  state.rank_count = static_cast<int>(head.rank_count);
  state.optimizer.steps = static_cast<int>(head.optimizer_steps);
  state.loss_scale.reset();
  if (head.scaled != 0) state.loss_scale = head.loss_scale;
  state.optimizer.arrays.resize(head.arrays);
  state.errors.resize(head.errors);

  std::vector<std::vector<float>*> all{&state.parameters};
  for (auto& array : state.optimizer.arrays) all.push_back(&array);
  for (auto& array : state.errors) all.push_back(&array);
  if (head.warm != 0) all.push_back(&state.warm);
  for (std::vector<float>* values : all) {
    values->resize(count());
    if (parts_.rank == root) {
      parts_.stream.upload(parts_.network.gradients(), values->data(), count() * sizeof(float));
      parts_.stream.synchronize();
    }
    floats_share(*values, root);
  }
}

void StateMover::put(const TrainState& state) {
  parts_.network.parameters_upload(state.parameters);
  // A job that begins: the optimizer is new as well.
  if (!state.optimizer.arrays.empty()) parts_.update.state_put(state.optimizer);
  if (parts_.scaler != nullptr && state.loss_scale) parts_.scaler->state_set(*state.loss_scale);
  if (!state.warm.empty()) parts_.reduction.warm_put(parts_.stream, state.warm);
  const CUdeviceptr mine = parts_.reduction.errors();
  if (mine == 0) return;
  const std::vector<float> errors = errors_of(state, parts_.rank, parts_.rank_count);
  if (errors.empty()) {
    parts_.stream.zero(mine, count());
  } else {
    parts_.stream.upload(mine, errors.data(), errors.size() * sizeof(float));
  }
  parts_.stream.synchronize();
}

}  // namespace sluice::train
