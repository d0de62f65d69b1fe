// A job's steps as a picture: --timeline FILE is a trace that chrome://tracing and Perfetto show,
// with five tracks for every rank. Each rank writes a part of its own, step by step, and the
// launcher makes one file of the parts at the end; what a killed rank has written is in it.
//
// One clock, CLOCK_MONOTONIC as in the log. Data wait, host and evaluation are the host's own
// times. Compute and communication are the device's, set into the host's clock at the first step;
// the device's clock runs as the host's does, but on software GPUs without pacing it is modelled
// time, which runs by itself.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/device/device.h"
#include "trainer/train/options.h"
#include "trainer/train/reduction.h"

namespace sluice::train {

/// A rank's part. Without --timeline, and after --timeline-steps steps, every call does nothing.
class Timeline {
 public:
  /// `stream` is the one that computes; it must outlive this. `steps_made`: by this rank before,
  /// when others were lost; their part of the trace is there already.
  Timeline(const TrainOptions& options, const Stream& stream, std::uint64_t steps_made);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void step_begin();
  /// The last backward pass of the step is about to be put on the stream.
  void backward_begin();
  /// The backward pass is on the stream; the host waits for the gradients.
  void gradients_wait();
  /// The gradients are reduced.
  void gradients_here();

  /// What the step's log line has, and where on the device it is from.
  struct StepFacts {
    std::uint64_t step;
    Nanos begin_ns, end_ns;  // of the host
    Nanos stall_ns;
    const Event &compute_begin, &compute_end, &update_begin, &update_end;
    const GradientReducer* reducer;  // null: no other rank has these weights
    bool has_ranks;                  // there are others to wait for
    Nanos gather_ns;                 // of gathering the weights, right after the update
  };
  /// Everything on the stream has passed.
  void step_end(const StepFacts& facts);
  void evaluation(std::uint64_t step, Nanos begin_ns, Nanos end_ns);

 private:
  enum class Track : std::uint8_t { kWait, kHost, kCompute, kCommunication, kEvaluation };

  void put(Track track, std::string_view name, std::uint64_t step, Nanos begin_ns, Nanos end_ns);
  void flush();
  bool recording() const { return fd_ >= 0 && steps_left_ > 0; }

  const Stream& stream_;
  const int slot_;  // a rank keeps its own whoever is lost
  const bool accumulates_;
  int fd_ = -1;
  std::uint64_t steps_left_;
  std::uint64_t evaluations_left_;  // as many
  Nanos device_ns_ = 0;             // where in the host's clock the step's origin is
  Event origins_[2];                // of this step and the one before, in turn
  std::size_t origin_ = 0;
  bool anchored_ = false;
  Event backward_begin_;
  Nanos wait_ns_ = 0, here_ns_ = 0;
  std::string text_;  // of this step
};

/// Before the ranks start: a trace without events, so that what cannot be written is said at once,
/// and FILE is never an older job's. Removes the parts that an older job may have left.
void timeline_prepare(const std::string& path, int rank_count);
/// After the ranks have ended: one file of their parts. Lines that are not whole, because their
/// writer was killed, are left out.
void timeline_merge(const std::string& path, int rank_count);

}  // namespace sluice::train
