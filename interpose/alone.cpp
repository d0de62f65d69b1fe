// See alone.h.
#include "interpose/alone.h"

#include <string.h>
#include <unistd.h>

#include "interpose/activity.h"
#include "interpose/clock.h"
#include "interpose/gate.h"
#include "interpose/link.h"
#include "interpose/meter.h"

namespace sluice::interpose {

using namespace protocol;

OwnShare* own_share;

namespace {

constexpr uint64_t kGateSliceNs = 50'000'000;

constinit Limits own_limits;
enum Which : int { kOfFamily, kOfProcess };
constinit OwnShare shares[kOwnShares];  // percent 0 = it is not asked for
constinit ShareBucket private_buckets[kTenantGpusMax];
constinit AtomicU32 private_gates[kTenantGpusMax];
ShareUse family_uses[kTenantGpusMax];
ShareUse own_uses[kOwnShares][kTenantGpusMax];

FamilyTenant tenant_of_process() {
  FamilyTenant tenant;
  if (!link_tenant(&tenant.id, &tenant.key)) return FamilyTenant{};
  return tenant;
}

bool family_enter(const char** fault) {
  if (alone_family()) return true;
  *fault = errno == EFBIG
               ? kFileTooSmall
               : "the kernel gives no memory to keep its limits in (memfd_create); raise the limit "
                 "on open files, or use a broker";
  return false;
}

void share_set(Which which, uint32_t percent) {
  store_release(shares[which].percent, percent);
  if (load_relaxed(own_share) == nullptr) store_release(own_share, shares);
}

void share_private(uint32_t percent) {
  for (uint32_t i = 0; i < kTenantGpusMax; ++i) {
    private_gates[i].store(lease_word(1, kLeaseOpen));
    shares[kOfProcess].buckets[i] = &private_buckets[i];
    store_release(shares[kOfProcess].gates[i], &private_gates[i]);
  }
  share_set(kOfProcess, percent);
}

// The bucket that the whole family has together, beside a broker's lease. False: the family has no
// room for these GPUs.
bool share_common(uint32_t percent) {
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    const int gpu = family_gpu(process.lease->gpus[i].gpu);
    if (gpu < 0) return false;
    shares[kOfFamily].buckets[i] = &family_bucket(gpu);
    store_release(shares[kOfFamily].gates[i], &family_gate(gpu));
  }
  share_set(kOfFamily, percent);
  return true;
}

// The tenant's share of a GPU's time by its lease page. An exclusive tenant's is not divided.
uint32_t lease_percent() {
  const uint32_t percent = process.lease->gpus[0].sm_percent;
  const bool exclusive = process.lease->tenant_class == TenantClass::kExclusive;
  return exclusive || percent < 1 || percent > 100 ? 100 : percent;
}

// Whether an entry of the environment gives the variable a value.
bool entry_sets(const char* entry, const char* variable) {
  while (*variable != '\0' && *entry == *variable) ++entry, ++variable;
  return *variable == '\0' && entry[0] == '=' && entry[1] != '\0';
}

struct Given {
  bool limits, tenant;
};
Given given_in(char** environment) {
  Given given{};
  for (; *environment != nullptr; ++environment) {
    if (**environment != 'S') continue;
    given.limits |=
        entry_sets(*environment, kMemoryVariable) || entry_sets(*environment, kSmVariable);
    given.tenant |= entry_sets(*environment, kTenantVariable);
  }
  return given;
}

}  // namespace

// Where the user set limits, the family must be there before the program has children: one that
// forks first and uses CUDA afterwards has no other moment. A tenant's program may clear its
// environment before it uses CUDA, as daemons do, and is a tenant's all the same. All programs that
// are started under the shim come by here: without the variables nothing of libc is called. This is
// the library's DT_INIT (CMakeLists.txt), not a constructor, whose address the loader would have to
// relocate; it stands in front, beside what the loader has just read. glibc passes what main gets.
#define SLUICE_AT_LOAD __attribute__((visibility("hidden"), section(".text.startup")))
extern "C" SLUICE_AT_LOAD void sluice_load(int, char**, char** environment) {
  const Given given = given_in(environment);
  if (!given.limits && !given.tenant) return;
  const ErrnoGuard guard;
  link_origin_keep();
  stderr_remember_before();
  Limits limits;
  Line fault;
  // What is wrong is said when it matters, at the first CUDA call.
  const bool own = link_limits(&limits, &fault) && limits.any();
  if (!own && tenant_of_process().id == 0) return;
  if (own) own_limits = limits;
  (void)alone_family_of_job();
}

