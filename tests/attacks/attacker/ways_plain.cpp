// Ways to take memory that name a size and are served at once: plain, pitched, managed, arrays,
// virtual memory.
#include <unistd.h>

#include <algorithm>

#include "tests/attacks/attacker/attack.h"

namespace attacks {
namespace {

constexpr std::size_t kGrain = 2 * kMiB;

std::size_t grains(std::size_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

CUmemAllocationProp on_device() {
  CUmemAllocationProp wish{};
  wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}};
  wish.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return wish;
}

CUresult piece_create(std::size_t bytes, CUmemGenericAllocationHandle& piece) {
  const CUmemAllocationProp wish = on_device();
  return cuMemCreate(&piece, grains(bytes), &wish, 0);
}

/// Maps a piece at an address of its own.
CUresult piece_map(CUmemGenericAllocationHandle piece, std::size_t bytes, CUdeviceptr& at) {
  CUresult result = cuMemAddressReserve(&at, grains(bytes), 0, 0, 0);
  if (result == CUDA_SUCCESS) result = cuMemMap(at, grains(bytes), 0, piece, 0);
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return result == CUDA_SUCCESS ? cuMemSetAccess(at, grains(bytes), &access, 1) : result;
}

CUresult take_alloc(std::size_t bytes) {
  CUdeviceptr at = 0;
  return cuMemAlloc(&at, bytes);
}

CUresult take_pitch(std::size_t bytes) {
  CUdeviceptr at = 0;
  std::size_t pitch = 0;
  constexpr std::size_t kRow = 1000;  // no multiple of a pitch
  return cuMemAllocPitch(&at, &pitch, kRow, std::max<std::size_t>(bytes / kRow, 1), 4);
}

CUresult take_managed(std::size_t bytes) {
  CUdeviceptr at = 0;
  return cuMemAllocManaged(&at, bytes, CU_MEM_ATTACH_GLOBAL);
}

CUresult take_prefetched(std::size_t bytes) {
  CUdeviceptr at = 0;
  const CUresult result = cuMemAllocManaged(&at, bytes, CU_MEM_ATTACH_GLOBAL);
  if (result != CUDA_SUCCESS) return result;
  (void)cuMemPrefetchAsync(at, bytes, {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}}, 0, nullptr);
  return cuCtxSynchronize();
}

CUresult take_array(std::size_t bytes) {
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = 1024;
  shape.Height = std::max<std::size_t>(bytes / 4096, 1);
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  CUarray array = nullptr;
  return cuArrayCreate(&array, &shape);
}

CUDA_ARRAY3D_DESCRIPTOR box(std::size_t bytes) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = 128;
  shape.Height = 128;
  shape.Depth = std::max<std::size_t>(bytes / 65536, 1);
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  return shape;
}

CUresult take_box(std::size_t bytes) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = box(bytes);
  CUarray array = nullptr;
  return cuArray3DCreate(&array, &shape);
}

CUresult take_levels(std::size_t bytes) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = box(bytes);
  CUmipmappedArray array = nullptr;
  return cuMipmappedArrayCreate(&array, &shape, 3);
}

CUresult take_created(std::size_t bytes) {
  CUmemGenericAllocationHandle piece = 0;
  return piece_create(bytes, piece);
}

CUresult take_mapped(std::size_t bytes) {
  CUmemGenericAllocationHandle piece = 0;
  CUdeviceptr at = 0;
  const CUresult result = piece_create(bytes, piece);
  return result == CUDA_SUCCESS ? piece_map(piece, bytes, at) : result;
}

CUresult take_released(std::size_t bytes) {
  CUmemGenericAllocationHandle piece = 0;
  CUdeviceptr at = 0;
  CUresult result = piece_create(bytes, piece);
  if (result == CUDA_SUCCESS) result = piece_map(piece, bytes, at);
  return result == CUDA_SUCCESS ? cuMemRelease(piece) : result;
}

CUresult take_retained(std::size_t bytes) {
  CUmemGenericAllocationHandle piece = 0;
  CUdeviceptr at = 0;
  CUresult result = piece_create(bytes, piece);
  if (result == CUDA_SUCCESS) result = piece_map(piece, bytes, at);
  if (result == CUDA_SUCCESS) result = cuMemRelease(piece);
  if (result == CUDA_SUCCESS)
    result = cuMemRetainAllocationHandle(&piece, reinterpret_cast<void*>(at));
  return result == CUDA_SUCCESS ? cuMemUnmap(at, grains(bytes)) : result;
}

CUresult take_twice_mapped(std::size_t bytes) {
  CUmemGenericAllocationHandle piece = 0;
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  CUresult result = piece_create(bytes, piece);
  if (result == CUDA_SUCCESS) result = piece_map(piece, bytes, first);
  if (result == CUDA_SUCCESS) result = piece_map(piece, bytes, second);
  if (result == CUDA_SUCCESS) result = cuMemRelease(piece);
  return result == CUDA_SUCCESS ? cuMemUnmap(first, grains(bytes)) : result;
}

