// Entry points: primary and created contexts, the thread's stack of them, limits, peers.
#include <algorithm>

#include "softgpu/driver/command.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/pool.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

using namespace softgpu::driver;

namespace {

constexpr unsigned kFlagsKnown = CU_CTX_FLAGS_MASK;

CUresult gpu_find(CUdevice device, Gpu*& gpu, const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  gpu = Process::get().gpu(device);
  return gpu == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult context_open(Gpu& gpu, unsigned flags, bool primary, unsigned version,
                      ContextRef& context) {
  context = std::make_shared<Context>(gpu, flags, primary);
  context->api_version = version;
  const CUresult result = context->open();
  if (result == CUDA_SUCCESS) Registry<Context>::all().add(context);
  return result;
}

CUresult context_create(CUcontext* out, unsigned flags, CUdevice device, unsigned version,
                        const char* name) {
  Gpu* gpu = nullptr;
  CUresult result = gpu_find(device, gpu, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || (flags & ~kFlagsKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  ContextRef context;
  result = context_open(*gpu, flags, false, version, context);
  if (result != CUDA_SUCCESS) return result;
  thread_state().stack.push_back(context->handle());
  *out = context->handle();
  return CUDA_SUCCESS;
}

void primary_drop(Gpu& gpu) {
  ContextRef context;
  {
    const std::lock_guard lock(gpu.mutex);
    context.swap(gpu.primary);
    gpu.primary_references = 0;
  }
  if (context != nullptr) context->close();
}

/// Waits for all streams of the context.
CUresult context_synchronize(const ContextRef& context) {
  CUresult result = capture_refuses(context);
  if (result != CUDA_SUCCESS) return result;
  std::vector<StreamRef> streams;
  {
    const std::lock_guard lock(context->order);
    streams = context->streams;
    streams.push_back(context->legacy);
  }
  for (const StreamRef& stream : streams)
    if (stream != nullptr) (void)Stream::wait(stream->last());
  context->print_flush();
  Pool::trim_all();
  return context->status();
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = gpu_find(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  static auto* creating = new std::mutex;  // opening a context takes the GPU's own lock
  const std::lock_guard one_at_a_time(*creating);
  std::unique_lock lock(gpu->mutex);
  if (gpu->primary == nullptr) {
    const unsigned flags = gpu->primary_flags;
    lock.unlock();
    ContextRef context;
    const CUresult opened = context_open(*gpu, flags, true, 3020, context);
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
  const CUresult result = gpu_find(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  {
    const std::lock_guard lock(gpu->mutex);
    if (gpu->primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--gpu->primary_references > 0) return CUDA_SUCCESS;
  }
  primary_drop(*gpu);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  Gpu* gpu = nullptr;
  const CUresult result = gpu_find(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  primary_drop(*gpu);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  Gpu* gpu = nullptr;
  const CUresult result = gpu_find(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  if ((flags & ~kFlagsKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(gpu->mutex);
  gpu->primary_flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  Gpu* gpu = nullptr;
  const CUresult result = gpu_find(device, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(gpu->mutex);
  *flags = gpu->primary_flags;
  *active = gpu->primary != nullptr ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* out, unsigned int flags, CUdevice device) {
  return context_create(out, flags, device, 3020, __func__);
}

CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam* affinity, int count,
                        unsigned int flags, CUdevice device) {
  if (count != 0 || affinity != nullptr) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return context_create(out, flags, device, 11040, __func__);
}

CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* params, unsigned int flags,
                        CUdevice device) {
  if (params != nullptr && params->numExecAffinityParams > 0)
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (params != nullptr && params->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return context_create(out, flags, device, 12050, __func__);
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  ContextRef context;
  result = handle == nullptr ? CUDA_ERROR_INVALID_CONTEXT : context_find(handle, context);
  if (result != CUDA_SUCCESS) return result;
  if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  auto& stack = thread_state().stack;
  if (!stack.empty() && stack.back() == handle) stack.pop_back();
  context->close();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  ContextRef context;
  if (handle != nullptr && (result = context_find(handle, context)) != CUDA_SUCCESS) return result;
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
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  ContextRef context;
  if (handle == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  result = context_find(handle, context);
  if (result == CUDA_SUCCESS) thread_state().stack.push_back(handle);
  return result;
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

CUresult cuCtxGetFlags(unsigned int* flags) {
  ContextRef context;
  const CUresult result = enter_failed(context);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  // Only flags that change nothing here may be set afterwards.
  return (flags & ~kFlagsKnown) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  ContextRef context;
  result = context_find(handle, context);
  if (result != CUDA_SUCCESS) return result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  ContextRef context;
  result = context_find(handle, context);
  if (result != CUDA_SUCCESS) return result;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = context->api_version;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (value == nullptr || limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  *value = context->limits[limit];
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, std::size_t value) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (limit == CU_LIMIT_SHMEM_SIZE || limit == CU_LIMIT_CIG_ENABLED)
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache) {
  ContextRef context;
  return enter(context);
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig) {
  ContextRef context;
  return enter(context);
}

CUresult cuCtxResetPersistingL2Cache() {
  ContextRef context;
  return enter(context);
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned int flags) {
  ContextRef context, peer;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer_handle == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  result = context_find(peer_handle, peer);
  if (result != CUDA_SUCCESS) return result;
  if (&peer->gpu == &context->gpu) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(context->order);
  return context->peers.insert(peer.get()).second ? CUDA_SUCCESS
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
  return context->peers.erase(peer.get()) > 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
