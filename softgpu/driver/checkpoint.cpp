// Lock, checkpoint and unlock of this process; see checkpoint.h. Restore is in
// checkpoint_restore.cpp.
#include "softgpu/driver/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "softgpu/driver/checkpoint_state.h"
#include "softgpu/driver/gate.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {
namespace {

constexpr auto kStateLook = std::chrono::microseconds(200);

bool context_idle_now(Context& context) {
  std::vector<StreamRef> all;
  {
    const std::lock_guard lock(context.order);
    all = context.streams;
    all.push_back(context.legacy);
  }
  return std::all_of(all.begin(), all.end(), [](const StreamRef& stream) {
    const OpRef last = stream == nullptr ? nullptr : stream->last();
    return last == nullptr || Stream::ready(last);
  });
}

bool work_complete() {
  const auto contexts = Registry<Context>::all().list();
  return std::all_of(contexts.begin(), contexts.end(),
                     [](const ContextRef& context) { return context_idle_now(*context); });
}

/// What cannot be taken away from a process and given to it again: memory that the host reads while
/// the device is gone, and memory that other processes see too.
bool has_unsupported() {
  const bool memory = MemoryMap::get().any([](const Allocation& a) {
    return a.kind == MemoryKind::kManaged || a.kind == MemoryKind::kImported ||
           a.kind == MemoryKind::kExternal;
  });
  if (memory) return true;
  for (const auto& module : Registry<Module>::all().list())
    if (module->has_managed()) return true;
  for (const auto& gpu : Process::get().gpus())
    if (gpu->client != device::kNone && gpu->model.client_shares(gpu->client)) return true;
  return false;
}

}  // namespace

CheckpointState& checkpoint_progress() {
  static auto* state = new CheckpointState;
  return *state;
}

CUprocessState checkpoint_state() { return checkpoint_progress().state; }

CUresult checkpoint_lock(std::uint32_t timeout_ms, const std::function<bool()>& abandoned) {
  CheckpointState& progress = checkpoint_progress();
  if (progress.state != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
  const auto start = std::chrono::steady_clock::now();
  gate_close();
  // Calls that are inside may submit work still, so they are waited for first.
  while (!gate_empty() || !work_complete()) {
    const bool late = timeout_ms != 0 && std::chrono::steady_clock::now() - start >=
                                             std::chrono::milliseconds(timeout_ms);
    if (late || abandoned()) {
      gate_open();
      return CUDA_ERROR_NOT_READY;
    }
    std::this_thread::sleep_for(kStateLook);
  }
  progress.state = CU_PROCESS_STATE_LOCKED;
  return CUDA_SUCCESS;
}

CUresult checkpoint_take() {
  CheckpointState& progress = checkpoint_progress();
  if (progress.state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  if (has_unsupported()) return CUDA_ERROR_NOT_SUPPORTED;
  for (const auto& gpu : Process::get().gpus())
    if (gpu->client != device::kNone) gpu->model.client_suspend(gpu->client);
  progress.state = CU_PROCESS_STATE_CHECKPOINTED;
  return CUDA_SUCCESS;
}

CUresult checkpoint_unlock() {
  CheckpointState& progress = checkpoint_progress();
  if (progress.state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  progress.state = CU_PROCESS_STATE_RUNNING;
  gate_open();
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
