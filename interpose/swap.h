// Movable memory: what cuMemAlloc and cuMemAllocPitch give in a tenant that may be swapped. Each
// allocation lies in a range of reserved addresses with physical memory of the driver's virtual
// memory management behind it, so the memory can be taken away and put back while the addresses
// stay the program's. To the program it is memory of cuMemAlloc; what the driver would say of a
// mapping is answered here instead.
//
// Charged are the granules that the driver gives, when it gives them: the account, what
// cuMemGetInfo shows and what the device holds agree at every moment. Small allocations of a
// context share granules, which go back with the last of them.
//
// Locks: one for all blocks. It is held across the driver calls that make or end a block, never
// while work of the program is waited for, and taken inside an AccountScope or a TouchScope; the
// helper moves memory (swap_move.cpp) when a hold has kept all of these out.
#pragma once

#include "interpose/account.h"
#include "interpose/captures.h"

namespace sluice::interpose {

/// Not 0: this process has, or had, movable memory.
extern uint32_t swap_used;

/// Whether allocations on this device are to be movable. Not while the process captures: then the
/// driver itself says which calls that forbids.
inline bool swap_wanted(int device) {
  const uint32_t gpus = load_relaxed(process.swap_gpus);
  if (SLUICE_LIKELY(gpus == 0)) return false;
  const int gpu = device_gpu(device);
  return gpu >= 0 && (gpus >> gpu & 1) != 0 && load_acquire(captures_active) == 0;
}

enum class SwapAnswer : uint8_t {
  kDone,      // `result` is the answer
  kByDriver,  // this device has no such memory: ask for it as without us
  kRefused,   // by the quota; the sentence was said
  kNoRoom,    // the driver has none, for `charged` bytes
};
struct SwapResult {
  SwapAnswer answer;
  CUresult result;
  uint64_t charged;
};

/// For the calling thread's context, which is on `device`. Fills *address when done with success.
SwapResult swap_allocate(int device, CUcontext context, uint64_t bytes, CUdeviceptr* address);

/// Whether an address belongs to a block, so that the driver is not to be asked about it.
SLUICE_NOINLINE bool swap_has(CUdeviceptr address);
inline bool swap_owns(CUdeviceptr address) {
  return SLUICE_UNLIKELY(load_acquire(swap_used) != 0) && swap_has(address);
}

/// Frees an allocation after the work of its context, or of `stream` alone.
CUresult swap_free(CUdeviceptr address);
CUresult swap_free_behind(CUdeviceptr address, CUstream stream);

/// What a pointer is told to be.
struct SwapPointer {
  CUdeviceptr base;
  uint64_t bytes;  // as the program asked
  uint64_t id;
  CUcontext context;
};
/// False for addresses that are in no allocation, though they may be in a block.
bool swap_find(CUdeviceptr address, SwapPointer* out);
/// Somebody else may reach the memory of the address's block from now on: it is not moved any more.
/// Returns where the block ends.
CUdeviceptr swap_pin(CUdeviceptr address);

/// The context may reach the memory of `owner`, which is on another device, or no longer.
CUresult swap_peer(CUcontext accessor, int accessor_device, CUcontext owner, bool on);

/// Ends what the context had, without waiting: the driver has ended its work.
void swap_context_end(CUcontext context);
/// What the context had is another's on the same device.
void swap_context_moves(CUcontext from, CUcontext to);

/// Adds what is charged by device, and writes what of it can be moved, and where it is, into the
/// slot.
void swap_account(uint64_t* bytes_by_device);
void swap_reset_after_fork();

// The orders of a hold, by the helper, once the hold has been acknowledged.
struct SwapMoved {
  int32_t result;  // a CUresult; -1: no host memory
  uint64_t bytes;
};
/// On failure everything is as before. `stop` is looked at between pieces; set, it fails the order.
SwapMoved swap_out(int gpu, const uint32_t* stop);
SwapMoved swap_in(int gpu, const uint32_t* stop);
/// Bytes in host memory.
uint64_t swap_bytes_out(int gpu);
uint64_t swap_bytes_out();

}  // namespace sluice::interpose
