// The checkpoints of a job before its ranks run: one job at a time writes a directory, and what is
// wrong with it is said at the start.
#pragma once

#include <unistd.h>

#include "trainer/train/plan.h"

namespace sluice::train {

/// The lock of the directory of checkpoints, where there is one; ranks inherit it.
class CheckpointLock {
 public:
  explicit CheckpointLock(int fd) : fd_(fd) {}
  ~CheckpointLock() {
    if (fd_ >= 0) close(fd_);
  }
  CheckpointLock(const CheckpointLock&) = delete;
  CheckpointLock& operator=(const CheckpointLock&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

/// What is wrong with the checkpoints that the options name is said before any rank runs. -1 where
/// there is nothing to lock.
int checkpoints_open(const TrainOptions& options, const TrainPlan& plan, bool is_first);

}  // namespace sluice::train