/// Only a descriptor holds the memory: no handle, no mapping.
CUresult take_exported(std::size_t bytes) {
  CUmemGenericAllocationHandle piece = 0;
  int descriptor = -1;
  CUresult result = piece_create(bytes, piece);
  if (result == CUDA_SUCCESS)
    result = cuMemExportToShareableHandle(&descriptor, piece,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return result == CUDA_SUCCESS ? cuMemRelease(piece) : result;
}

/// The program's own memory comes back by its descriptor; the first handle goes.
CUresult take_imported(std::size_t bytes) {
  CUmemGenericAllocationHandle piece = 0;
  CUmemGenericAllocationHandle again = 0;
  std::intptr_t descriptor = -1;
  CUresult result = piece_create(bytes, piece);
  if (result == CUDA_SUCCESS)
    result = cuMemExportToShareableHandle(&descriptor, piece,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return result;
  descriptor = static_cast<int>(descriptor);
  result = cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(descriptor),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  (void)cuMemRelease(piece);
  close(static_cast<int>(descriptor));
  return result;
}

/// The handle goes first, the import comes by the descriptor alone.
CUresult take_revived(std::size_t bytes) {
  CUmemGenericAllocationHandle piece = 0;
  std::intptr_t descriptor = -1;
  CUresult result = piece_create(bytes, piece);
  if (result == CUDA_SUCCESS)
    result = cuMemExportToShareableHandle(&descriptor, piece,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return result;
  descriptor = static_cast<int>(descriptor);
  (void)cuMemRelease(piece);
  CUmemGenericAllocationHandle again = 0;
  result = cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(descriptor),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUdeviceptr at = 0;
  return result == CUDA_SUCCESS ? piece_map(again, bytes, at) : result;
}

CUresult take_external(std::size_t bytes) {
  CUmemGenericAllocationHandle piece = 0;
  int descriptor = -1;
  CUresult result = piece_create(bytes, piece);
  if (result == CUDA_SUCCESS)
    result = cuMemExportToShareableHandle(&descriptor, piece,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return result;
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
  what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  what.handle.fd = descriptor;
  what.size = grains(bytes);
  CUexternalMemory memory = nullptr;
  result = cuImportExternalMemory(&memory, &what);
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole{};
  whole.size = grains(bytes);
  CUdeviceptr at = 0;
  if (result == CUDA_SUCCESS) result = cuExternalMemoryGetMappedBuffer(&at, memory, &whole);
  (void)cuMemRelease(piece);
  return result == CUDA_SUCCESS ? cuDestroyExternalMemory(memory) : result;
}

/// Host memory that the device sees is no device memory; what is taken beside it counts as ever.
CUresult take_beside_host(std::size_t bytes) {
  void* host = nullptr;
  if (cuMemHostAlloc(&host, kMiB, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS) {
    CUdeviceptr seen = 0;
    (void)cuMemHostGetDevicePointer(&seen, host, 0);
    (void)cuMemFree(seen);  // the driver refuses it, and nothing may be given back for it
    (void)cuMemFreeHost(host);
  }
  return take_alloc(bytes);
}

/// Sizes that wrap when they are added or multiplied, and what fits behind them.
CUresult take_wrapping(std::size_t bytes) {
  CUdeviceptr at = 0;
  std::size_t pitch = 0;
  (void)cuMemAlloc(&at, SIZE_MAX);
  (void)cuMemAlloc(&at, SIZE_MAX - bytes + 1);
  (void)cuMemAllocManaged(&at, SIZE_MAX - 1, CU_MEM_ATTACH_GLOBAL);
  (void)cuMemAllocPitch(&at, &pitch, std::size_t{1} << 33, std::size_t{1} << 32, 4);
  (void)cuMemAllocAsync(&at, SIZE_MAX - bytes, nullptr);
  CUmemGenericAllocationHandle piece = 0;
  const CUmemAllocationProp wish = on_device();
  (void)cuMemCreate(&piece, SIZE_MAX / kGrain * kGrain, &wish, 0);
  CUDA_ARRAY3D_DESCRIPTOR shape = box(bytes);
  shape.Width = shape.Height = shape.Depth = std::size_t{1} << 31;
  CUarray array = nullptr;
  (void)cuArray3DCreate(&array, &shape);
  return take_alloc(bytes);
}

}  // namespace

const Way kPlainWays[] = {{"alloc", take_alloc},
                          {"pitch", take_pitch},
                          {"managed", take_managed},
                          {"prefetched", take_prefetched},
                          {"array", take_array},
                          {"box", take_box},
                          {"levels", take_levels},
                          {"created", take_created},
                          {"mapped", take_mapped},
                          {"released", take_released},
                          {"retained", take_retained},
                          {"twice_mapped", take_twice_mapped},
                          {"exported", take_exported},
                          {"imported", take_imported},
                          {"revived", take_revived},
                          {"external", take_external},
                          {"beside_host", take_beside_host},
                          {"wrapping", take_wrapping},
                          {nullptr, nullptr}};

}  // namespace attacks
