// See swap.h.
#include "interpose/swap.h"

#include <string.h>
#include <sys/mman.h>

#include "interpose/place.h"
#include "interpose/say.h"
#include "interpose/slabs.h"
#include "interpose/swap_state.h"

namespace sluice::interpose {

uint32_t swap_used;
constinit Blocks swap_blocks;
Lock swap_lock;

namespace {

// Who reaches whose memory over a link.
struct Peer {
  CUcontext accessor;  // nullptr = no entry
  CUcontext owner;
  int accessor_device;
};
constinit Slabs<Peer, 64> peers;  // pairs of contexts on different devices

uint64_t granules[kDevicesMax];  // 0 = not asked yet
constexpr uint64_t kNoGranule = ~uint64_t{0};
uint32_t freed_captured;  // allocations freed under a capture, which wait for its end

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return wanted;
}

// What the driver's virtual memory of this device is made of; kNoGranule = it has none.
uint64_t granule(int device) {
  uint64_t bytes = load_relaxed(granules[device]);
  if (bytes != 0) return bytes;
  const CUmemAllocationProp wanted = properties(device);
  size_t answer = 0;
  const CUresult result =
      driver.cuMemGetAllocationGranularity(&answer, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  const bool usable = result == CUDA_SUCCESS && answer > kUnitBytes && answer % kUnitBytes == 0;
  bytes = usable ? answer : kNoGranule;
  store_relaxed(granules[device], bytes);
  return bytes;
}

// The device of the block and those that its context's peers are on.
unsigned access_list(const Block& block, CUmemAccessDesc* out) {
  bool chosen[kDevicesMax] = {};
  chosen[block.device] = true;
  for (uint32_t i = 0; i < peers.count(); ++i) {
    if (peers[i].accessor != nullptr && peers[i].owner == block.context)
      chosen[peers[i].accessor_device] = true;
  }
  unsigned count = 0;
  for (int device = 0; device < kDevicesMax; ++device) {
    if (!chosen[device]) continue;
    out[count].location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    out[count++].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return count;
}

void movable_change(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu >= 0) process.account(gpu).movable_bytes.add(bytes);
}

void swapped_change(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu >= 0) process.account(gpu).swapped_bytes.add(bytes);
}

struct Fresh {
  Block* block;
  CUresult result;
};

// A new block for the context, with memory behind it.
Fresh block_make(int device, CUcontext context, uint64_t bytes, bool shared) {
  CUdeviceptr address = 0;
  CUresult result = driver.cuMemAddressReserve(&address, bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) return {nullptr, result};
  Block* block = swap_blocks.add(address, bytes, shared);
  result = CUDA_ERROR_OUT_OF_MEMORY;
  if (block != nullptr) {
    block->context = context;
    block->device = device;
    result = block_fill(*block);
    if (result == CUDA_SUCCESS) return {block, result};
    swap_blocks.remove(block);
  }
  driver.cuMemAddressFree(address, bytes);
  return {nullptr, result};
}

// Ends an empty block, wherever its contents are. False: the driver keeps it.
bool block_end(Block& block) {
  const bool on_device = block.is_on_device();
  if (block.mapped && block_unmap(block) != CUDA_SUCCESS) return false;
  if (on_device && block_release(block) != CUDA_SUCCESS) return false;
  if (!block.pinned) movable_change(block.device, -block.bytes);
  if (!on_device) swapped_change(block.device, -block.bytes);
  if (block.is_out()) munmap(block.host, block.bytes);
  charge_release(block.device, block.bytes);
  driver.cuMemAddressFree(block.address, block.bytes);
  swap_blocks.remove(&block);
  return true;
}

bool captures_refuse(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

// An event behind everything in the context, whose lock keeps captures from beginning meanwhile.
// False: there can be none (a driver before 12.5).
bool context_mark(CUcontext context, int device, CUevent event, bool* captured) {
  ContextRecord* record = context_record(context, device);
  if (record == nullptr) return false;
  const LockScope scope(record->lock);
  *captured = captures_of(context) != 0;
  return *captured || driver.cuCtxRecordEvent(context, event) == CUDA_SUCCESS;
}

// Waits as cuMemFree does. *captured: a capture has begun, which a wait would break.
CUresult context_wait(CUcontext context, int device, bool* captured) {
  const CurrentScope current(context);
  if (current.result() != CUDA_SUCCESS) return current.result();
  CUevent event = nullptr;
  CUresult result = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return result;
  if (!context_mark(context, device, event, captured)) {
    result = driver.cuCtxSynchronize();
  } else if (!*captured) {
    const RelaxedScope relaxed(RelaxedScope::When::kAlways);
    result = driver.cuEventSynchronize(event);
  }
  driver.cuEventDestroy_v2(event);
  return result;
}

void take_out_locked(const Placed& placed) {
  Block* block = placed.block;
  swap_blocks.take_out(placed);
  if (block->units_used == 0) (void)block_end(*block);
}

CUcontext context_of(const Block& block) {
  return static_cast<CUcontext>(const_cast<void*>(block.context));
}

// Unit::gone
constexpr uint32_t kGone = 1;
constexpr uint32_t kGoneCaptured = 2;  // under a capture, whose end it waits for

struct Freed {
  CUdeviceptr address;
  CUcontext context;
  int device;
};

// Marks an allocation as being freed; no other thread can free it then. False: it is none.
bool free_claim(CUdeviceptr address, Freed* out) {
  const LockScope scope(swap_lock);
  Placed placed;
  if (!swap_blocks.find(address, &placed) || placed.address != address || placed.unit->gone != 0)
    return false;
  placed.unit->gone = kGone;
  *out = Freed{address, context_of(*placed.block), placed.block->device};
  return true;
}

void free_end(CUdeviceptr address, bool done) {
  const LockScope scope(swap_lock);
  Placed placed;
  if (!swap_blocks.find(address, &placed)) return;  // gone with its context
  if (done) {
    take_out_locked(placed);
  } else {
    placed.unit->gone = 0;
  }
}

void free_later(CUdeviceptr address) {
  const LockScope scope(swap_lock);
  Placed placed;
  if (!swap_blocks.find(address, &placed)) return;
  placed.unit->gone = kGoneCaptured;
  ++freed_captured;
}

// The next allocation that was freed under a capture. False: there is none.
bool captured_take(Freed* out) {
  const LockScope scope(swap_lock);
  for (uint32_t i = 0; i < swap_blocks.count(); ++i) {
    Block& block = swap_blocks[i];
    for (uint32_t u = 0; u < block.unit_count; ++u) {
      if (block.units[u].gone != kGoneCaptured) continue;
      block.units[u].gone = kGone;
      --freed_captured;
      *out = Freed{block.address + u * block.unit_bytes, context_of(block), block.device};
      return true;
    }
  }
  return false;
}

bool has_faulted(CUcontext context) {
  const CurrentScope current(context);
  return current.result() == CUDA_SUCCESS && context_fault() != CUDA_SUCCESS;
}

// Frees what a capture kept. To the program it is freed already: what cannot be waited for now is
// tried again.
void captured_free() {
  while (SLUICE_UNLIKELY(load_acquire(freed_captured) != 0) && load_acquire(captures_active) == 0) {
    Freed freed;
    if (!captured_take(&freed)) return;
    bool captured = false;
    const CUresult result = context_wait(freed.context, freed.device, &captured);
    if (captured || (result != CUDA_SUCCESS && !has_faulted(freed.context))) {
      free_later(freed.address);
      return;
    }
    free_end(freed.address, true);
  }
}

}  // namespace

CUresult block_map(Block& block) {
  CUresult result = CUDA_SUCCESS;
  if (!block.mapped) result = driver.cuMemMap(block.address, block.bytes, 0, block.handle, 0);
  if (result != CUDA_SUCCESS) return result;
  block.mapped = true;
  CUmemAccessDesc access[kDevicesMax];
  const unsigned count = access_list(block, access);
  result = driver.cuMemSetAccess(block.address, block.bytes, access, count);
  if (result != CUDA_SUCCESS) (void)block_unmap(block);
  return result;
}

CUresult block_fill(Block& block) {
  const CUmemAllocationProp wanted = properties(block.device);
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver.cuMemCreate(&handle, block.bytes, &wanted, 0);
  if (result != CUDA_SUCCESS) return result;
  block.handle = handle;
  result = block_map(block);
  if (result != CUDA_SUCCESS) (void)block_release(block);
  return result;
}

CUresult block_unmap(Block& block) {
  const CUresult result = driver.cuMemUnmap(block.address, block.bytes);
  if (result == CUDA_SUCCESS) block.mapped = false;
  return result;
}

CUresult block_release(Block& block) {
  const CUresult result = driver.cuMemRelease(block.handle);
  if (result == CUDA_SUCCESS) block.handle = 0;
  return result;
}

SwapResult swap_allocate(int device, CUcontext context, uint64_t bytes, CUdeviceptr* address) {
  const SystemGuard guard;
  const uint64_t unit = granule(device);
  if (unit == kNoGranule) return {SwapAnswer::kByDriver, CUDA_SUCCESS, 0};
  if (const CUresult fault = context_fault(); fault != CUDA_SUCCESS)
    return {SwapAnswer::kDone, fault, 0};
  captured_free();
  if (bytes > UINT64_MAX - unit) return {SwapAnswer::kDone, CUDA_ERROR_OUT_OF_MEMORY, 0};
  Placed placed;
  const bool shared = bytes < unit;
  if (shared) {
    const LockScope scope(swap_lock);
    if (swap_blocks.place_shared(context, bytes, &placed)) {
      *address = placed.address;
      return {SwapAnswer::kDone, CUDA_SUCCESS, 0};
    }
  }
  const uint64_t charged = (bytes + unit - 1) / unit * unit;
  // Not under the lock: others may have to end what they do first.
  if (!charge_reserve(device, charged))
    return {SwapAnswer::kRefused, CUDA_ERROR_OUT_OF_MEMORY, charged};
  const LockScope scope(swap_lock);
  const Fresh fresh = block_make(device, context, charged, shared);
  if (fresh.block == nullptr) {
    charge_abort(device, charged);
    if (fresh.result == CUDA_ERROR_NOT_SUPPORTED) return {SwapAnswer::kByDriver, fresh.result, 0};
    const bool no_room = fresh.result == CUDA_ERROR_OUT_OF_MEMORY;
    return {no_room ? SwapAnswer::kNoRoom : SwapAnswer::kDone, fresh.result, charged};
  }
  charge_commit(device, charged);
  movable_change(device, charged);
  store_release(swap_used, 1u);
  // An empty block has room for what it was made for.
  (void)swap_blocks.place(*fresh.block, bytes, &placed);
  *address = placed.address;
  return {SwapAnswer::kDone, CUDA_SUCCESS, charged};
}

bool swap_has(CUdeviceptr address) {
  const LockScope scope(swap_lock);
  return swap_blocks.at(address) != nullptr;
}

CUresult swap_free(CUdeviceptr address) {
  const SystemGuard guard;
  const CUresult fault = context_fault();
  // An address says whose it is: with no context current the memory's own counts.
  const bool here = fault != CUDA_ERROR_INVALID_CONTEXT;
  if (fault != CUDA_SUCCESS && here) return fault;
  Freed freed;
  captured_free();
  if (load_acquire(captures_active) != 0) {
    // It knows no allocation here, and refuses what the capture forbids before it says so.
    const CUresult answer = driver.cuMemFree_v2(address);
    if (captures_refuse(answer)) return answer;
  }
  if (!free_claim(address, &freed)) return CUDA_ERROR_INVALID_VALUE;
  bool captured = false;
  CUresult result = context_wait(freed.context, freed.device, &captured);
  if (captured) {
    free_later(address);
    return CUDA_SUCCESS;
  }
  // Another context's, whose work has ended by a fault: there is nothing to wait for.
  if (result != CUDA_SUCCESS && here && has_faulted(freed.context)) result = CUDA_SUCCESS;
  free_end(address, result == CUDA_SUCCESS);
  return result;
}

namespace {

// Where a stream that has a handle is named, the driver does not look at the thread's context.
CUresult stream_wait(CUstream stream) {
  const CUcontext context = stream_is_special(stream) ? nullptr : stream_context_anywhere(stream);
  if (context == nullptr) return driver.cuStreamSynchronize(stream);
  const CurrentScope current(context);
  return current.result() == CUDA_SUCCESS ? driver.cuStreamSynchronize(stream) : current.result();
}

}  // namespace

CUresult swap_free_behind(CUdeviceptr address, CUstream stream) {
  const SystemGuard guard;
  Freed freed;
  if (!free_claim(address, &freed)) return CUDA_ERROR_INVALID_VALUE;
  const RelaxedScope relaxed(RelaxedScope::When::kAlways);
  const CUresult result = stream_wait(stream);
  free_end(address, result == CUDA_SUCCESS);
  return result;
}

bool swap_find(CUdeviceptr address, SwapPointer* out) {
  const LockScope scope(swap_lock);
  Placed placed;
  if (!swap_blocks.find(address, &placed) || placed.unit->gone != 0) return false;
  *out =
      SwapPointer{placed.address, placed.unit->asked, placed.unit->id, context_of(*placed.block)};
  return true;
}

CUdeviceptr swap_pin(CUdeviceptr address) {
  const LockScope scope(swap_lock);
  Block* block = swap_blocks.at(address);
  if (block == nullptr) return ~CUdeviceptr{0};
  if (!block->pinned) {
    block->pinned = true;
    movable_change(block->device, -block->bytes);
  }
  return block->address + block->bytes;
}

namespace {

bool peer_reaches(int device, CUcontext owner) {
  for (uint32_t i = 0; i < peers.count(); ++i) {
    const Peer& peer = peers[i];
    if (peer.accessor != nullptr && peer.owner == owner && peer.accessor_device == device)
      return true;
  }
  return false;
}

CUresult access_change(CUcontext owner, int device, CUmemAccess_flags flags) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  access.flags = flags;
  CUresult result = CUDA_SUCCESS;
  for (uint32_t i = 0; i < swap_blocks.count() && result == CUDA_SUCCESS; ++i) {
    Block& block = swap_blocks[i];
    if (block.context != owner || block.device == device || !block.mapped) continue;
    result = driver.cuMemSetAccess(block.address, block.bytes, &access, 1);
  }
  return result;
}

Peer* peer_place() {
  for (uint32_t i = 0; i < peers.count(); ++i) {
    if (peers[i].accessor == nullptr) return &peers[i];
  }
  Peer* made = peers.next();
  if (made != nullptr) peers.publish();
  return made;
}

void peers_forget(CUcontext context) {
  for (uint32_t i = 0; i < peers.count(); ++i) {
    if (peers[i].accessor == context || peers[i].owner == context) peers[i].accessor = nullptr;
  }
}

}  // namespace

