// Binding of threads to primary contexts: see context.h.
#include "softgpu/runtime/context.h"

#include <atomic>
#include <map>
#include <mutex>

namespace softgpu::runtime {
namespace {

struct ThreadBinding {
  int device = 0;
  CUcontext bound = nullptr;  // the primary context the runtime made current here, if any
  unsigned generation = 0;    // resets seen by this thread
};
thread_local ThreadBinding t_binding;

struct Primaries {
  std::mutex mutex;
  std::map<int, CUcontext> retained;
  std::atomic<unsigned> generation{0};  // counts device resets: bindings made before one are stale
};

Primaries& primaries() {
  static auto* const once = new Primaries;
  return *once;
}

cudaError_t bind_primary(int device) {
  CUcontext context = nullptr;
  const unsigned generation = primaries().generation.load();
  if (const cudaError_t error = primary_context(device, &context); error != cudaSuccess)
    return error;
  if (const CUresult result = driver().CtxSetCurrent(context); result != CUDA_SUCCESS) {
    return static_cast<cudaError_t>(result);
  }
  t_binding = {device, context, generation};
  return cudaSuccess;
}

bool binding_stale(CUcontext current) {
  return current == t_binding.bound && t_binding.generation != primaries().generation.load();
}

}  // namespace

cudaError_t check_device(int device) {
  int count = 0;
  if (const CUresult result = driver().DeviceGetCount(&count); result != CUDA_SUCCESS) {
    return static_cast<cudaError_t>(result);
  }
  return device >= 0 && device < count ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t primary_context(int device, CUcontext* context) {
  Primaries& all = primaries();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (const auto known = all.retained.find(device); known != all.retained.end()) {
    *context = known->second;
    return cudaSuccess;
  }
  if (const cudaError_t error = check_device(device); error != cudaSuccess) return error;
  CUdevice handle = 0;
  CUresult result = driver().DeviceGet(&handle, device);
  if (result == CUDA_SUCCESS) result = driver().DevicePrimaryCtxRetain(context, handle);
  if (result == CUDA_SUCCESS) all.retained[device] = *context;
  return static_cast<cudaError_t>(result);
}

cudaError_t context_ready() {
  if (const cudaError_t error = driver_ready(); error != cudaSuccess) return error;
  CUcontext current = nullptr;
  if (const CUresult result = driver().CtxGetCurrent(&current); result != CUDA_SUCCESS) {
    return static_cast<cudaError_t>(result);
  }
  if (current != nullptr && !binding_stale(current)) return cudaSuccess;
  return bind_primary(t_binding.device);
}

cudaError_t current_device(int* device) {
  CUcontext current = nullptr;
  CUdevice found = 0;
  if (driver().CtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr &&
      !binding_stale(current) && driver().CtxGetDevice(&found) == CUDA_SUCCESS) {
    *device = found;
  } else {
    *device = t_binding.device;
  }
  return cudaSuccess;
}

cudaError_t select_device(int device) {
  if (const cudaError_t error = check_device(device); error != cudaSuccess) return error;
  t_binding.device = device;
  return bind_primary(device);
}

cudaError_t reset_current_device() {
  int device = 0;
  if (const cudaError_t error = current_device(&device); error != cudaSuccess) return error;
  Primaries& all = primaries();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.retained.erase(device) == 0) return cudaSuccess;
  all.generation.fetch_add(1);
  (void)driver().CtxSetCurrent(nullptr);
  t_binding.bound = nullptr;
  CUdevice handle = 0;
  CUresult result = driver().DeviceGet(&handle, device);
  if (result == CUDA_SUCCESS) result = driver().DevicePrimaryCtxReset(handle);
  return static_cast<cudaError_t>(result);
}

}  // namespace softgpu::runtime
