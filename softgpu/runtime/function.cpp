// Kernels as objects: attributes, occupancy, handles; and libraries of kernels that a program loads
// itself.
#include "softgpu/runtime/call.h"
#include "softgpu/runtime/launch_config.h"
#include "softgpu/runtime/registry.h"

using namespace softgpu::runtime;

namespace {

/// Runs `body(driver, kernel)` for a kernel of the program.
template <class Body>
cudaError_t with_kernel(const void* func, Body&& body) {
  return in_context([&](const Driver& api) {
    CUkernel kernel = nullptr;
    const cudaError_t error = Registry::get().find_kernel(func, &kernel);
    return error != cudaSuccess ? error : to_error(body(api, kernel));
  });
}

/// Runs `body(driver, function)` with the kernel's form in the current context, which occupancy
/// questions need.
template <class Body>
cudaError_t with_function(const void* func, Body&& body) {
  return with_kernel(func, [&](const Driver& api, CUkernel kernel) {
    CUfunction function = nullptr;
    const CUresult result = api.KernelGetFunction(&function, kernel);
    return result != CUDA_SUCCESS ? result : body(api, function);
  });
}

int kernel_attribute(const Driver& api, CUkernel kernel, int device,
                     CUfunction_attribute attribute) {
  int value = 0;
  (void)api.KernelGetAttribute(&value, attribute, kernel, device);
  return value;
}

cudaFuncAttributes read_attributes(const Driver& api, CUkernel kernel, int device) {
  const auto read = [&](CUfunction_attribute attribute) {
    return kernel_attribute(api, kernel, device, attribute);
  };
  const auto read_size = [&](CUfunction_attribute attribute) {
    return static_cast<size_t>(read(attribute));
  };
  cudaFuncAttributes out = {};
  out.sharedSizeBytes = read_size(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  out.constSizeBytes = read_size(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
  out.localSizeBytes = read_size(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  out.maxThreadsPerBlock = read(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  out.numRegs = read(CU_FUNC_ATTRIBUTE_NUM_REGS);
  out.ptxVersion = read(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  out.binaryVersion = read(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  out.cacheModeCA = read(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
  out.maxDynamicSharedSizeBytes = read(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  out.preferredShmemCarveout = read(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  out.clusterDimMustBeSet = read(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET);
  out.requiredClusterWidth = read(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
  out.requiredClusterHeight = read(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
  out.requiredClusterDepth = read(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
  out.clusterSchedulingPolicyPreference =
      read(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  out.nonPortableClusterSizeAllowed = read(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
  return out;
}

}  // namespace

cudaError_t CUDARTAPI cudaFuncGetAttributes(struct cudaFuncAttributes* attributes,
                                            const void* func) {
  return with_kernel(func, [&](const Driver& api, CUkernel kernel) {
    int device = 0;
    if (attributes == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = current_device(&device);
    if (error == cudaSuccess) *attributes = read_attributes(api, kernel, device);
    return error;
  });
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* func, enum cudaFuncAttribute attribute,
                                           int value) {
  return with_kernel(func, [&](const Driver& api, CUkernel kernel) {
    int device = 0;
    if (const cudaError_t error = current_device(&device); error != cudaSuccess) return error;
    return to_error(api.KernelSetAttribute(static_cast<CUfunction_attribute>(attribute), value,
                                           kernel, device));
  });
}

cudaError_t CUDARTAPI cudaKernelSetAttributeForDevice(cudaKernel_t kernel,
                                                      enum cudaFuncAttribute attribute, int value,
                                                      int device) {
  return in_context([&](const Driver& api) {
    return api.KernelSetAttribute(static_cast<CUfunction_attribute>(attribute), value, kernel,
                                  device);
  });
}

cudaError_t CUDARTAPI cudaFuncSetCacheConfig(const void* func, enum cudaFuncCache config) {
  return with_kernel(func, [&](const Driver& api, CUkernel kernel) {
    int device = 0;
    if (const cudaError_t error = current_device(&device); error != cudaSuccess) return error;
    return to_error(api.KernelSetCacheConfig(kernel, static_cast<CUfunc_cache>(config), device));
  });
}

/// Bank widths have been fixed in hardware since Maxwell; the call remains for old programs.
cudaError_t CUDARTAPI cudaFuncSetSharedMemConfig(const void* func, enum cudaSharedMemConfig) {
  return with_kernel(func, [](const Driver&, CUkernel) { return CUDA_SUCCESS; });
}

cudaError_t CUDARTAPI cudaFuncGetName(const char** name, const void* func) {
  return with_kernel(
      func, [&](const Driver& api, CUkernel kernel) { return api.KernelGetName(name, kernel); });
}

cudaError_t CUDARTAPI cudaFuncGetParamInfo(const void* func, size_t index, size_t* offset,
                                           size_t* size_bytes) {
  return with_kernel(func, [&](const Driver& api, CUkernel kernel) {
    return api.KernelGetParamInfo(kernel, index, offset, size_bytes);
  });
}

cudaError_t CUDARTAPI cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  return with_kernel(symbol, [&](const Driver& api, CUkernel kernel) {
    return api.KernelGetFunction(function, kernel);
  });
}

cudaError_t CUDARTAPI cudaGetKernel(cudaKernel_t* kernel, const void* func) {
  return in_context([&](const Driver&) {
    return kernel == nullptr ? cudaErrorInvalidValue : Registry::get().find_kernel(func, kernel);
  });
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* func,
                                                                    int block_size,
                                                                    size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, func, block_size,
                                                                shared_bytes, cudaOccupancyDefault);
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* func, int block_size, size_t shared_bytes, unsigned int flags) {
  return with_function(func, [&](const Driver& api, CUfunction function) {
    return api.OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                  shared_bytes, flags);
  });
}

cudaError_t CUDARTAPI cudaOccupancyAvailableDynamicSMemPerBlock(size_t* shared_bytes,
                                                                const void* func, int blocks,
                                                                int block_size) {
  return with_function(func, [&](const Driver& api, CUfunction function) {
    return api.OccupancyAvailableDynamicSMemPerBlock(shared_bytes, function, blocks, block_size);
  });
}

cudaError_t CUDARTAPI cudaOccupancyMaxPotentialClusterSize(int* size, const void* func,
                                                           const cudaLaunchConfig_t* config) {
  return with_function(func, [&](const Driver& api, CUfunction function) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUlaunchConfig question = to_driver(*config);
    return api.OccupancyMaxPotentialClusterSize(size, function, &question);
  });
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveClusters(int* clusters, const void* func,
                                                     const cudaLaunchConfig_t* config) {
  return with_function(func, [&](const Driver& api, CUfunction function) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUlaunchConfig question = to_driver(*config);
    return api.OccupancyMaxActiveClusters(clusters, function, &question);
  });
}

cudaError_t CUDARTAPI cudaLibraryLoadData(cudaLibrary_t* library, const void* code,
                                          enum cudaJitOption* jit_options, void** jit_values,
                                          unsigned int jit_count, enum cudaLibraryOption* options,
                                          void** values, unsigned int count) {
  return in_context([&](const Driver& api) {
    return api.LibraryLoadData(library, code, reinterpret_cast<CUjit_option*>(jit_options),
                               jit_values, jit_count, reinterpret_cast<CUlibraryOption*>(options),
                               values, count);
  });
}

cudaError_t CUDARTAPI cudaLibraryLoadFromFile(cudaLibrary_t* library, const char* file,
                                              enum cudaJitOption* jit_options, void** jit_values,
                                              unsigned int jit_count,
                                              enum cudaLibraryOption* options, void** values,
                                              unsigned int count) {
  return in_context([&](const Driver& api) {
    return api.LibraryLoadFromFile(library, file, reinterpret_cast<CUjit_option*>(jit_options),
                                   jit_values, jit_count,
                                   reinterpret_cast<CUlibraryOption*>(options), values, count);
  });
}

cudaError_t CUDARTAPI cudaLibraryUnload(cudaLibrary_t library) {
  return in_context([&](const Driver& api) { return api.LibraryUnload(library); });
}

cudaError_t CUDARTAPI cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library,
                                           const char* name) {
  return in_context([&](const Driver& api) {
    const CUresult result = api.LibraryGetKernel(kernel, library, name);
    if (result == CUDA_SUCCESS) Registry::get().add_kernel_handle(*kernel);
    return result;
  });
}

cudaError_t CUDARTAPI cudaLibraryGetKernelCount(unsigned int* count, cudaLibrary_t library) {
  return in_context([&](const Driver& api) { return api.LibraryGetKernelCount(count, library); });
}

cudaError_t CUDARTAPI cudaLibraryEnumerateKernels(cudaKernel_t* kernels, unsigned int count,
                                                  cudaLibrary_t library) {
  return in_context([&](const Driver& api) {
    unsigned known = 0;
    CUresult result = api.LibraryGetKernelCount(&known, library);
    if (result == CUDA_SUCCESS) result = api.LibraryEnumerateKernels(kernels, count, library);
    if (result != CUDA_SUCCESS) return result;
    for (unsigned i = 0; i < count && i < known; ++i) Registry::get().add_kernel_handle(kernels[i]);
    return result;
  });
}

cudaError_t CUDARTAPI cudaLibraryGetGlobal(void** pointer, size_t* size_bytes,
                                           cudaLibrary_t library, const char* name) {
  return in_context([&](const Driver& api) {
    return api.LibraryGetGlobal(reinterpret_cast<CUdeviceptr*>(pointer), size_bytes, library, name);
  });
}

cudaError_t CUDARTAPI cudaLibraryGetManaged(void** pointer, size_t* size_bytes,
                                            cudaLibrary_t library, const char* name) {
  return in_context([&](const Driver& api) {
    return api.LibraryGetManaged(reinterpret_cast<CUdeviceptr*>(pointer), size_bytes, library,
                                 name);
  });
}

cudaError_t CUDARTAPI cudaLibraryGetUnifiedFunction(void** function, cudaLibrary_t library,
                                                    const char* symbol) {
  return in_context(
      [&](const Driver& api) { return api.LibraryGetUnifiedFunction(function, library, symbol); });
}
