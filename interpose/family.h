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
// A memfd is taken for ours by owner, seals, size and its first words, never by number.
//
// Which job a process is of: a program may be executed without the variables of its job, or with
// others. So a process that names no tenant is of the job of the family that it finds in that way
// (family_adopt). One that names a tenant founds a family for it where it finds none: a job within
// a job has a family of its own. That one counts only once a broker has confirmed the inner tenant,
// because anybody can write a variable; until then its processes are of the outer job
// (family_leave).
//
// Who lives: each process holds a slot of the claims page by a robust mutex in this page, which the
// helper thread locks. The kernel marks it when the process ends or executes another program, also
// by kill -9; whoever notices zeroes the slot. No pid says so: processes may be in PID namespaces
// of their own.
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
enum class FamilyAdoption {
  kNone,
  kAdopted,
  kBlind,  // no descriptor is left to look into /proc with
};
/// Finds the family of a job among the process's own descriptors, else among those of its nearest
/// ancestor that has one.
FamilyAdoption family_adopt();
/// Goes over from the family of a tenant that no broker has confirmed to that of the job in which
/// it was founded. False, and nothing was done: it was founded in none, or is confirmed. For a
/// process without a helper thread yet.
bool family_leave();
/// Founds a family. Its founder was started with these limits. `socket`: where its broker is asked;
/// may be null. False, with errno, when the kernel gives no memfd: EFBIG where the program's limit
/// on the size of files is too small for it.
bool family_found(const Limits& limits, const FamilyTenant& tenant = {},
                  const char* socket = nullptr);
/// True when this process has found or founded one.
bool family_is_there();
/// Returns the job that the family is of. Precondition: family_is_there().
FamilyTenant family_tenant();
/// True when it was founded within another job, so that a variable says nothing about its limits.
bool family_is_inner();
/// A path of a socket, sockaddr_un::sun_path.
inline constexpr size_t kSocketPathBytes = 108;
/// Where its founder's broker is asked. False: there is no family, or it does not say.
bool family_socket(char (&out)[kSocketPathBytes]);
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
/// Precondition: gpu < family_gpu_count().
const protocol::GpuUuid& family_gpu_uuid(uint32_t gpu);
/// What a context takes, for those who make the next ones.
void family_context_cost_set(int gpu, uint64_t bytes);
ShareBucket& family_bucket(int gpu);
protocol::AtomicU32& family_gate(int gpu);
protocol::ClaimsPage* family_claims();
/// Puts its lease page and claims page in place (pages.h). False: that cannot be.
[[nodiscard]] bool family_pages_install();

/// Takes a free slot of the claims page, -1 if there is none: one of a process that has ended and
/// is charged still only if there is no other. For the helper thread alone, which must not end
/// while the process uses the slot.
int family_slot_take();
void family_slot_give(int slot);
/// Up to `busy_ns` of the GPU time of the process that has the slot is paid for; what is above is
/// its debt when it is killed, which the clearing of its slot settles.
void family_settled(uint32_t slot, int gpu, uint64_t busy_ns);
/// Whether nothing is left of the ended process that had the slot, `ended_for_ns` after it was
/// found to have ended.
using EndedIsOver = bool (*)(uint32_t slot, uint64_t ended_for_ns);
/// Zeroes the slots of processes that have ended and of which nothing is left: until then what they
/// held stays charged.
void family_sweep(EndedIsOver is_over);
/// Whether the slot's process has ended. False while another process looks at the slot.
bool family_slot_has_ended(uint32_t slot);
/// Whether processes that the sweeps found to have ended are charged on the GPU.
bool family_ended_is_charged(uint32_t gpu);

}  // namespace sluice::interpose