CUresult swap_peer(CUcontext accessor, int accessor_device, CUcontext owner, bool on) {
  const LockScope scope(swap_lock);
  if (on) {
    Peer* place = peer_place();
    if (place == nullptr) {
      unrecorded_say("a pair of peers' record");
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!peer_reaches(accessor_device, owner)) {
      const CUresult result =
          access_change(owner, accessor_device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      if (result != CUDA_SUCCESS) return result;
    }
    *place = Peer{accessor, owner, accessor_device};
    return CUDA_SUCCESS;
  }
  for (uint32_t i = 0; i < peers.count(); ++i) {
    if (peers[i].accessor == accessor && peers[i].owner == owner) peers[i].accessor = nullptr;
  }
  // Another context of that device may still be allowed to.
  if (peer_reaches(accessor_device, owner)) return CUDA_SUCCESS;
  return access_change(owner, accessor_device, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

void swap_context_end(CUcontext context) {
  const LockScope scope(swap_lock);
  peers_forget(context);
  for (uint32_t i = swap_blocks.count(); i-- > 0;) {
    Block& block = swap_blocks[i];
    if (block.context != context) continue;
    for (uint32_t u = 0; u < block.unit_count; ++u) {
      if (block.units[u].gone == kGoneCaptured) --freed_captured;
      block.units[u] = Unit{};
    }
    // What the driver keeps stays charged, and is nobody's.
    if (!block_end(block)) block.context = nullptr;
  }
}

void swap_context_moves(CUcontext from, CUcontext to) {
  const LockScope scope(swap_lock);
  for (uint32_t i = 0; i < peers.count(); ++i) {
    if (peers[i].accessor == from) peers[i].accessor = to;
    if (peers[i].owner == from) peers[i].owner = to;
  }
  for (uint32_t i = 0; i < swap_blocks.count(); ++i) {
    if (swap_blocks[i].context == from) swap_blocks[i].context = to;
  }
}

void swap_account(uint64_t* bytes_by_device) {
  uint64_t movable[protocol::kTenantGpusMax] = {}, swapped[protocol::kTenantGpusMax] = {};
  const LockScope scope(swap_lock);
  for (uint32_t i = 0; i < swap_blocks.count(); ++i) {
    const Block& block = swap_blocks[i];
    const int gpu = device_gpu(block.device);
    bytes_by_device[block.device] += block.bytes;
    if (gpu < 0) continue;
    if (!block.pinned) movable[gpu] += block.bytes;
    if (!block.is_on_device()) swapped[gpu] += block.bytes;
  }
  for (uint32_t gpu = 0; gpu < process.gpu_count; ++gpu) {
    process.account(static_cast<int>(gpu)).movable_bytes.store(movable[gpu]);
    process.account(static_cast<int>(gpu)).swapped_bytes.store(swapped[gpu]);
  }
}

void swap_reset_after_fork() {
  swap_lock.reset_after_fork();
  swap_blocks.reset_after_fork();
  swap_used = freed_captured = 0;
  peers.clear();
  memset(granules, 0, sizeof granules);
}

}  // namespace sluice::interpose
