// Entry points: device, managed and pinned memory, and what an address is.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/command.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/pool.h"
#include "softgpu/driver/state.h"

using namespace softgpu::driver;

namespace {

constexpr std::size_t kPitchAlign = 512;
constexpr int kAttributeLast = CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;

std::optional<Allocation> find(CUdeviceptr address) { return MemoryMap::get().find(address); }

/// enter() for what gives memory back: an address says whose it is, so where no context is current
/// its owner is `context`.
CUresult enter_to_free(CUdeviceptr address, ContextRef& context, const char* name) {
  CUresult result = enter(context, name);
  if (result != CUDA_ERROR_INVALID_CONTEXT) return result;
  const auto allocation = find(address);
  if (!allocation || context_find(allocation->context, context) != CUDA_SUCCESS) return result;
  result = context->status();
  return result == CUDA_SUCCESS ? capture_enter(*context, name) : result;
}

CUresult host_allocate(const ContextRef& context, void** out, std::size_t bytes, unsigned flags) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & ~(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                 CU_MEMHOSTALLOC_WRITECOMBINED)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t length = round_up(bytes, kHostPage);
  void* p = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    Process::get().complain_of_mapping(errno);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation allocation;
  allocation.base = address_of(p);
  allocation.size = bytes;
  allocation.kind = MemoryKind::kHost;
  allocation.gpu = &context->gpu;
  allocation.context = context->handle();
  allocation.flags =
      flags | CU_MEMHOSTALLOC_DEVICEMAP;  // with unified addressing everything is mapped
  MemoryMap::get().add(allocation);
  *out = p;
  return CUDA_SUCCESS;
}

