// A tenant without a broker: a process with limits of its own, or with those of an announced
// tenant, and all that descend from it by fork and exec. What they share is one memfd: a page of
// this file (limits, buckets of GPU time, who lives), then a lease page and a claims page as a
// broker would hand out, which the processes write themselves.
//
// The processes of an announced tenant have one while their broker answers, too. Those that are
// registered keep their memory there as well (ledger.h), so that those that found no broker see it.
//
// How a process finds it, in this order:
//   1. it is mapped already: a fork child has its parent's mapping, whatever became of descriptors
//   2. among its own descriptors: exec keeps it, unless the program closed it
//   3. among those of its ancestors, by /proc: for programs that were started with everything
//      closed
// A memfd is taken for ours by name, owner, seals, size and its first words, never by number. It
// must be of the same tenant: a job within a job has a family of its own.
//
// Who lives: each process holds a slot of the claims page by a robust mutex in this page, which the
// helper thread locks. The kernel marks it when the process ends or executes another program, also
// by kill -9; whoever notices zeroes the slot. No pid is looked at, so it does not matter which PID
// namespace a process is in.
#pragma once

#include "broker/protocol/tenant_limits.h"
#include "interpose/limits.h"
#include "interpose/pages.h"

namespace sluice::interpose {

struct ShareBucket;

/// Whose family it is; all 0 = of programs that nobody announced.
struct FamilyTenant {
  protocol::TenantId id = 0;
  protocol::JoinKey key = 0;
};

enum class FamilyFind { kOwn, kOwnAndAncestors };
/// Finds the family of this process. False: it has none.
bool family_find(FamilyFind where, const FamilyTenant& tenant);
/// Founds one whose founder was started with these limits. False, with errno, when the kernel gives
/// no memfd.
bool family_found(const Limits& limits, const FamilyTenant& tenant = {});
/// True when this process has found or founded one.
bool family_is_there();
/// What its founder was started with.
const Limits& family_limits_own();
/// What its processes may take without a broker: its founder's limits and all that narrowed them.
const Limits& family_limits();
/// From now on its processes may take no more than that without a broker.
void family_narrow(const Limits& limits);
/// Narrows it to what its tenant was admitted with, and to the tenant's GPUs. Later calls do
/// nothing.
void family_learn(const protocol::TenantLimits& admitted);
/// True once family_learn has been called by any of its processes: its limits are the tenant's.
bool family_knows_tenant();

/// The index of a GPU in the lease page, put there if it is new; -1 when the page is full.
int family_gpu(const protocol::GpuUuid& uuid);
/// The index of a GPU in the lease page; -1 when it is not there.
int family_gpu_find(const protocol::GpuUuid& uuid);
uint32_t family_gpu_count();
/// What a context takes, for those who make the next ones.
void family_context_cost_set(int gpu, uint64_t bytes);
ShareBucket& family_bucket(int gpu);
protocol::AtomicU32& family_gate(int gpu);
protocol::ClaimsPage* family_claims();
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
