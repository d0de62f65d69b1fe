// The sums between the ranks of one tensor-parallel group, which a layer's passes wait for, and
// what they take: nothing hides them, so all of it is exposed communication.
#pragma once

#include <memory>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/train/reduction.h"

namespace sluice::train {

class TensorSums {
 public:
  /// `comm` and `stream` must outlive it; `modelled`: the link is, so its time is known.
  TensorSums(Communicator& comm, Stream& stream, int rank_count, bool modelled);

  /// data [count] becomes the sum over the group, for what comes after it on the stream.
  void sum(CUdeviceptr data, std::size_t count);
  /// Of the sums since this was asked last; waits for them. On software GPUs the link's modelled
  /// time, without the copies to the host and back that Gloo makes; on hardware the device's, by
  /// events, what a group waits for its slowest rank included.
  ReductionTimes take();

 private:
  struct Span {
    Event begin, end;
  };

  Communicator& comm_;
  Stream& stream_;
  const int rank_count_;
  const bool modelled_;
  ReductionTimes since_;                      // what is known without events
  std::vector<std::unique_ptr<Span>> spans_;  // on hardware
  std::size_t spans_used_ = 0;
};

}  // namespace sluice::train
