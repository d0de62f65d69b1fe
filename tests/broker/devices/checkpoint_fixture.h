// What tests of checkpoint jobs share: waiting for answers as a daemon does, on the one descriptor.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <utility>
#include <vector>

#include "broker/devices/checkpoint.h"

namespace sluice::devices {

constexpr int kCheckpointPatience_ms = 60'000;

/// Waits until the descriptor is readable, then collects; what has ended is appended.
inline void checkpoint_turn(Checkpoints& checkpoints, std::vector<CheckpointDone>* done) {
  pollfd waited{checkpoints.descriptor(), POLLIN, 0};
  ASSERT_EQ(poll(&waited, 1, kCheckpointPatience_ms), 1) << "nothing happens";
  for (CheckpointDone& one : checkpoints.collect()) done->push_back(std::move(one));
}

inline std::vector<CheckpointDone> checkpoint_wait(Checkpoints& checkpoints, std::size_t count) {
  std::vector<CheckpointDone> done;
  while (done.size() < count && !testing::Test::HasFatalFailure())
    checkpoint_turn(checkpoints, &done);
  return done;
}

inline CheckpointResult checkpoint_run(Checkpoints& checkpoints, CheckpointJob job) {
  const CheckpointId id = checkpoints.start(std::move(job));
  std::vector<CheckpointDone> done = checkpoint_wait(checkpoints, 1);
  if (done.size() != 1 || done[0].id != id) {
    ADD_FAILURE() << "not the answer to this job";
    return {};
  }
  return std::move(done[0].result);
}

/// "checkpointed,gone,..." in the order of the job.
inline std::string checkpoint_states(const CheckpointResult& result) {
  std::string text;
  for (const CheckpointedProcess& process : result.processes)
    text += (text.empty() ? "" : ",") + std::string(checkpoint_state_name(process.state));
  return text;
}

}  // namespace sluice::devices
