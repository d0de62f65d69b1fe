// Devices: counting, choosing, flags, limits, peers, reset, and the versions. Their properties are
// in properties.cpp.
#include <cstring>
#include <mutex>
#include <vector>

#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

namespace {

/// Runs `body(driver, CUdevice)` for a device number of the program.
template <class Body>
cudaError_t with_device(int device, Body&& body) {
  return with_driver([&](const Driver& api) {
    CUdevice handle = 0;
    if (const cudaError_t error = check_device(device); error != cudaSuccess) return error;
    if (const CUresult result = api.DeviceGet(&handle, device); result != CUDA_SUCCESS)
      return to_error(result);
    return to_error(body(api, handle));
  });
}

template <class Body>
cudaError_t with_current_device(Body&& body) {
  if (const cudaError_t ready = driver_ready(); ready != cudaSuccess) return record_error(ready);
  int device = 0;
  if (const cudaError_t error = current_device(&device); error != cudaSuccess)
    return record_error(error);
  return with_device(device, body);
}

constexpr unsigned kFlagsMask =
    cudaDeviceScheduleMask | cudaDeviceMapHost | cudaDeviceLmemResizeToMax | cudaDeviceSyncMemops;

/// The devices cudaSetValidDevices allows; empty means all.
struct ValidDevices {
  std::mutex mutex;
  std::vector<int> list;
};
ValidDevices& valid_devices() {
  static auto* const once = new ValidDevices;
  return *once;
}

}  // namespace

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  if (count == nullptr) {
    const cudaError_t ready = driver_ready();
    return record_error(ready != cudaSuccess ? ready : cudaErrorInvalidValue);
  }
  return with_driver([&](const Driver& api) {
    const CUresult result = api.DeviceGetCount(count);
    return result == CUDA_SUCCESS && *count == 0 ? cudaErrorNoDevice : to_error(result);
  });
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  return with_driver([&](const Driver&) { return select_device(device); });
}

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  return with_driver([&](const Driver&) {
    return device == nullptr ? cudaErrorInvalidValue : current_device(device);
  });
}

cudaError_t CUDARTAPI cudaInitDevice(int device, unsigned int device_flags, unsigned int flags) {
  return with_device(device, [&](const Driver& api, CUdevice handle) {
    if ((flags & ~static_cast<unsigned>(cudaInitDeviceFlagsAreValid)) != 0)
      return cudaErrorInvalidValue;
    if ((flags & cudaInitDeviceFlagsAreValid) != 0) {
      const CUresult result =
          api.DevicePrimaryCtxSetFlags(handle, device_flags & ~cudaDeviceMapHost);
      if (result != CUDA_SUCCESS) return to_error(result);
    }
    CUcontext context = nullptr;
    return primary_context(device, &context);
  });
}

cudaError_t CUDARTAPI cudaSetValidDevices(int* devices, int count) {
  return with_driver([&](const Driver&) {
    if (count < 0 || (count > 0 && devices == nullptr)) return cudaErrorInvalidValue;
    for (int i = 0; i < count; ++i) {
      if (const cudaError_t error = check_device(devices[i]); error != cudaSuccess) return error;
    }
    ValidDevices& valid = valid_devices();
    const std::lock_guard<std::mutex> lock(valid.mutex);
    valid.list.assign(devices, devices + count);
    return count == 0 ? cudaSuccess : select_device(devices[0]);
  });
}

