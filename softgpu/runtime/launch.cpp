// Launches: kernels in all forms, and host functions in streams. `func` is the host address of a
// registered kernel, or a kernel handle in its place.
#include "softgpu/runtime/call.h"
#include "softgpu/runtime/launch_config.h"
#include "softgpu/runtime/registry.h"

using namespace softgpu::runtime;

namespace {

/// True when no device could run this shape; the driver's "invalid value" then means "invalid
/// configuration".
bool shape_impossible(const Driver& api, dim3 grid, dim3 block) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0)
    return true;
  int device = 0;
  if (current_device(&device) != cudaSuccess) return false;
  const auto limit = [&](CUdevice_attribute attribute) {
    int value = 0;
    (void)api.DeviceGetAttribute(&value, attribute, device);
    return static_cast<unsigned>(value);
  };
  const unsigned long long threads = 1ull * block.x * block.y * block.z;
  return threads > limit(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) ||
         block.x > limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X) ||
         block.y > limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y) ||
         block.z > limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z) ||
         grid.x > limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) ||
         grid.y > limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y) ||
         grid.z > limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
}

/// True for a stream of another device than the current one. A launch into it fails (CUDA C++
/// Programming Guide, "Stream and Event Behavior"); the driver would take the kernel to that
/// device.
bool stream_elsewhere(const Driver& api, cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
    return false;
  static const bool several = [&] {
    int devices = 0;
    return api.DeviceGetCount(&devices) == CUDA_SUCCESS && devices > 1;
  }();
  CUdevice owner = 0;
  int current = 0;
  return several && api.StreamGetDevice(stream, &owner) == CUDA_SUCCESS &&
         current_device(&current) == cudaSuccess && owner != current;
}

cudaError_t launch_error(const Driver& api, CUresult result, dim3 grid, dim3 block) {
  if (result == CUDA_ERROR_INVALID_VALUE && shape_impossible(api, grid, block))
    return cudaErrorInvalidConfiguration;
  return to_error(result);
}

cudaError_t launch(const Driver& api, CUkernel kernel, dim3 grid, dim3 block, void** arguments,
                   size_t shared_bytes, cudaStream_t stream) {
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (stream_elsewhere(api, stream)) return cudaErrorInvalidResourceHandle;
  if (shared_bytes > UINT32_MAX) return cudaErrorInvalidValue;
  const CUresult result =
      api.LaunchKernel(as_function(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                       static_cast<unsigned>(shared_bytes), stream, arguments, nullptr);
  return launch_error(api, result, grid, block);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/// Where a launch from <<<...>>> ends up; the kernel comes from __cudaGetKernel, null when that
/// failed.
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  // The reason of a null kernel is already this thread's last error; it says more than anything
  // here could.
  if (kernel == nullptr && cudaPeekAtLastError() != cudaSuccess) return cudaPeekAtLastError();
  return in_context([&](const Driver& api) {
    return launch(api, kernel, grid, block, arguments, shared_bytes, stream);
  });
}

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                    size_t shared_bytes, cudaStream_t stream) {
  const PerThreadScope scope;
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

}  // extern "C"
#pragma GCC visibility pop

cudaError_t CUDARTAPI cudaLaunchKernel(const void* func, dim3 grid, dim3 block, void** arguments,
                                       size_t shared_bytes, cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    CUkernel kernel = nullptr;
    const cudaError_t error = Registry::get().find_kernel(func, &kernel);
    return error != cudaSuccess ? error
                                : launch(api, kernel, grid, block, arguments, shared_bytes, stream);
  });
}

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* func,
                                          void** arguments) {
  return in_context([&](const Driver& api) {
    if (config == nullptr || config->dynamicSmemBytes > UINT32_MAX) return cudaErrorInvalidValue;
    CUkernel kernel = nullptr;
    if (const cudaError_t error = Registry::get().find_kernel(func, &kernel); error != cudaSuccess)
      return error;
    if (stream_elsewhere(api, config->stream)) return cudaErrorInvalidResourceHandle;
    const CUlaunchConfig translated = to_driver(*config);
    const CUresult result =
        api.LaunchKernelEx(&translated, as_function(kernel), arguments, nullptr);
    return launch_error(api, result, config->gridDim, config->blockDim);
  });
}

cudaError_t CUDARTAPI cudaLaunchCooperativeKernel(const void* func, dim3 grid, dim3 block,
                                                  void** arguments, size_t shared_bytes,
                                                  cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    if (shared_bytes > UINT32_MAX) return cudaErrorInvalidValue;
    CUkernel kernel = nullptr;
    if (const cudaError_t error = Registry::get().find_kernel(func, &kernel); error != cudaSuccess)
      return error;
    if (stream_elsewhere(api, stream)) return cudaErrorInvalidResourceHandle;
    const CUresult result = api.LaunchCooperativeKernel(
        as_function(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
        static_cast<unsigned>(shared_bytes), stream, arguments);
    return launch_error(api, result, grid, block);
  });
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                                         void* user_data) {
  return in_context(
      [&](const Driver& api) { return api.LaunchHostFunc(stream, function, user_data); });
}