template <typename T>
CUresult store(void* out, T value) {
  std::memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUmemorytype type_of(const Allocation& a) {
  return a.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

CUcontext context_of(const Allocation& a) {
  return a.kind == MemoryKind::kPool || a.kind == MemoryKind::kVirtual ? nullptr : a.context;
}

CUresult attribute_get(void* out, CUpointer_attribute attribute, const Allocation& a,
                       CUdeviceptr address) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return store(out, context_of(a));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return store(out, static_cast<unsigned>(type_of(a)));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return store(out, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (a.on_device() && !a.is_managed()) return CUDA_ERROR_INVALID_VALUE;
      return store(out, address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return store(out, a.sync_memops ? 1U : 0U);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return store(out, static_cast<unsigned long long>(a.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return store(out, a.is_managed() ? 1U : 0U);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return store(out, a.gpu->ordinal);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return store(out, a.kind == MemoryKind::kDevice ? 1U : 0U);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return store(out, static_cast<CUdeviceptr>(a.range_base != 0 ? a.range_base : a.base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return store(out, a.range_base != 0 ? a.range_size : a.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return store(out, 1U);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return store(out, static_cast<std::uint64_t>(a.handle_types));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return store(out, 0U);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return store(out, static_cast<unsigned>(a.access));  // the two enumerations agree
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return store(out, a.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return store(out, a.size);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return store(out, static_cast<CUdeviceptr>(a.base));
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return store(out, static_cast<unsigned long long>(a.id));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/// What cuPointerGetAttributes stores for an address that CUDA does not know.
void attribute_unknown(void* out, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
      (void)store(out, 0U);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      (void)store(out, -2);
      break;
    default:
      (void)store(out, std::uint64_t{0});
      break;
  }
}

}  // namespace

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  const std::uint64_t capacity = context->gpu.model.settings().memory_bytes;
  const std::uint64_t used = context->gpu.model.used_bytes();
  if (free != nullptr) *free = capacity - std::min(used, capacity);
  if (total != nullptr) *total = capacity;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* out, std::size_t bytes) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return memory_allocate(*context, bytes, MemoryKind::kDevice, *out);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* out, std::size_t* pitch, std::size_t width,
                            std::size_t height, unsigned int element) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || pitch == nullptr || width == 0 || height == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = (width + kPitchAlign - 1) / kPitchAlign * kPitchAlign;
  if (row < width || height > SIZE_MAX / row) return CUDA_ERROR_OUT_OF_MEMORY;
  result = memory_allocate(*context, row * height, MemoryKind::kDevice, *out);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr* out, std::size_t bytes, unsigned int flags) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  return memory_allocate(*context, bytes, MemoryKind::kManaged, *out);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  ContextRef context;
  CUresult result = enter_to_free(address, context, __func__);
  if (result != CUDA_SUCCESS) return result;
  if (address == 0) return CUDA_SUCCESS;
  const auto allocation = find(address);
  if (!allocation || allocation->base != address) return CUDA_ERROR_INVALID_VALUE;
  switch (allocation->kind) {
    case MemoryKind::kDevice:
    case MemoryKind::kManaged:
    case MemoryKind::kExternal:
      break;
    case MemoryKind::kPool: {
      // No wait: who frees stream-ordered memory this way has waited already.
      const auto pool = Registry<Pool>::all().find(allocation->pool);
      if (pool == nullptr || !MemoryMap::get().take(address)) return CUDA_ERROR_INVALID_VALUE;
      pool->free_now(address);
      return CUDA_SUCCESS;
    }
    case MemoryKind::kGraph:
      return graph_memory_free(address, context);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  ContextRef owner;
  context_idle(context_find(allocation->context, owner) == CUDA_SUCCESS ? owner : context);
  const auto taken = MemoryMap::get().take(address);  // it may have been shared meanwhile
  if (!taken) return CUDA_ERROR_INVALID_VALUE;
  memory_release(*taken);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = find(address);
  if (!allocation || allocation->kind == MemoryKind::kRegistered) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = allocation->base;
  if (size != nullptr) *size = allocation->size;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** out, std::size_t bytes, unsigned int flags) {
  ContextRef context;
  CUresult result = enter(context);
  return result == CUDA_SUCCESS ? host_allocate(context, out, bytes, flags) : result;
}

CUresult cuMemAllocHost_v2(void** out, std::size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }
CUresult cuMemAllocHost(void** out, unsigned int bytes) { return cuMemHostAlloc(out, bytes, 0); }

CUresult cuMemFreeHost(void* p) {
  ContextRef context;
  CUresult result = enter_to_free(address_of(p), context, __func__);
  if (result != CUDA_SUCCESS) return result;
  if (p == nullptr) return CUDA_SUCCESS;
  const auto allocation = find(address_of(p));
  if (!allocation || allocation->base != address_of(p) || allocation->kind != MemoryKind::kHost)
    return CUDA_ERROR_INVALID_VALUE;
  context_idle(context);
  if (MemoryMap::get().take(address_of(p))) memory_release(*allocation);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* p, std::size_t bytes, unsigned int flags) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (p == nullptr || bytes == 0 || (flags & ~0xfU) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > UINTPTR_MAX - address_of(p)) return CUDA_ERROR_INVALID_VALUE;
  if (MemoryMap::get().touches(address_of(p), bytes))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  Allocation allocation;
  allocation.base = address_of(p);
  allocation.size = bytes;
  allocation.kind = MemoryKind::kRegistered;
  allocation.gpu = &context->gpu;
  allocation.context = context->handle();
  allocation.flags = flags;
  MemoryMap::get().add(allocation);
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* p) {
  ContextRef context;
  const CUresult result = enter_to_free(address_of(p), context, __func__);
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = find(address_of(p));
  if (!allocation || allocation->base != address_of(p) ||
      allocation->kind != MemoryKind::kRegistered)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  context_idle(context);
  MemoryMap::get().take(address_of(p));
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* p, unsigned int flags) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto allocation = find(address_of(p));
  if (!allocation || (allocation->on_device() && !allocation->is_managed()))
    return CUDA_ERROR_INVALID_VALUE;
  *out = address_of(p);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* p) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = find(address_of(p));
  if (flags == nullptr || !allocation || allocation->on_device()) return CUDA_ERROR_INVALID_VALUE;
  *flags = allocation->flags;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ContextRef context;
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER &&
      context_find(nullptr, context) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_CONTEXT;
  const auto allocation = find(address);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  return attribute_get(out, attribute, *allocation, address);
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** out,
                                CUdeviceptr address) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (attributes == nullptr || out == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i)
    if (out[i] == nullptr || attributes[i] <= 0 || attributes[i] > kAttributeLast)
      return CUDA_ERROR_INVALID_VALUE;
  const auto allocation = find(address);
  for (unsigned i = 0; i < count; ++i) {
    if (!allocation || attribute_get(out[i], attributes[i], *allocation, address) != CUDA_SUCCESS)
      attribute_unknown(out[i], attributes[i]);
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                               CUdeviceptr address) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = find(address);
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !allocation)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned on = 0;
  std::memcpy(&on, value, sizeof on);
  if (on > 1) return CUDA_ERROR_INVALID_VALUE;
  MemoryMap::get().sync_memops_set(address, on != 0);
  // Synchronous operations that are still under way are waited for, those with Async are not.
  ContextRef owner;
  if (on != 0 && context_find(allocation->context, owner) == CUDA_SUCCESS)
    return Stream::wait(owner->legacy->last());
  return CUDA_SUCCESS;
}
