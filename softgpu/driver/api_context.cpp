// Entry points: primary and created contexts, the thread's stack of them, peers. What a context
// tells of itself and its limits are in api_context_limits.cpp.
#include <algorithm>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/pool.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

CUresult context_open(Gpu& gpu, unsigned flags, bool primary, ContextRef& context) {
  context = std::make_shared<Context>(gpu, flags, primary);
  CUresult result = context->open();
  if (result != CUDA_SUCCESS) return result;
  Registry<Context>::all().add_as(context->handle(), context);
  result = libraries_load_eager(context);
  if (result != CUDA_SUCCESS) context->close();
  return result;
}

CUresult context_create(CUcontext* out, unsigned flags, CUdevice device, const char* name) {
  Gpu* gpu = nullptr;
  CUresult result = enter_gpu(device, gpu, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || !context_flags_valid(flags)) return CUDA_ERROR_INVALID_VALUE;
  ContextRef context;
  result = context_open(*gpu, flags, false, context);
  if (result != CUDA_SUCCESS) return result;
  thread_state().stack.push_back(context->handle());
  *out = context->handle();
  return CUDA_SUCCESS;
}

/// Retaining, releasing and resetting primary contexts happen one at a time: opening and closing
/// one takes the GPU's own lock.
std::mutex& primaries_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

void primary_close(Gpu& gpu) {
  ContextRef context;
  {
    const std::lock_guard lock(gpu.mutex);
    context.swap(gpu.primary);
  }
  if (context != nullptr) context->close();
}

CUresult context_destroy(CUcontext handle) {
  ContextRef context;
  const CUresult result =
      handle == nullptr ? CUDA_ERROR_INVALID_CONTEXT : context_find(handle, context);
  if (result != CUDA_SUCCESS) return result;
  if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  auto& stack = thread_state().stack;
  if (!stack.empty() && stack.back() == handle) stack.pop_back();
  context->close();
  return CUDA_SUCCESS;
}

/// Waits for all streams of the context.
CUresult context_synchronize(const ContextRef& context) {
  const CUresult result = capture_context_check(*context);
  if (result != CUDA_SUCCESS) return result;
  context->wait_all();
  context->print_flush();
  Pool::synchronized(*context);
  return context->status();
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = enter_gpu(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard one_at_a_time(primaries_mutex());
  std::unique_lock lock(gpu->mutex);
  if (gpu->primary == nullptr) {
    const unsigned flags = gpu->primary_flags;
    lock.unlock();
    ContextRef context;
    const CUresult opened = context_open(*gpu, flags, true, context);
    if (opened != CUDA_SUCCESS) return opened;
    lock.lock();
    gpu->primary = context;
  }
  ++gpu->primary_references;
  *out = gpu->primary->handle();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = enter_gpu(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard one_at_a_time(primaries_mutex());
  {
    const std::lock_guard lock(gpu->mutex);
    if (gpu->primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--gpu->primary_references > 0) return CUDA_SUCCESS;
  }
  primary_close(*gpu);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = enter_gpu(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  // Those who retained it still release it: a reset does not count as a release.
  const std::lock_guard one_at_a_time(primaries_mutex());
  primary_close(*gpu);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  Gpu* gpu = nullptr;
  const CUresult result = enter_gpu(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (!context_flags_valid(flags)) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(gpu->mutex);
  gpu->primary_flags = flags;
  if (gpu->primary != nullptr) gpu->primary->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  Gpu* gpu = nullptr;
  const CUresult result = enter_gpu(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(gpu->mutex);
  *flags = gpu->primary != nullptr ? gpu->primary->flags.load() : gpu->primary_flags;
  *active = gpu->primary != nullptr ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* out, unsigned int flags, CUdevice device) {
  return context_create(out, flags, device, __func__);
}

// Limiting a context to some SMs exists under MPS only (cuda.h, CU_EXEC_AFFINITY_TYPE_SM_COUNT).
CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam* affinity, int count,
                        unsigned int flags, CUdevice device) {
  if (count < 0 || (count > 0) != (affinity != nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (count > 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return context_create(out, flags, device, __func__);
}

CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* params, unsigned int flags,
                        CUdevice device) {
  if (params != nullptr && params->numExecAffinityParams > 0)
    return params->execAffinityParams == nullptr ? CUDA_ERROR_INVALID_VALUE
                                                 : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (params != nullptr && params->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return context_create(out, flags, device, __func__);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam* out, CUexecAffinityType) {
  ContextRef context;
  const CUresult result = enter_failed(context);
  if (result != CUDA_SUCCESS) return result;
  return out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  const CUresult result = enter_any();
  return result == CUDA_SUCCESS ? context_destroy(handle) : result;
}

CUresult cuCtxAttach(CUcontext* out, unsigned int flags) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(context->order);
  ++context->attached;
  *out = context->handle();
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext handle) {
  ContextRef context;
  const CUresult result = enter_failed(context);
  if (result != CUDA_SUCCESS) return result;
  if (handle != context->handle() || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  {
    const std::lock_guard lock(context->order);
    if (--context->attached > 0) return CUDA_SUCCESS;
  }
  return context_destroy(handle);
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (handle != nullptr && !context_bindable(handle)) return CUDA_ERROR_INVALID_CONTEXT;
  auto& stack = thread_state().stack;
  if (!stack.empty()) stack.pop_back();
  if (handle != nullptr) stack.push_back(handle);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* out) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& stack = thread_state().stack;
  *out = stack.empty() ? nullptr : stack.back();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (handle == nullptr || !context_bindable(handle)) return CUDA_ERROR_INVALID_CONTEXT;
  thread_state().stack.push_back(handle);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  auto& stack = thread_state().stack;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  ContextRef context;
  const CUresult result = enter_failed(context);
  if (result != CUDA_SUCCESS) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = context->gpu.ordinal;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ContextRef context;
  result = context_find(handle, context);
  if (result == CUDA_SUCCESS) *device = context->gpu.ordinal;
  return result;
}

CUresult cuCtxSynchronize() {
  ContextRef context;
  const CUresult result = enter(context);
  return result == CUDA_SUCCESS ? context_synchronize(context) : result;
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  ContextRef context;
  result = context_find(handle, context);
  return result == CUDA_SUCCESS ? context_synchronize(context) : result;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned int flags) {
  ContextRef context, peer;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer_handle == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  result = context_find(peer_handle, peer);
  if (result != CUDA_SUCCESS) return result;
  if (&peer->gpu == &context->gpu) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const std::lock_guard lock(context->order);
  return context->peers.insert(peer->id).second ? CUDA_SUCCESS
                                                : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer_handle) {
  ContextRef context, peer;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (peer_handle == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  result = context_find(peer_handle, peer);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(context->order);
  return context->peers.erase(peer->id) > 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
