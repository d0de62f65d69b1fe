// One checkpoint job under way, as the broker knows it: the helper that works on it and the result
// so far. Reads what helpers say; starting, killing and waiting are the pool's (checkpoint.cpp).
#pragma once

#include <cstdint>
#include <string>

#include "broker/devices/checkpoint.h"
#include "broker/devices/checkpoint_lines.h"
#include "broker/devices/child.h"

namespace sluice::devices {

/// One helper and what it has said that is not a line yet.
struct CheckpointHelper {
  ChildProcess child;
  Fd pidfd;
  bool watched = false;  // its end is an event
  std::string unread;
  bool ended_well = false;  // it said "end"
  CheckpointLine last;      // the call it was in when it was last heard of
  std::int64_t deadline_ns = 0;
};

struct CheckpointTask {
  CheckpointId id = 0;
  CheckpointJob job;
  CheckpointResult result;
  std::int64_t start_ns = 0;
  bool afterwards = false;  // the second helper is at work
  bool touched = false;     // a process may have been locked or more
  bool cancelled = false;
  CheckpointHelper helper;
};

/// What the helper to be started now has to do.
CheckpointOrder checkpoint_order(const CheckpointTask& task);
/// Takes in what the helper has said; never blocks. False at the end of its output.
bool checkpoint_output_read(CheckpointTask* task);
/// One more clause of what went wrong; nothing is said twice.
void checkpoint_text_add(CheckpointResult* result, const std::string& text);
/// The helper was gone before it was done, for this reason: puts down which call it was in.
void checkpoint_break_put(CheckpointTask* task, const std::string& why);

}  // namespace sluice::devices