cudaError_t CUDARTAPI cudaChooseDevice(int* device, const struct cudaDeviceProp* wanted) {
  return with_driver([&](const Driver& api) {
    int count = 0;
    if (device == nullptr || wanted == nullptr) return cudaErrorInvalidValue;
    if (const CUresult result = api.DeviceGetCount(&count); result != CUDA_SUCCESS)
      return to_error(result);
    int best_score = -1;
    for (int candidate = 0; candidate < count; ++candidate) {
      cudaDeviceProp found;
      if (cudaGetDeviceProperties(&found, candidate) != cudaSuccess) continue;
      const int score =
          (found.major * 10 + found.minor >= wanted->major * 10 + wanted->minor ? 1 : 0) +
          (found.totalGlobalMem >= wanted->totalGlobalMem ? 1 : 0) +
          (found.multiProcessorCount >= wanted->multiProcessorCount ? 1 : 0);
      if (score <= best_score) continue;
      best_score = score;
      *device = candidate;
    }
    return best_score < 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaSetDeviceFlags(unsigned int flags) {
  return with_current_device([&](const Driver& api, CUdevice device) {
    if ((flags & ~kFlagsMask) != 0) return cudaErrorInvalidValue;
    // Mapping of host memory is always on; the driver's primary contexts do not take that flag.
    return to_error(api.DevicePrimaryCtxSetFlags(device, flags & ~cudaDeviceMapHost));
  });
}

cudaError_t CUDARTAPI cudaGetDeviceFlags(unsigned int* flags) {
  return with_current_device([&](const Driver& api, CUdevice device) {
    int active = 0;
    if (flags == nullptr) return cudaErrorInvalidValue;
    const CUresult result = api.DevicePrimaryCtxGetState(device, flags, &active);
    if (result == CUDA_SUCCESS) *flags |= cudaDeviceMapHost;
    return to_error(result);
  });
}

cudaError_t CUDARTAPI cudaDeviceReset(void) {
  return with_driver([](const Driver&) { return reset_current_device(); });
}

cudaError_t CUDARTAPI cudaDeviceSynchronize(void) {
  return in_context([](const Driver& api) { return api.CtxSynchronize(); });
}

cudaError_t CUDARTAPI cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
  return in_context(
      [&](const Driver& api) { return api.CtxSetLimit(static_cast<CUlimit>(limit), value); });
}

cudaError_t CUDARTAPI cudaDeviceGetLimit(size_t* value, enum cudaLimit limit) {
  return in_context(
      [&](const Driver& api) { return api.CtxGetLimit(value, static_cast<CUlimit>(limit)); });
}

cudaError_t CUDARTAPI cudaDeviceGetCacheConfig(enum cudaFuncCache* config) {
  return in_context([&](const Driver& api) {
    CUfunc_cache found = CU_FUNC_CACHE_PREFER_NONE;
    if (config == nullptr) return cudaErrorInvalidValue;
    const CUresult result = api.CtxGetCacheConfig(&found);
    *config = static_cast<cudaFuncCache>(found);
    return to_error(result);
  });
}

cudaError_t CUDARTAPI cudaDeviceSetCacheConfig(enum cudaFuncCache config) {
  return in_context(
      [&](const Driver& api) { return api.CtxSetCacheConfig(static_cast<CUfunc_cache>(config)); });
}

/// Bank widths have been fixed in hardware since Maxwell; the calls remain for old programs.
cudaError_t CUDARTAPI cudaDeviceGetSharedMemConfig(enum cudaSharedMemConfig* config) {
  if (config == nullptr) return record_error(cudaErrorInvalidValue);
  *config = cudaSharedMemBankSizeFourByte;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceSetSharedMemConfig(enum cudaSharedMemConfig) { return cudaSuccess; }

cudaError_t CUDARTAPI cudaCtxResetPersistingL2Cache(void) {
  return in_context([](const Driver& api) { return api.CtxResetPersistingL2Cache(); });
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return in_context(
      [&](const Driver& api) { return api.CtxGetStreamPriorityRange(least, greatest); });
}

cudaError_t CUDARTAPI cudaDeviceGetByPCIBusId(int* device, const char* bus_id) {
  return with_driver([&](const Driver& api) {
    CUdevice found = 0;
    if (device == nullptr || bus_id == nullptr) return cudaErrorInvalidValue;
    const CUresult result = api.DeviceGetByPCIBusId(&found, bus_id);
    if (result == CUDA_SUCCESS) *device = found;
    return to_error(result);
  });
}

cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char* bus_id, int length, int device) {
  return with_device(device, [&](const Driver& api, CUdevice handle) {
    return api.DeviceGetPCIBusId(bus_id, length, handle);
  });
}

cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  return with_driver([&](const Driver& api) {
    if (const cudaError_t error = check_device(peer); error != cudaSuccess) return error;
    if (const cudaError_t error = check_device(device); error != cudaSuccess) return error;
    return to_error(api.DeviceCanAccessPeer(can_access, device, peer));
  });
}

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return in_context([&](const Driver& api) {
    CUcontext context = nullptr;
    if (const cudaError_t error = primary_context(peer, &context); error != cudaSuccess)
      return error;
    return to_error(api.CtxEnablePeerAccess(context, flags));
  });
}

cudaError_t CUDARTAPI cudaDeviceDisablePeerAccess(int peer) {
  return in_context([&](const Driver& api) {
    CUcontext context = nullptr;
    if (const cudaError_t error = primary_context(peer, &context); error != cudaSuccess)
      return error;
    return to_error(api.CtxDisablePeerAccess(context));
  });
}

cudaError_t CUDARTAPI cudaDeviceGetP2PAttribute(int* value, enum cudaDeviceP2PAttr attribute,
                                                int source, int target) {
  return with_driver([&](const Driver& api) {
    return api.DeviceGetP2PAttribute(value, static_cast<CUdevice_P2PAttribute>(attribute), source,
                                     target);
  });
}

cudaError_t CUDARTAPI cudaDeviceGetGraphMemAttribute(int device,
                                                     enum cudaGraphMemAttributeType attribute,
                                                     void* value) {
  return with_device(device, [&](const Driver& api, CUdevice handle) {
    return api.DeviceGetGraphMemAttribute(handle, static_cast<CUgraphMem_attribute>(attribute),
                                          value);
  });
}

cudaError_t CUDARTAPI cudaDeviceSetGraphMemAttribute(int device,
                                                     enum cudaGraphMemAttributeType attribute,
                                                     void* value) {
  return with_device(device, [&](const Driver& api, CUdevice handle) {
    return api.DeviceSetGraphMemAttribute(handle, static_cast<CUgraphMem_attribute>(attribute),
                                          value);
  });
}

cudaError_t CUDARTAPI cudaDeviceGraphMemTrim(int device) {
  return with_device(
      device, [](const Driver& api, CUdevice handle) { return api.DeviceGraphMemTrim(handle); });
}

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return record_error(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

/// Works without a driver, too: the version is then 0.
cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
  if (version == nullptr) return record_error(cudaErrorInvalidValue);
  *version = driver_version();
  return cudaSuccess;
}
