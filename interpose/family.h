// A tenant without a broker: a process with limits of its own and all that descend from it by fork
// and exec. What they share is one memfd: a page of this file (limits, buckets of GPU time, who
// lives), then a lease page and a claims page as a broker would hand out, which the processes write
// themselves.
//
// How a process finds it, in this order:
//   1. it is mapped already: a fork child has its parent's mapping, whatever became of descriptors
//   2. among its own descriptors: exec keeps it, unless the program closed it
//   3. among those of its ancestors, by /proc: for programs that were started with everything
//      closed
// A memfd is taken for ours by name, owner, seals, size and its first words, never by number.
//
// Who lives: each process holds a slot of the claims page by a robust mutex in this page, which the
// helper thread locks. The kernel marks it when the process ends or executes another program, also
// by kill -9; whoever notices zeroes the slot. No pid is looked at, so it does not matter which PID
// namespace a process is in.
#pragma once

#include "interpose/limits.h"
#include "interpose/pages.h"

namespace sluice::interpose {

struct ShareBucket;

enum class FamilyFind { kOwn, kOwnAndAncestors };
/// Finds the family of this process. False: it has none.
bool family_find(FamilyFind where);
/// Founds one with these limits. False, with errno, when the kernel gives no memfd.
bool family_found(const Limits& limits);
/// What its founder was started with.
const Limits& family_limits();

/// The index of a GPU in the lease page, put there if it is new; -1 when the page is full.
int family_gpu(const protocol::GpuUuid& uuid);
uint32_t family_gpu_count();
/// What a context takes, for those who make the next ones.
void family_context_cost_set(int gpu, uint64_t bytes);
ShareBucket& family_bucket(int gpu);
protocol::AtomicU32& family_gate(int gpu);
/// Puts its lease page and claims page in place (pages.h). False: that cannot be.
[[nodiscard]] bool family_pages_install();

/// Takes a free slot of the claims page, -1 if there is none. For the helper thread alone, which
/// must not end while the process uses the slot.
int family_slot_take();
void family_slot_give(int slot);
/// Zeroes the slots of processes that have ended.
/// Up to `busy_ns` of the GPU time of the process that has the slot is paid for; what is above is
/// its debt when it is killed, which who clears its slot pays.
void family_settled(uint32_t slot, int gpu, uint64_t busy_ns);
void family_sweep();

}  // namespace sluice::interpose