namespace {

bool family_look() {
  const FamilyTenant tenant = tenant_of_process();
  const bool founds = own_limits.any() || tenant.id != 0;
  return family_find(founds ? FamilyFind::kOwnAndAncestors : FamilyFind::kOwn, tenant);
}

// What a variable says counts for no job within a job.
void family_tell() {
  TenantLimits admitted;
  if (!family_is_inner() && link_tenant_limits(&admitted)) family_learn(admitted);
}

bool family_make() {
  const char* const socket = link_has_tenant() ? link_path() : nullptr;
  return family_found(own_limits, tenant_of_process(), socket);
}

// Where nothing says which process is the first of its job, any may be.
bool may_found() {
  TenantLimits admitted;
  return !link_tenant_limits(&admitted) || admitted.founder == 0 ||
         admitted.founder == static_cast<uint32_t>(getpid());
}

}  // namespace

bool alone_family() {
  if (!family_look() && !family_make()) return false;
  family_tell();
  return true;
}

bool alone_family_of_job() {
  if (!family_look()) {
    if (!may_found()) {
      errno = ENOENT;
      return false;
    }
    if (!family_make()) return false;
  }
  family_tell();
  return true;
}

void alone_learn() {
  if (!link_has_tenant() || process.gpu_count == 0) return;
  if (!alone_family_of_job() || family_knows_tenant()) return;
  TenantLimits admitted{};
  const LeasePage& lease = *process.lease;
  admitted.exclusive = lease.tenant_class == TenantClass::kExclusive;
  admitted.memory_max_bytes = lease.gpus[0].memory_max_bytes;
  admitted.sm_percent = lease_percent();
  admitted.context_bytes = lease.gpus[0].context_bytes;
  admitted.gpu_count = process.gpu_count;
  for (uint32_t i = 0; i < process.gpu_count; ++i) admitted.gpus[i] = lease.gpus[i].gpu;
  family_learn(admitted);
}

void limits_set(const Limits& limits) {
  own_limits = limits;
  process.memory_own = limits.memory_bytes;
}

const Limits& limits_own() { return own_limits; }

bool alone_wanted() {
  return own_limits.any() || (!link_has_tenant() && family_find(FamilyFind::kOwn, FamilyTenant{}));
}

bool alone_enter(const char** fault) {
  if (!family_enter(fault)) return false;
  if (!pages_reserve()) {
    *fault = "there is no address space left for its limits";
    return false;
  }
  if (!family_pages_install()) {
    *fault = "the kernel does not map the pages that its limits are kept in";
    return false;
  }
  store_release(process.alone, 1u);
  return shares_begin(fault);
}

static bool others_in_flight(int gpu) {
  const uint32_t used = process.claims->slots_used.load();
  for (uint32_t i = 0; i < used && i < kTenantProcessesMax; ++i) {
    if (i != process.slot && process.claims->slots[i].gpus[gpu].in_flight.load() != 0) return true;
  }
  return false;
}

bool share_lets_through(ShareGate which, int gpu, uint32_t word) {
  ThreadRecord* thread = this_thread;
  if (thread == nullptr) return false;
  const auto index = static_cast<size_t>(which);
  Patience& patience = thread->gate_patience[index];
  const uint64_t key = uint64_t{static_cast<uint32_t>(gpu)} << 32 | word;
  if (thread->gate_word[index] != key) patience = Patience{};
  thread->gate_word[index] = key;
  InFlight seen{};
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord& context = *context_at(i);
    if (!context.is_usable() || device_gpu(context.device) != gpu) continue;
    const LockScope scope(context.lock);
    in_flight_add(context, patience.first, &seen);
  }
  // With nothing in flight, what was used is paid for in time.
  if (seen.launches == 0 && !others_in_flight(gpu)) return false;
  return patience_ends(patience, seen, clock_now_ns());
}

