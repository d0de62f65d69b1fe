// What the shim knows about this process as a whole: whether it is a tenant's, its pages, and which
// device is which GPU. The pages are mapped at addresses that never change while the process is
// active, so the hot path reads them without a check; a restarted broker's new pages are mapped
// over the old ones.
#pragma once

#include "broker/protocol/pages.h"
#include "interpose/ledger.h"
#include "interpose/records.h"
#include "interpose/resolve.h"
#include "interpose/threads.h"

namespace sluice::interpose {

enum class Mode : uint32_t {
  kUnknown = 0,  // no CUDA call yet, or none that matters (or a fork child before its first)
  kInert = 1,    // nobody's tenant and under no limits: everything passes
  kOffline = 2,  // a tenant's, but the broker cannot be reached, and the machine's policy says that
                 // everything passes until then; the helper keeps trying
  kDenied = 3,   // the broker said no: work and memory are refused
  kActive = 4,
};

inline constexpr size_t kPageBytes = 4096;

struct Process {
  // On a page of its own, which reads 0 in a fork child from its first moment on, also where no
  // fork handler runs (_Fork, clone): whoever finds kUnknown looks whether that is why.
  alignas(kPageBytes) Mode mode = Mode::kUnknown;
  uint32_t own = 0;  // 1 = what is below is this process's, as far as there is anything
  alignas(kPageBytes) uint32_t lost_open = 0;  // the process exits: no gate keeps it from that
  uint32_t lost_refuse = 0;  // no broker has come for longer than is waited for one: launches fail
  uint32_t lost = 0;         // the broker is gone longer than its grace
  uint32_t alone = 0;        // the pages are the family's (family.h), no broker's
  uint32_t family_slot = 0;  // + 1: the slot of the family's claims page; 0 = none
  // What launches ask in the place of their thread's lease where leases_go_together(): open and
  // exclusive while all of them are, as the helper has seen it, else 0.
  uint32_t together = 0;
  uint64_t memory_own = 0;  // this process's own limit; 0 = none
  Shared<const protocol::LeasePage*> lease;
  Shared<protocol::ClaimsPage*> claims;
  Shared<uint32_t> slot;
  const uint64_t* quota[protocol::kTenantGpusMax] = {};  // which of the two it is, by GPU
  Shared<uint32_t> gpu_count;
  uint32_t swap_gpus = 0;        // a bit for each whose allocations are to be movable
  uint32_t devices_known = 0;    // device_gpu is filled
  uint32_t numbering = 0;        // another one whenever a GPU may have got another number
  Shared<int32_t> device_count;  // those that are looked at: at most kDevicesMax
  int32_t device_total = 0;      // those that the driver has
  Shared<int8_t> device_gpu[kDevicesMax];
  Ledger ledger;
  Records records;

  const protocol::LeaseEntry& entry(int gpu) const { return lease->gpus[gpu]; }
  /// Under an exclusive lease a launch goes without a look at its stream, which may be on another
  /// GPU of the tenant's than the thread, with a lease of its own.
  bool leases_go_together() const {
    return gpu_count > 1 && lease->tenant_class == protocol::TenantClass::kExclusive;
  }
  /// The quota: the lease page's, narrowed by this process's own; 0 = none.
  uint64_t memory_max(int gpu) const { return load_relaxed(*load_acquire(quota[gpu])); }
  protocol::ClaimsGpu& account(int gpu) { return claims->slots[slot].gpus[gpu]; }
};
extern Process process;

inline Mode process_mode() { return __atomic_load_n(&process.mode, __ATOMIC_ACQUIRE); }

/// Begins the process's life with CUDA: finds the driver, registers, starts the helper. At its
/// first driver call, where the program was announced, or has limits of its own and no broker
/// answers; else at its first context (or what needs none and takes memory), on that device, and
/// until then it is kInert. Every hook calls process_enter first, those that may be that beginning
/// process_begin.
SLUICE_NOINLINE Mode process_start();
SLUICE_NOINLINE Mode process_start_on(int device);
inline Mode process_enter() {
  const Mode mode = process_mode();
  return SLUICE_LIKELY(mode != Mode::kUnknown) ? mode : process_start();
}
inline Mode process_begin(int device) {
  const Mode mode = process_mode();
  return SLUICE_LIKELY(mode != Mode::kUnknown) ? mode : process_start_on(device);
}

/// In a fork child that ran no fork handlers: makes up for that.
SLUICE_NOINLINE void process_fork_notice();

/// The GPU of a device, -1 if it is none of the tenant's. Needs a successful cuInit before.
SLUICE_NOINLINE int device_gpu_learn(int device);
inline int device_gpu(int device) {
  if (SLUICE_UNLIKELY(load_acquire(process.devices_known) == 0)) return device_gpu_learn(device);
  if (device < 0 || device >= process.device_count) return -1;
  return process.device_gpu[device];
}
/// The calling thread's current context, its device and GPU, in its record. False when there is no
/// current context.
SLUICE_NOINLINE bool thread_context_look(ThreadRecord* thread);
inline bool thread_context(ThreadRecord* thread) {
  return SLUICE_LIKELY(load_relaxed(thread->context_known) != 0) || thread_context_look(thread);
}
/// Forgets what thread_context knows (the current context may have changed).
inline void thread_context_forget() {
  if (this_thread == nullptr) return;
  store_relaxed(this_thread->context_known, 0u);
  store_relaxed(this_thread->lease, static_cast<const uint32_t*>(nullptr));
}
/// After the GPUs of devices are known by other pages: every thread looks again which number its
/// GPU has. Whoever has raised `inside` by a number compares process.numbering behind it with what
/// it was before the number was found.
void process_renumbered();
/// The index of a GPU in the lease page; -1 if it is not there. Changes nothing.
int process_gpu_of(const protocol::GpuUuid& uuid);
/// After (re)registration: new pages are in place, but the ledger and the devices belong to the old
/// ones. False, and nothing was done: a call that changes the account has not ended within that
/// time.
[[nodiscard]] bool process_adopt_pages(uint32_t slot, uint64_t patience_ns);
/// Looks again which quota is the narrower one, and where memory is to be movable.
void process_quotas_choose();
// Helper side of lost contact.
void process_set_lost_open(bool open);
/// Closes the gates until a broker is back. False, and nothing was done, without memory for it.
[[nodiscard]] bool process_hold();
/// Makes launches fail that wait at closed gates.
void process_refuse(bool refuse);
/// Goes on without the broker: gates open, holds end, the memory quota and the in-flight window
/// stay, and the share of GPU time is kept by the process and its family. False as above.
[[nodiscard]] bool process_detach();

/// Whether the helper's thread is to take a slot of the family.
bool process_slot_wanted();
/// For the helper's thread: takes that slot. False = none is free.
bool process_slot_take();

}  // namespace sluice::interpose
