// One stage of a pipeline at work: takes activations from the stage before and gradients from the
// stage after, in the order of pipeline_schedule.h, and passes its own on. What an operation has to
// send and what the next one has to receive go out together, so that neighbours that send to each
// other never wait for each other.
//
// Time. GPUs of hardware share one: a stage that waits is idle, and events say how long. Software
// GPUs each have a clock of their own that stands still while they wait, so every message carries
// its sender's, and the receiver lets its stream's time pass until the message can have come. All
// stages count from the beginning of the step, so the figures are those of one timeline.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/model/network.h"
#include "trainer/train/pipeline_schedule.h"

namespace sluice::train {

/// Of one stage in one step, in the device's time.
struct PipelineTimes {
  Nanos busy_ns = 0;  // computing
  Nanos end_ns = 0;   // from the step's beginning to the end of the stage's last operation
  Nanos wall_ns = 0;  // of this process, that it spent with messages and waiting for them

  /// What the stage waited for others.
  Nanos wait_ns() const { return end_ns - busy_ns; }
};

class Pipeline {
 public:
  /// The ranks of `comm` are the stages. Everything must outlive this.
  Pipeline(Communicator& comm, Stream& stream, Network& network, int stage, int stage_count);

  /// What the stage is to do with a micro-batch, in the slot of the network that is in use.
  struct Work {
    int micro_count;
    std::function<int(int micro)> count;  // samples; at least one
    std::function<void(int micro)> forward, backward;
  };
  /// One step, over all micro-batches. Waits for all but the last operation.
  void step(const Work& work);
  /// Of the last step; waits for its end.
  PipelineTimes times();
  /// One batch, uploaded to the network's first slot, forward through all stages: `forward`
  /// computes this stage's.
  void forward(int count, const std::function<void()>& forward);

 private:
  using Way = PipelineOp::Way;

  std::size_t floats(int count) const {
    return static_cast<std::size_t>(count) * network_.boundary().floats;
  }
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == stage_count_ - 1; }
  /// The stage that gives this operation what it needs, and the one that gets what it makes; -1 =
  /// none.
  int giver_of(Way way) const;
  int taker_of(Way way) const;
  void exchange(const PipelineOp* done, const PipelineOp* next,
                const std::function<int(int micro)>& count);
  void message_put(Way way, int count);
  void message_take(Way way, int count);
  Nanos now();

  Communicator& comm_;
  Stream& stream_;
  Network& network_;
  const int stage_, stage_count_;
  const bool modelled_;
  // Messages: what crosses a boundary, then the sender's time where it is modelled.
  DeviceArray<float> out_, in_;
  Event begin_, now_, end_;
  std::vector<std::unique_ptr<Event>> waits_;  // begin and end of every exchange
  std::size_t waits_used_ = 0;
  Nanos wall_ns_ = 0;  // of a step; where the link is modelled, in which events do not count it
};

}  // namespace sluice::train
