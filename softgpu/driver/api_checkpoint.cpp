// Entry points: lock, checkpoint, restore and unlock another process, or this one.
#include <algorithm>
#include <cstring>

#include "softgpu/driver/checkpoint.h"

using namespace softgpu::driver;

namespace {

template <typename T>
bool all_zero(const T& reserved) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&reserved);
  return std::all_of(bytes, bytes + sizeof reserved, [](unsigned char byte) { return byte == 0; });
}

CUresult ask(int pid, const CheckpointRequest& request, int* value = nullptr) {
  CheckpointReply reply;
  const CUresult result = checkpoint_ask(pid, request, reply);
  if (result == CUDA_SUCCESS && value != nullptr) *value = reply.value;
  return result;
}

CUresult ask(int pid, CheckpointOperation operation, int* value = nullptr) {
  CheckpointRequest request;
  request.operation = operation;
  return ask(pid, request, value);
}

}  // namespace

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  const CUresult result = Process::get().status();
  if (result != CUDA_SUCCESS) return result;
  if (tid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, CheckpointOperation::kThread, tid);
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  CUresult result = Process::get().status();
  if (result != CUDA_SUCCESS) return result;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int value = 0;
  result = ask(pid, CheckpointOperation::kState, &value);
  if (result == CUDA_SUCCESS) *state = static_cast<CUprocessState>(value);
  return result;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  const CUresult result = Process::get().status();
  if (result != CUDA_SUCCESS) return result;
  CheckpointRequest request;
  request.operation = CheckpointOperation::kLock;
  if (args != nullptr) {
    if (args->reserved0 != 0 || !all_zero(args->reserved1)) return CUDA_ERROR_INVALID_VALUE;
    request.timeout_ms = args->timeoutMs;
  }
  return ask(pid, request);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  const CUresult result = Process::get().status();
  if (result != CUDA_SUCCESS) return result;
  if (args != nullptr && !all_zero(*args)) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, CheckpointOperation::kCheckpoint);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  const CUresult result = Process::get().status();
  if (result != CUDA_SUCCESS) return result;
  CheckpointRequest request;
  request.operation = CheckpointOperation::kRestore;
  if (args != nullptr) {
    if (!all_zero(args->reserved) || args->reserved1 != 0) return CUDA_ERROR_INVALID_VALUE;
    if (args->gpuPairsCount > softgpu::device::kDevicesMax ||
        (args->gpuPairsCount > 0 && args->gpuPairs == nullptr))
      return CUDA_ERROR_INVALID_VALUE;
    request.pair_count = args->gpuPairsCount;
    std::copy_n(args->gpuPairs, request.pair_count, request.pairs);
  }
  return ask(pid, request);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  const CUresult result = Process::get().status();
  if (result != CUDA_SUCCESS) return result;
  if (args != nullptr && !all_zero(*args)) return CUDA_ERROR_INVALID_VALUE;
  return ask(pid, CheckpointOperation::kUnlock);
}
