// Steps of random programs: stream-ordered memory, pools, and memory under reserved addresses.
#include <unistd.h>

#include <algorithm>

#include "tests/interpose/random_world.h"

namespace sluice::test {
namespace {

std::size_t chunks(std::size_t bytes) { return (bytes + kChunk - 1) / kChunk * kChunk; }

/// A pool of the program's, or one of a device's; and the device. With `own_only` none of a
/// device's that others have as well: nullptr.
CUmemoryPool pool_any(Step& step, int* device, bool* bounded = nullptr, bool own_only = false) {
  PoolSlot* slot = step.random.chance(60) ? step.world.pools.live_one(step.random) : nullptr;
  CUmemoryPool pool = nullptr;
  if (slot != nullptr) {
    *device = slot->device;
    if (bounded != nullptr) *bounded = slot->bounded;
    step.say("p" + std::to_string(step.world.pools.number(*slot)));
    return slot->handle;
  }
  *device = static_cast<int>(step.random.below(kDevices));
  if (own_only && step.world.shared()) return nullptr;
  const bool current = step.random.chance(50);
  if (bounded != nullptr) *bounded = current;  // it may be any of the above
  step.say((current ? "current pool of " : "default pool of ") + std::to_string(*device));
  if (current)
    cuDeviceGetMemPool(&pool, *device);
  else
    cuDeviceGetDefaultMemPool(&pool, *device);
  return pool;
}

void pooled_taken(Step& step, CUresult result, CUdeviceptr address, std::size_t bytes,
                  CUstream stream, int device) {
  step.output("address", result, address, CUdeviceptr{kUntouched});
  if (result != CUDA_SUCCESS) return;
  // In a capture it is the graph's, and not there before the graph is launched.
  if (GraphDeeds* deeds = step.capture_of(stream); deeds != nullptr) {
    deeds->allocations.push_back({address, bytes, false, device});
    step.say("captured");
    return;
  }
  BlockSlot* slot = step.world.blocks.free_one(step.random);
  if (slot == nullptr) {
    CALL(step, cuMemFreeAsync, address, stream);
    return;
  }
  *slot = {{true, -1}, address, bytes, BlockKind::kPooled};
  step.say("b" + std::to_string(step.world.blocks.number(*slot)));
}

void allocate_async(Step& step) {
  const std::size_t bytes = step.random.bytes();
  step.say(std::to_string(bytes));
  const CUstream stream = step.stream();
  CUdeviceptr address = kUntouched;
  const int device = step.device_of(stream);
  const CUresult result = CALL(step, cuMemAllocAsync, &address, bytes, stream);
  step.limit.step_most = std::max(step.limit.step_most, chunks(bytes));
  pooled_taken(step, result, address, bytes, stream, device);
}

void allocate_from_pool(Step& step) {
  const std::size_t bytes = step.random.bytes();
  step.say(std::to_string(bytes));
  int device = 0;
  bool bounded = false;
  const CUmemoryPool pool = pool_any(step, &device, &bounded);
  const CUstream stream = step.stream();
  CUdeviceptr address = kUntouched;
  const CUresult result = CALL(step, cuMemAllocFromPoolAsync, &address, bytes, pool, stream);
  if (!bounded) step.refused(result, device, chunks(bytes));
  step.limit.step_most = std::max(step.limit.step_most, chunks(bytes));
  pooled_taken(step, result, address, bytes, stream, device);
}

void async_wrongly(Step& step) {
  CUdeviceptr address = kUntouched;
  int device = 0;
  switch (step.random.below(5)) {
    case 0:
      CALL(step, cuMemAllocAsync, &address, 0, step.stream());
      break;
    case 1:
      CALL(step, cuMemAllocAsync, nullptr, 100, step.stream());
      break;
    case 2:
      CALL(step, cuMemAllocFromPoolAsync, &address, 100, nullptr, step.stream());
      break;
    case 3:
      CALL(step, cuMemAllocFromPoolAsync, &address, SIZE_MAX / 2, pool_any(step, &device),
           step.stream());
      break;
    case 4:
      CALL(step, cuMemPoolTrimTo, nullptr, 0);
      CALL(step, cuMemPoolDestroy, pool_any(step, &device) == nullptr ? nullptr : nullptr);
      break;
  }
  if (address != kUntouched) step.say("changed");
}

/// An allocation of the capture itself, freed within it.
void free_captured(Step& step, GraphDeeds& deeds, CUstream stream) {
  for (GraphDeeds::Allocation& allocation : deeds.allocations) {
    if (allocation.freed) continue;
    allocation.freed = CALL(step, cuMemFreeAsync, allocation.address, stream) == CUDA_SUCCESS;
    return;
  }
}

void free_async(Step& step) {
  BlockSlot* slot = step.world.blocks.live_one(step.random);
  const CUstream stream = step.stream();
  if (GraphDeeds* deeds = step.capture_of(stream); deeds != nullptr && step.random.chance(70))
    return free_captured(step, *deeds, stream);
  if (slot == nullptr || slot->busy) return;
  // Launched again, it would free what may be another program's by then.
  if (step.world.shared() && step.capture_of(stream) != nullptr) return;
  step.say("b" + std::to_string(step.world.blocks.number(*slot)));
  if (CALL(step, cuMemFreeAsync, slot->address, stream) != CUDA_SUCCESS) return;
  if (GraphDeeds* deeds = step.capture_of(stream); deeds != nullptr)
    deeds->frees.push_back(slot->address);
  else
    slot->live = false;
}

void pool_create(Step& step) {
  PoolSlot* slot = step.world.pools.free_one(step.random);
  if (slot == nullptr) return;
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  const int device = static_cast<int>(step.random.below(kDevices));
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  const bool exportable = step.random.chance(30);
  props.handleTypes =
      exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  if (step.random.chance(20)) props.maxSize = step.random.bytes();
  if (step.random.chance(5)) props.location.id = 99;
  CUmemoryPool pool = untouched<CUmemoryPool>();
  const CUresult result = CALL(step, cuMemPoolCreate, &pool, &props);
  step.output("pool", result, pool, untouched<CUmemoryPool>());
  if (result != CUDA_SUCCESS) return;
  *slot = {{true, -1}, pool, device, props.maxSize != 0};
  step.say("p" + std::to_string(step.world.pools.number(*slot)));
}

void pool_destroy(Step& step) {
  PoolSlot* slot = step.world.pools.live_one(step.random);
  if (slot == nullptr) return;
  step.say("p" + std::to_string(step.world.pools.number(*slot)));
  if (CALL(step, cuMemPoolDestroy, slot->handle) == CUDA_SUCCESS) slot->live = false;
}

void pool_trim(Step& step) {
  int device = 0;
  CALL(step, cuMemPoolTrimTo, pool_any(step, &device),
       step.random.chance(60) ? 0 : step.random.bytes());
}

void pool_attribute(Step& step) {
  int device = 0;
  const CUmemoryPool pool = pool_any(step, &device, nullptr, true);
  if (pool == nullptr) return;
  cuuint64_t value = step.random.of({cuuint64_t{0}, cuuint64_t{UINT64_MAX}, cuuint64_t{1} << 23});
  int flag = static_cast<int>(step.random.below(2));
  switch (step.random.below(6)) {
    case 0:
    case 1:
      CALL(step, cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
      break;
    case 2:
      CALL(step, cuMemPoolSetAttribute, pool,
           step.random.of({CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                           CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                           CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES}),
           &flag);
      break;
    case 3:
      value = 0;
      CALL(step, cuMemPoolSetAttribute, pool,
           step.random.of({CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH}),
           &value);
      break;
    case 4:
      if (CALL(step, cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value) ==
          CUDA_SUCCESS)
        step.say("used " + std::to_string(value));
      break;
    case 5:
      CALL(step, cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
      break;
  }
}

void pool_of_device(Step& step) {
  int device = 0;
  if (step.world.shared()) return;
  const CUmemoryPool pool = pool_any(step, &device);
  CALL(step, cuDeviceSetMemPool, step.random.chance(80) ? device : 1 - device, pool);
}

void pool_access(Step& step) {
  int device = 0;
  const CUmemoryPool pool = pool_any(step, &device, nullptr, true);
  if (pool == nullptr) return;
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE,
                         {static_cast<int>(step.random.below(kDevices))}};
  CUmemAccessDesc access{
      location, step.random.of({CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_NONE,
                                CU_MEM_ACCESS_FLAGS_PROT_READ})};
  CALL(step, cuMemPoolSetAccess, pool, &access, 1);
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (CALL(step, cuMemPoolGetAccess, &flags, pool, &location) == CUDA_SUCCESS)
    step.say(std::to_string(flags));
}

// A pool's descriptor, and a pool made of it in the same process: its memory is the first one's.
void pool_share(Step& step) {
  PoolSlot* from = step.world.pools.live_one(step.random);
  PoolSlot* to = step.world.pools.free_one(step.random);
  if (from == nullptr || to == nullptr) return;
  step.say("p" + std::to_string(step.world.pools.number(*from)));
  int file = -1;
  if (CALL(step, cuMemPoolExportToShareableHandle, &file, from->handle,
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
    return;
  CUmemoryPool pool = untouched<CUmemoryPool>();
  const CUresult result = CALL(step, cuMemPoolImportFromShareableHandle, &pool,
                               reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  close(file);
  step.output("pool", result, pool, untouched<CUmemoryPool>());
  if (result == CUDA_SUCCESS) *to = {{true, -1}, pool, from->device, from->bounded};
}

void pool_share_pointer(Step& step) {
  BlockSlot* block = step.world.blocks.live_one(step.random);
  PoolSlot* pool = step.world.pools.live_one(step.random);
  BlockSlot* slot = step.world.blocks.free_one(step.random);
  if (block == nullptr || pool == nullptr || slot == nullptr) return;
  CUmemPoolPtrExportData data{};
  if (CALL(step, cuMemPoolExportPointer, &data, block->address) != CUDA_SUCCESS) return;
  CUdeviceptr address = kUntouched;
  const CUresult result = CALL(step, cuMemPoolImportPointer, &address, pool->handle, &data);
  step.output("address", result, address, CUdeviceptr{kUntouched});
  if (result == CUDA_SUCCESS) *slot = {{true, -1}, address, block->bytes, BlockKind::kPooled};
}

// --- memory under reserved addresses ---

CUmemAllocationProp piece_properties(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

void piece_create(Step& step) {
  PieceSlot* slot = step.world.pieces.free_one(step.random);
  if (slot == nullptr) return;
  const int device = static_cast<int>(step.random.below(kDevices));
  std::size_t bytes = kChunk * (1 + step.random.below(4));
  if (step.random.chance(5)) bytes = step.random.of({std::size_t{0}, std::size_t{4096}});
  step.say(std::to_string(bytes) + " of " + std::to_string(device));
  const CUmemAllocationProp properties = piece_properties(step.random.chance(3) ? 77 : device);
  CUmemGenericAllocationHandle handle = kUntouched;
  const CUresult result = CALL(step, cuMemCreate, &handle, bytes, &properties, 0);
  step.refused(result, device, bytes);
  step.output("handle", result, handle, CUmemGenericAllocationHandle{kUntouched});
  if (result != CUDA_SUCCESS) return;
  *slot = {{true, -1}, handle, bytes, device};
  step.say("m" + std::to_string(step.world.pieces.number(*slot)));
}

void piece_release(Step& step) {
  PieceSlot* slot = step.world.pieces.live_one(step.random);
  if (slot == nullptr) return;
  step.say("m" + std::to_string(step.world.pieces.number(*slot)));
  if (CALL(step, cuMemRelease, slot->handle) == CUDA_SUCCESS) slot->live = false;
}

void range_reserve(Step& step) {
  RangeSlot* slot = step.world.ranges.free_one(step.random);
  if (slot == nullptr) return;
  const std::size_t bytes = kChunk * (1 + step.random.below(6)) + (step.random.chance(5) ? 1 : 0);
  CUdeviceptr address = kUntouched;
  const CUresult result = CALL(step, cuMemAddressReserve, &address, bytes, 0, 0, 0);
  step.output("address", result, address, CUdeviceptr{kUntouched});
  if (result == CUDA_SUCCESS) *slot = {{true, -1}, address, bytes};
}

void range_free(Step& step) {
  RangeSlot* slot = step.world.ranges.live_one(step.random);
  if (slot == nullptr) return;
  const std::size_t bytes = step.random.chance(10) ? kChunk : slot->bytes;
  if (CALL(step, cuMemAddressFree, slot->address, bytes) == CUDA_SUCCESS) slot->live = false;
}

CUdeviceptr place_in(Step& step, const RangeSlot& range) {
  return range.address + kChunk * step.random.below(std::max<std::size_t>(range.bytes / kChunk, 1));
}

void piece_map(Step& step) {
  RangeSlot* range = step.world.ranges.live_one(step.random);
  PieceSlot* piece = step.world.pieces.live_one(step.random);
  if (range == nullptr || piece == nullptr) return;
  step.say("m" + std::to_string(step.world.pieces.number(*piece)) + " in r" +
           std::to_string(step.world.ranges.number(*range)));
  const CUdeviceptr at = place_in(step, *range);
  step.say("+" + std::to_string(at - range->address));
  const std::size_t bytes = step.random.chance(90) ? piece->bytes : kChunk;
  if (CALL(step, cuMemMap, at, bytes, 0, piece->handle, 0) != CUDA_SUCCESS) return;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {piece->device}},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (step.random.chance(70)) CALL(step, cuMemSetAccess, at, bytes, &access, 1);
  if (step.random.chance(40)) CALL(step, cuMemsetD8Async, at, 1, 4096, step.stream());
  if (step.random.chance(30) && CALL(step, cuMemRelease, piece->handle) == CUDA_SUCCESS)
    piece->live = false;
}

void piece_unmap(Step& step) {
  RangeSlot* range = step.world.ranges.live_one(step.random);
  if (range == nullptr) return;
  step.say("r" + std::to_string(step.world.ranges.number(*range)));
  const CUdeviceptr at = step.random.chance(30) ? range->address : place_in(step, *range);
  const std::size_t bytes =
      step.random.chance(20) ? range->bytes : kChunk * (1 + step.random.below(4));
  step.say("+" + std::to_string(at - range->address) + " " + std::to_string(bytes));
  CALL(step, cuMemUnmap, at, bytes);
}

void piece_retain(Step& step) {
  RangeSlot* range = step.world.ranges.live_one(step.random);
  PieceSlot* slot = step.world.pieces.free_one(step.random);
  if (range == nullptr || slot == nullptr) return;
  CUmemGenericAllocationHandle handle = kUntouched;
  const CUdeviceptr at = place_in(step, *range);
  const CUresult result =
      CALL(step, cuMemRetainAllocationHandle, &handle, reinterpret_cast<void*>(at));
  step.output("handle", result, handle, CUmemGenericAllocationHandle{kUntouched});
  if (result != CUDA_SUCCESS) return;
  CUmemAllocationProp properties{};
  CALL(step, cuMemGetAllocationPropertiesFromHandle, &properties, handle);
  *slot = {{true, -1}, handle, kChunk, properties.location.id};
}

void piece_share(Step& step) {
  PieceSlot* from = step.world.pieces.live_one(step.random);
  PieceSlot* to = step.world.pieces.free_one(step.random);
  if (from == nullptr || to == nullptr) return;
  step.say("m" + std::to_string(step.world.pieces.number(*from)));
  int file = -1;
  if (CALL(step, cuMemExportToShareableHandle, &file, from->handle,
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
    return;
  if (step.random.chance(30) && CALL(step, cuMemRelease, from->handle) == CUDA_SUCCESS)
    from->live = false;
  CUmemGenericAllocationHandle handle = kUntouched;
  const CUresult result = CALL(step, cuMemImportFromShareableHandle, &handle,
                               reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(file);
  step.refused(result, from->device, from->bytes);
  step.limit.unasked_sum += from->bytes;
  step.output("handle", result, handle, CUmemGenericAllocationHandle{kUntouched});
  if (result == CUDA_SUCCESS) *to = {{true, -1}, handle, from->bytes, from->device};
}

void access_change(Step& step) {
  RangeSlot* range = step.world.ranges.live_one(step.random);
  if (range == nullptr) return;
  const CUdeviceptr at = place_in(step, *range);
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE,
                         {static_cast<int>(step.random.below(kDevices))}};
  const CUmemAccessDesc access{location, step.random.of({CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                                                         CU_MEM_ACCESS_FLAGS_PROT_READ})};
  CALL(step, cuMemSetAccess, at, kChunk * (1 + step.random.below(3)), &access, 1);
  unsigned long long flags = 0;
  if (CALL(step, cuMemGetAccess, &flags, &location, at) == CUDA_SUCCESS)
    step.say(std::to_string(flags));
}

}  // namespace

void pool_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"pools", "allocate_async", 10, allocate_async},
                             {"pools", "allocate_from_pool", 10, allocate_from_pool},
                             {"pools", "async_wrongly", 2, async_wrongly},
                             {"pools", "free_async", 16, free_async},
                             {"pools", "pool_create", 4, pool_create},
                             {"pools", "pool_destroy", 3, pool_destroy},
                             {"pools", "pool_trim", 4, pool_trim},
                             {"pools", "pool_attribute", 6, pool_attribute},
                             {"pools", "pool_of_device", 2, pool_of_device},
                             {"pools", "pool_access", 1, pool_access},
                             {"pools", "pool_share", 1, pool_share},
                             {"pools", "pool_share_pointer", 1, pool_share_pointer}});
}

void virtual_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"virtual", "piece_create", 8, piece_create},
                             {"virtual", "piece_release", 5, piece_release},
                             {"virtual", "range_reserve", 4, range_reserve},
                             {"virtual", "range_free", 3, range_free},
                             {"virtual", "piece_map", 10, piece_map},
                             {"virtual", "piece_unmap", 8, piece_unmap},
                             {"virtual", "piece_retain", 3, piece_retain},
                             {"virtual", "piece_share", 2, piece_share},
                             {"virtual", "access_change", 3, access_change}});
}

}  // namespace sluice::test
