// What a device is: attributes one by one, and the struct that programs print. Both headers number
// the attributes alike.
#include <cstring>
#include <iterator>

#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

namespace {

struct IntField {
  int cudaDeviceProp::*field;
  CUdevice_attribute attribute;
};
struct UnsignedField {
  unsigned cudaDeviceProp::*field;
  CUdevice_attribute attribute;
};
struct SizeField {
  size_t cudaDeviceProp::*field;
  CUdevice_attribute attribute;
};

#define FIELD(name, attribute) \
  { &cudaDeviceProp::name, CU_DEVICE_ATTRIBUTE_##attribute }

constexpr IntField kIntFields[] = {
    FIELD(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
    FIELD(warpSize, WARP_SIZE),
    FIELD(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
    FIELD(major, COMPUTE_CAPABILITY_MAJOR),
    FIELD(minor, COMPUTE_CAPABILITY_MINOR),
    FIELD(multiProcessorCount, MULTIPROCESSOR_COUNT),
    FIELD(integrated, INTEGRATED),
    FIELD(canMapHostMemory, CAN_MAP_HOST_MEMORY),
    FIELD(maxTexture1D, MAXIMUM_TEXTURE1D_WIDTH),
    FIELD(maxTexture1DMipmap, MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH),
    FIELD(maxTextureCubemap, MAXIMUM_TEXTURECUBEMAP_WIDTH),
    FIELD(maxSurface1D, MAXIMUM_SURFACE1D_WIDTH),
    FIELD(maxSurfaceCubemap, MAXIMUM_SURFACECUBEMAP_WIDTH),
    FIELD(concurrentKernels, CONCURRENT_KERNELS),
    FIELD(ECCEnabled, ECC_ENABLED),
    FIELD(pciBusID, PCI_BUS_ID),
    FIELD(pciDeviceID, PCI_DEVICE_ID),
    FIELD(pciDomainID, PCI_DOMAIN_ID),
    FIELD(tccDriver, TCC_DRIVER),
    FIELD(asyncEngineCount, ASYNC_ENGINE_COUNT),
    FIELD(unifiedAddressing, UNIFIED_ADDRESSING),
    FIELD(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH),
    FIELD(l2CacheSize, L2_CACHE_SIZE),
    FIELD(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE),
    FIELD(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
    FIELD(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED),
    FIELD(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED),
    FIELD(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED),
    FIELD(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
    FIELD(managedMemory, MANAGED_MEMORY),
    FIELD(isMultiGpuBoard, MULTI_GPU_BOARD),
    FIELD(multiGpuBoardGroupID, MULTI_GPU_BOARD_GROUP_ID),
    FIELD(hostNativeAtomicSupported, HOST_NATIVE_ATOMIC_SUPPORTED),
    FIELD(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS),
    FIELD(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
    FIELD(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED),
    FIELD(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
    FIELD(cooperativeLaunch, COOPERATIVE_LAUNCH),
    FIELD(pageableMemoryAccessUsesHostPageTables, PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),
    FIELD(directManagedMemAccessFromHost, DIRECT_MANAGED_MEM_ACCESS_FROM_HOST),
    FIELD(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
    FIELD(accessPolicyMaxWindowSize, MAX_ACCESS_POLICY_WINDOW_SIZE),
    FIELD(hostRegisterSupported, HOST_REGISTER_SUPPORTED),
    FIELD(sparseCudaArraySupported, SPARSE_CUDA_ARRAY_SUPPORTED),
    FIELD(hostRegisterReadOnlySupported, READ_ONLY_HOST_REGISTER_SUPPORTED),
    FIELD(timelineSemaphoreInteropSupported, TIMELINE_SEMAPHORE_INTEROP_SUPPORTED),
    FIELD(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
    FIELD(gpuDirectRDMASupported, GPU_DIRECT_RDMA_SUPPORTED),
    FIELD(gpuDirectRDMAWritesOrdering, GPU_DIRECT_RDMA_WRITES_ORDERING),
    FIELD(deferredMappingCudaArraySupported, DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED),
    FIELD(ipcEventSupported, IPC_EVENT_SUPPORTED),
    FIELD(clusterLaunch, CLUSTER_LAUNCH),
    FIELD(unifiedFunctionPointers, UNIFIED_FUNCTION_POINTERS),
    FIELD(deviceNumaConfig, NUMA_CONFIG),
    FIELD(deviceNumaId, NUMA_ID),
    FIELD(mpsEnabled, MPS_ENABLED),
    FIELD(hostNumaId, HOST_NUMA_ID),
    FIELD(hostNumaMultinodeIpcSupported, HOST_NUMA_MULTINODE_IPC_SUPPORTED),
};

constexpr UnsignedField kUnsignedFields[] = {
    FIELD(gpuDirectRDMAFlushWritesOptions, GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
    FIELD(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES),
    FIELD(gpuPciDeviceID, GPU_PCI_DEVICE_ID),
    FIELD(gpuPciSubsystemID, GPU_PCI_SUBSYSTEM_ID),
};

constexpr SizeField kSizeFields[] = {
    FIELD(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
    FIELD(memPitch, MAX_PITCH),
    FIELD(totalConstMem, TOTAL_CONSTANT_MEMORY),
    FIELD(textureAlignment, TEXTURE_ALIGNMENT),
    FIELD(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT),
    FIELD(surfaceAlignment, SURFACE_ALIGNMENT),
    FIELD(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    FIELD(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    FIELD(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
};

#undef FIELD

/// Fields that are arrays: each element has an attribute of its own.
template <size_t kLength>
void fill_array(const Driver& api, CUdevice device, int (&field)[kLength],
                const CUdevice_attribute (&attributes)[kLength]) {
  for (size_t i = 0; i < kLength; ++i)
    (void)api.DeviceGetAttribute(&field[i], attributes[i], device);
}

void fill_arrays(const Driver& api, CUdevice device, cudaDeviceProp* out) {
#define FILL(field, ...) fill_array(api, device, out->field, {__VA_ARGS__})
#define A(name) CU_DEVICE_ATTRIBUTE_##name
  FILL(maxThreadsDim, A(MAX_BLOCK_DIM_X), A(MAX_BLOCK_DIM_Y), A(MAX_BLOCK_DIM_Z));
  FILL(maxGridSize, A(MAX_GRID_DIM_X), A(MAX_GRID_DIM_Y), A(MAX_GRID_DIM_Z));
  FILL(maxTexture2D, A(MAXIMUM_TEXTURE2D_WIDTH), A(MAXIMUM_TEXTURE2D_HEIGHT));
  FILL(maxTexture2DMipmap, A(MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH),
       A(MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT));
  FILL(maxTexture2DLinear, A(MAXIMUM_TEXTURE2D_LINEAR_WIDTH), A(MAXIMUM_TEXTURE2D_LINEAR_HEIGHT),
       A(MAXIMUM_TEXTURE2D_LINEAR_PITCH));
  FILL(maxTexture2DGather, A(MAXIMUM_TEXTURE2D_GATHER_WIDTH), A(MAXIMUM_TEXTURE2D_GATHER_HEIGHT));
  FILL(maxTexture3D, A(MAXIMUM_TEXTURE3D_WIDTH), A(MAXIMUM_TEXTURE3D_HEIGHT),
       A(MAXIMUM_TEXTURE3D_DEPTH));
  FILL(maxTexture3DAlt, A(MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE), A(MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE),
       A(MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE));
  FILL(maxTexture1DLayered, A(MAXIMUM_TEXTURE1D_LAYERED_WIDTH),
       A(MAXIMUM_TEXTURE1D_LAYERED_LAYERS));
  FILL(maxTexture2DLayered, A(MAXIMUM_TEXTURE2D_LAYERED_WIDTH), A(MAXIMUM_TEXTURE2D_LAYERED_HEIGHT),
       A(MAXIMUM_TEXTURE2D_LAYERED_LAYERS));
  FILL(maxTextureCubemapLayered, A(MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH),
       A(MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS));
  FILL(maxSurface2D, A(MAXIMUM_SURFACE2D_WIDTH), A(MAXIMUM_SURFACE2D_HEIGHT));
  FILL(maxSurface3D, A(MAXIMUM_SURFACE3D_WIDTH), A(MAXIMUM_SURFACE3D_HEIGHT),
       A(MAXIMUM_SURFACE3D_DEPTH));
  FILL(maxSurface1DLayered, A(MAXIMUM_SURFACE1D_LAYERED_WIDTH),
       A(MAXIMUM_SURFACE1D_LAYERED_LAYERS));
  FILL(maxSurface2DLayered, A(MAXIMUM_SURFACE2D_LAYERED_WIDTH), A(MAXIMUM_SURFACE2D_LAYERED_HEIGHT),
       A(MAXIMUM_SURFACE2D_LAYERED_LAYERS));
  FILL(maxSurfaceCubemapLayered, A(MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH),
       A(MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS));
#undef A
#undef FILL
}

template <class Field, size_t kCount>
void fill_fields(const Driver& api, CUdevice device, const Field (&fields)[kCount],
                 cudaDeviceProp* out) {
  for (const Field& field : fields) {
    int value = 0;
    (void)api.DeviceGetAttribute(&value, field.attribute, device);
    auto& slot = out->*field.field;
    slot = static_cast<std::remove_reference_t<decltype(slot)>>(value);
  }
}

}  // namespace

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute,
                                             int device) {
  return with_driver([&](const Driver& api) {
    if (const cudaError_t error = check_device(device); error != cudaSuccess) return error;
    return to_error(
        api.DeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), device));
  });
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(struct cudaDeviceProp* properties, int device) {
  return with_driver([&](const Driver& api) {
    if (properties == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = check_device(device); error != cudaSuccess) return error;
    cudaDeviceProp out;
    std::memset(&out, 0, sizeof(out));
    CUdevice handle = 0;
    CUuuid uuid = {};
    CUresult result = api.DeviceGet(&handle, device);
    if (result == CUDA_SUCCESS) result = api.DeviceGetName(out.name, sizeof(out.name), handle);
    if (result == CUDA_SUCCESS) result = api.DeviceTotalMem(&out.totalGlobalMem, handle);
    if (result == CUDA_SUCCESS) result = api.DeviceGetUuid(&uuid, handle);
    if (result != CUDA_SUCCESS) return to_error(result);
    std::memcpy(&out.uuid, &uuid, sizeof(out.uuid));
    fill_fields(api, handle, kIntFields, &out);
    fill_fields(api, handle, kUnsignedFields, &out);
    fill_fields(api, handle, kSizeFields, &out);
    fill_arrays(api, handle, &out);
    *properties = out;
    return cudaSuccess;
  });
}
