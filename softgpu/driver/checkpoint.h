// This process as others lock, checkpoint and restore it. A thread answers requests on a socket of
// an abstract name (the devices, the pid and its namespace), which ends with the process however it
// ends. Locked: the gate is closed and all submitted work has completed. Checkpointed: what the
// process holds is given back to its devices; the contents are host memory already and stay where
// they are. See api_checkpoint.cpp for the caller's side.
#pragma once

#include <functional>

#include "softgpu/driver/state.h"

namespace softgpu::driver {

enum class CheckpointOperation : std::uint32_t {
  kState,
  kThread,
  kLock,
  kCheckpoint,
  kRestore,
  kUnlock
};

struct CheckpointRequest {
  CheckpointOperation operation = CheckpointOperation::kState;
  std::uint32_t timeout_ms = 0;  // kLock; 0 = none
  std::uint32_t pair_count = 0;  // kRestore
  CUcheckpointGpuPair pairs[device::kDevicesMax] = {};
};

struct CheckpointReply {
  std::int32_t result = CUDA_ERROR_UNKNOWN;
  std::int32_t value = 0;  // kState, kThread
};

/// Starts the thread that answers. Without it (no socket to be had) the process cannot be locked.
void checkpoint_serve();
/// In the child of a fork: the name is the parent's.
void checkpoint_forked();
/// Asks the process, which must be of this network namespace. INVALID_VALUE: there is none of this
/// pid that uses these devices, or it ended.
CUresult checkpoint_ask(int pid, const CheckpointRequest& request, CheckpointReply& reply);

/// The operations themselves, on the answering thread. `abandoned` tells that nobody waits for the
/// lock any more.
CUresult checkpoint_lock(std::uint32_t timeout_ms, const std::function<bool()>& abandoned);
CUresult checkpoint_take();
CUresult checkpoint_restore(const CheckpointRequest& request);
CUresult checkpoint_unlock();
CUprocessState checkpoint_state();

}  // namespace softgpu::driver