// The gate of a share that keeps launches on the GPU out; nullptr = none does.
static const AtomicU32* own_share_closed(int gpu, uint32_t* word) {
  if (load_acquire(own_share) == nullptr) return nullptr;
  for (const OwnShare& share : shares) {
    const AtomicU32* gate = load_acquire(share.gates[gpu]);
    if (load_acquire(share.percent) == 0 || gate == nullptr) continue;
    *word = gate->load();
    if ((*word & kLeaseOpen) == 0) return gate;
  }
  return nullptr;
}

void own_share_wait(int gpu) {
  const ErrnoGuard guard;
  uint32_t word = 0;
  if (own_share_closed(gpu, &word) == nullptr) return;
  const WaitScope told(WaitReason::kGate);
  const uint64_t start_ns = clock_now_ns();
  // A broker that comes or goes may take the share away, or its gate elsewhere, at any moment; and
  // nobody opens it any more while the process exits, or where launches fail.
  while (!lease_is_void()) {
    const AtomicU32* gate = own_share_closed(gpu, &word);
    if (gate == nullptr || share_lets_through(ShareGate::kOwn, gpu, word)) break;
    futex_wait(&gate->raw, word, kGateSliceNs, true);
  }
  gate_wait_tell(gpu, clock_now_ns() - start_ns);
}

bool shares_begin(const char** fault) {
  shares_reset();
  const bool alone = load_acquire(process.alone) != 0;
  if (!alone && own_limits.sm_percent == 100) return true;
  if (!alone && process.lease->tenant_class == TenantClass::kExclusive) {
    *fault = "SLUICE_SM cannot narrow an exclusive job, whose GPU time is not measured; unset it";
    return false;
  }
  if (!family_enter(fault)) return false;
  // Beside a broker what the tenant was admitted with is the broker's to keep.
  const uint32_t of_family = (alone ? family_limits() : family_limits_own()).sm_percent;
  if (own_limits.sm_percent < of_family) {
    share_private(own_limits.sm_percent);
  } else if (!alone && !share_common(of_family)) {
    *fault = "its GPUs are more than SLUICE_SM reaches; name 8 of them in CUDA_VISIBLE_DEVICES";
    return false;
  }
  return true;
}

void shares_detach() {
  shares_reset();
  if (process.lease->tenant_class == TenantClass::kExclusive) return;
  const uint32_t given = lease_percent();
  const uint32_t percent = own_limits.sm_percent < given ? own_limits.sm_percent : given;
  const uint32_t of_family = family_is_there() ? family_limits().sm_percent : 100;
  const bool common = of_family < 100 && share_common(of_family);
  if (percent < (common ? of_family : 100)) share_private(percent);
}

void shares_reset() {
  store_release(own_share, static_cast<OwnShare*>(nullptr));
  for (OwnShare& share : shares) store_release(share.percent, 0u);
  memset(family_uses, 0, sizeof family_uses);
  memset(own_uses, 0, sizeof own_uses);
  memset(private_buckets, 0, sizeof private_buckets);
}

uint64_t shares_step(int gpu, uint64_t own_now_ns) {
  const uint64_t now_ns = clock_common_ns(own_now_ns);
  const uint64_t busy_ns = process.account(gpu).busy_ns.load();
  const bool in_flight = process.account(gpu).in_flight.load() != 0;
  uint64_t due_ns = UINT64_MAX;
  if (load_acquire(process.alone) != 0 && family_limits().sm_percent < 100) {
    due_ns = share_step(family_bucket(gpu), family_gate(gpu), family_uses[gpu],
                        family_limits().sm_percent, busy_ns, in_flight, now_ns);
    family_settled(process.slot, gpu, busy_ns);
  }
  for (int i = 0; i < kOwnShares; ++i) {
    const OwnShare& share = shares[i];
    const uint32_t percent = load_acquire(share.percent);
    if (percent == 0 || share.gates[gpu] == nullptr) continue;
    const uint64_t own_due_ns = share_step(*share.buckets[gpu], *share.gates[gpu], own_uses[i][gpu],
                                           percent, busy_ns, in_flight, now_ns);
    if (own_due_ns < due_ns) due_ns = own_due_ns;
  }
  return due_ns;
}

}  // namespace sluice::interpose
