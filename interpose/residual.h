// What the driver takes of device memory and tells nobody: contexts, code and variables of modules
// (also those that it loads late), stacks, heap and printf buffers, memory opened from other
// processes. Where NVML has a figure for this process (usage.h), the residual is that figure less
// what the known paths count; where it has none, a constant for each context.
//
// The difference is only right while nothing moves, so a reading stops all AccountScopes of the
// process for as long as it takes. Nobody calls these from within one, but residual_take and
// residual_give.
#pragma once

#include "interpose/types.h"

namespace sluice::interpose {

/// Adds to the residual what the ledger holds already, until the next reading corrects it.
void residual_take(int gpu, uint64_t bytes);
/// Takes off the residual and off the ledger, at most what it is.
void residual_give(int gpu, uint64_t bytes);

/// Where a call takes memory that no call tells, said before it. A GPU that is above its quota with
/// what was charged unasked keeps nobody from loading on another one.
struct Reach {
  int device;  // above its quota there the call is refused, whenever it got there; -1 = nowhere
  bool wide;   // it may be on others, too: there for what has come since the call began
  uint64_t since;
};
/// In the current context alone, on this device alone, and in any context.
Reach reach_here();
Reach reach_of(int device);
Reach reach_wide();

/// Reads and charges for every device on which the process has a context, whatever the quota says.
/// Where there is no figure everything stays as it is.
void residual_settle();
/// The same after a load. A growth within reach that does not fit is not charged, the sentence is
/// said, and the answer is false: the caller undoes what grew. While others are busy for too long
/// what is surely there is charged, and the helper makes up for the rest.
bool residual_settle_load(const Reach& reach);
/// After an import: charges on all of the tenant's devices what the process has since. False, and
/// the sentence said, if the tenant is above its quota then, and stays above it when the other
/// processes have looked: the caller takes the import back.
bool residual_settle_import();
/// After a call that may have loaded what nothing but the end of its module takes back. Charged all
/// the same; false, and the sentence said, while the tenant is above its quota within reach: the
/// caller hands out neither handle nor address of it.
bool residual_settle_late(const Reach& reach);
/// Charges for one device, with a context or without, whatever the quota says.
void residual_settle_device(int device);
/// The same within the quota, after a context was made; as residual_settle_load.
bool residual_settle_context(int device);
/// Charges for all of the tenant's devices, whatever the quota says.
void residual_settle_all();
uint64_t residual_charged(int gpu);
/// The device's figure for this process was read once.
bool residual_is_measured(int gpu);
/// Something was charged unasked otherwise, and the tenant is above its quota with it.
void residual_late_above(int gpu);

/// Something may have changed: the helper looks soon.
void residual_want();
/// Code may be loaded with the next launch: it goes the long way and looks.
void residual_expect();
extern uint32_t residual_expected;
/// Launches that no account counts; the helper looks while there are some, as while others are.
extern uint32_t launches_ungated;
SLUICE_NOINLINE void residual_launched();

/// Memory that is freed in stream order comes back to the device when the stream gets there. Until
/// a reading shows that, the residual has it. `bytes` is what it takes over of a charge that the
/// caller ends; 0 where the charge has ended. False without figures: then it counts as free at
/// once.
[[nodiscard]] bool residual_defer(int device, uint64_t bytes);
/// What the ledger holds already counts in the residual until the next reading, which comes soon.
/// More than the device may have taken: within an AccountScope, on a device that has a figure.
void residual_hold_unread(int gpu, uint64_t bytes);
extern uint32_t residual_unread;    // a bit for each GPU that has some
extern uint32_t residual_deferred;  // a bit for each GPU on which there was such a free, ever
SLUICE_NOINLINE void residual_look_deferred(int device, bool waited);
inline bool residual_is_due() {
  return SLUICE_UNLIKELY((load_relaxed(residual_deferred) | load_relaxed(residual_unread)) != 0);
}
/// Before a refusal, from within an AccountScope in which nothing is reserved: reads, if any memory
/// may have come back since the last reading.
inline void residual_settle_deferred(int device) {
  if (residual_is_due()) residual_look_deferred(device, false);
}
/// Where a program has waited, which it may do in a loop: reads as long as that is not too often.
inline void residual_settle_waited(int device) {
  if (residual_is_due()) residual_look_deferred(device, true);
}

/// There is managed memory, or was: its records are looked for.
extern uint32_t managed_seen;
/// Memory that came by a handle was freed, of whatever GPU: nothing but the figure has it.
SLUICE_NOINLINE void residual_imports_freed(bool in_stream_order);
/// This process shares memory with others: whose charge it is may change by what they do.
void residual_shared();
bool residual_is_shared();
/// A process of the tenant shares memory with others.
bool residual_tenant_shares();
/// Something of this process's charge went back: others who hold the same memory shall look now, as
/// it may be theirs from here on.
SLUICE_NOINLINE void residual_others_wake();
/// As residual_others_wake(), where nothing of this process's charge has changed.
void residual_others_look();

/// The helper's turn; returns how long it may sleep.
uint64_t residual_look(uint64_t now_ns);
/// Returns what is to be charged in a new slot: `contexts_bytes` where the driver never gave a
/// figure.
uint64_t residual_restore(int gpu, uint64_t contexts_bytes);
void residual_reset_after_fork();

}  // namespace sluice::interpose
