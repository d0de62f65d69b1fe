// See alone.h.
#include "interpose/alone.h"

#include <string.h>

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
constinit OwnShare share_storage{};
// Where the narrower share is this process's alone.
constinit ShareBucket private_buckets[kTenantGpusMax];
constinit AtomicU32 private_gates[kTenantGpusMax];
ShareUse family_uses[kTenantGpusMax];
ShareUse own_uses[kTenantGpusMax];

bool family_enter(const char** fault) {
  if (family_find(own_limits.any() ? FamilyFind::kOwnAndAncestors : FamilyFind::kOwn) ||
      family_found(own_limits)) {
    return true;
  }
  *fault =
      "the kernel gives no memory to keep its limits in (memfd_create); raise the limit on "
      "open files, or use a broker";
  return false;
}

void share_private() {
  share_storage.percent = own_limits.sm_percent;
  for (uint32_t i = 0; i < kTenantGpusMax; ++i) {
    private_gates[i].store(lease_word(1, kLeaseOpen));
    share_storage.buckets[i] = &private_buckets[i];
    share_storage.gates[i] = &private_gates[i];
  }
  store_release(own_share, &share_storage);
}

// The bucket that the whole family has together, beside a broker's lease.
bool share_common() {
  share_storage.percent = family_limits().sm_percent;
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    const int gpu = family_gpu(process.lease->gpus[i].gpu);
    if (gpu < 0) return false;
    share_storage.buckets[i] = &family_bucket(gpu);
    share_storage.gates[i] = &family_gate(gpu);
  }
  store_release(own_share, &share_storage);
  return true;
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
  if (!given.limits) return;
  stderr_remember_before();
  Limits limits;
  Line fault;
  // What is wrong is said when it matters, at the first CUDA call.
  if (!link_limits(&limits, &fault) || !limits.any()) return;
  if (!family_find(FamilyFind::kOwnAndAncestors)) (void)family_found(limits);
}

void limits_set(const Limits& limits) {
  own_limits = limits;
  process.memory_own = limits.memory_bytes;
}

const Limits& limits_own() { return own_limits; }

bool alone_wanted() { return own_limits.any() || family_find(FamilyFind::kOwn); }

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

int alone_take(const GpuUuid* gpus, uint32_t count, const char** fault) {
  if (!family_enter(fault)) return -1;
  // In the broker's order, which threads of the program may have in mind.
  for (uint32_t i = 0; i < count; ++i) {
    if (family_gpu(gpus[i]) != static_cast<int>(i)) {
      *fault = "the broker is gone, and its GPUs are not those of the limits without one";
      return -1;
    }
  }
  const int slot = family_slot_take();
  if (slot < 0) {
    *fault = "the broker is gone, and all 128 places for processes are taken";
    return -1;
  }
  return alone_enter(fault) ? slot : -1;
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

static bool own_share_open(int gpu) {
  const AtomicU32* gate = load_acquire(share_storage.gates[gpu]);
  return load_acquire(own_share) == nullptr || gate == nullptr || (gate->load() & kLeaseOpen) != 0;
}

void own_share_wait(int gpu) {
  const ErrnoGuard guard;
  if (own_share_open(gpu)) return;
  const WaitScope told(WaitReason::kGate);
  // A broker that comes or goes may take the share away, or its gate elsewhere, at any moment; and
  // nobody opens it any more while the process exits, or where launches fail.
  while (load_acquire(own_share) != nullptr && !lease_is_void()) {
    const AtomicU32* gate = load_acquire(share_storage.gates[gpu]);
    if (gate == nullptr) return;
    const uint32_t word = gate->load();
    if ((word & kLeaseOpen) != 0 || share_lets_through(ShareGate::kOwn, gpu, word)) return;
    futex_wait(&gate->raw, word, kGateSliceNs, true);
  }
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
  if (own_limits.sm_percent < family_limits().sm_percent) {
    share_private();
  } else if (!alone && !share_common()) {
    *fault = "its GPUs are more than SLUICE_SM reaches; name 8 of them in CUDA_VISIBLE_DEVICES";
    return false;
  }
  return true;
}

void shares_reset() {
  store_release(own_share, static_cast<OwnShare*>(nullptr));
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
  OwnShare* share = load_acquire(own_share);
  if (share != nullptr && share->gates[gpu] != nullptr) {
    const uint64_t own_due_ns = share_step(*share->buckets[gpu], *share->gates[gpu], own_uses[gpu],
                                           share->percent, busy_ns, in_flight, now_ns);
    if (own_due_ns < due_ns) due_ns = own_due_ns;
  }
  return due_ns;
}

}  // namespace sluice::interpose
