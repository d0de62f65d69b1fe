// See keeper.h.
#include "trainer/train/keeper.h"

#include <algorithm>
#include <cstdio>

namespace sluice::train {

CheckpointIdentity StateKeeper::identity() const {
  return checkpoint_identity(parts_.options, parts_.plan.shape, parts_.options.place.rank_count,
                             parts_.train_count);
}

StateMover StateKeeper::mover() const {
  return StateMover({*parts_.groups.data, parts_.stream, parts_.network, *parts_.update,
                     parts_.reduction, parts_.scaler,
                     parts_.plan.grid.data_of(parts_.options.place.rank), parts_.plan.grid.data});
}

TrainState StateKeeper::found() const {
  TrainState state;
  if (parts_.worker.commit) {
    state = *parts_.worker.commit;
  } else if (parts_.options.faults.resume) {
    // The launcher has said what there is to say.
    auto found = parts_.worker.checkpoints.newest(identity(), [](const std::string&) {});
    if (found) state = std::move(found->state);
  }
  if (state.parameters.empty()) state.parameters = parts_.plan.shape.draw(parts_.options.seed);
  return state;
}

const TrainState& StateKeeper::begin() {
  // Ranks that have a part find the whole by themselves, and keep their part of it.
  if (parts_.options.place.rank == parts_.root || is_split() || is_async()) first_ = found();
  put();
  if (parts_.options.faults.is_elastic()) parts_.worker.commit = first_;
  return first_;
}

void StateKeeper::put() {
  if (is_async()) {
    if (parts_.update != nullptr)
      mover().put(first_);
    else
      parts_.network.parameters_upload(first_.parameters);
    served_ = first_.step;
    return;
  }
  StateMover all = mover();
  if (is_split()) {
    state_cut(parts_.plan.part, first_);
  } else {
    all.share(first_, parts_.root);
  }
  all.put(first_);
}

/// On rank 0 that of the whole model; ranks of other copies than its own have nothing to add.
TrainState StateKeeper::take() {
  if (is_split() && parts_.plan.grid.data_of(parts_.options.place.rank) > 0) return {};
  TrainState state = mover().take();
  state.rank_count = parts_.options.place.rank_count;
  if (is_split()) parts_.replica.state_gather(parts_.plan.part, state);
  return state;
}

void StateKeeper::keep(std::uint64_t step, const DataPosition& position, bool is_last) {
  const FaultOptions& faults = parts_.options.faults;
  const bool every = faults.checkpoint_every > 0 && step % faults.checkpoint_every == 0;
  const bool writes = !faults.checkpoint.empty() && (every || is_last);
  if (!writes && !faults.commit_due(step)) return;
  Worker& worker = parts_.worker;
  const Heartbeat::Waiting waiting(worker.heartbeat);
  TrainState state = take();
  state.step = step;
  state.position = position;
  state.samples = worker.line.job_samples;
  worker.heartbeat.broken_check();
  if (writes && parts_.options.place.rank == 0) checkpoint_write(state, is_last);
  if (faults.is_elastic()) worker.commit = std::move(state);
}

std::vector<std::uint64_t> StateKeeper::clocks() const {
  const auto workers =
      static_cast<std::size_t>(parts_.options.worker_count(parts_.options.place.rank_count));
  const std::vector<std::uint64_t>& kept = first_.clocks;
  // Those of as many workers, within the bound of now; else all begin where the slowest was.
  if (kept.size() == workers &&
      std::ranges::max(kept) - std::ranges::min(kept) <= parts_.options.staleness)
    return kept;
  return std::vector<std::uint64_t>(workers, first_.step);
}

std::uint64_t StateKeeper::own_steps() const {
  const int rank = parts_.options.place.rank;
  if (!is_async() || rank == 0) return first_.step;
  return clocks()[static_cast<std::size_t>(rank - 1)];
}

void StateKeeper::keep_served(const std::vector<std::uint64_t>& clocks, const Feed& feed,
                              bool is_last) {
  const FaultOptions& faults = parts_.options.faults;
  if (faults.checkpoint.empty()) return;
  const std::uint64_t slowest = std::ranges::min(clocks);
  const std::uint64_t every = faults.checkpoint_every;
  const bool due = every > 0 && slowest / every > served_ / every;
  if (!due && !is_last) return;
  served_ = slowest;
  TrainState state = take();
  state.step = slowest;
  state.clocks = clocks;
  state.position = feed.position_after(slowest - first_.step);
  for (const std::uint64_t clock : clocks) {
    const DataPosition position = feed.position_after(clock - first_.step);
    state.samples += position.epoch * feed.train_count() + position.offset;
  }
  state.samples /= clocks.size();  // each worker has its part of every global batch
  checkpoint_write(state, is_last);
}

/// A disk that is full for a while is no reason to end the job, but for the last one.
void StateKeeper::checkpoint_write(const TrainState& state, bool is_last) {
  const Nanos begin = now_ns();
  try {
    parts_.worker.checkpoints.write(state, identity());
  } catch (const Failure& failure) {
    if (is_last) throw;
    std::fprintf(stderr, "sluice: sluice-train: no checkpoint after step %llu: %s\n",
                 static_cast<unsigned long long>(state.step), failure.what());
    return;
  }
  parts_.worker.log.write(
      JsonLine("checkpoint").add("step", state.step).add("duration_ns", now_ns() - begin));
}

}  // namespace sluice::train
