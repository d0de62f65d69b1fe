// What a device still has of processes of this job that have ended, as long as no broker watches
// them. A process gives up its slot when its address space goes, and a driver has its memory back a
// moment later; with an address space or a descriptor that another process shares, when that one
// ends.
#pragma once

#include "interpose/process.h"

namespace sluice::interpose {

/// Gives back the charges of processes that have ended once NVML lists their memory no more. Where
/// it does not tell, after 50 ms. Any thread; a process without limits of its own has none to give.
void ended_sweep();
/// Whether the process has ended, by its number in this process's namespace, also where its parent
/// has not waited for it. True for 0, and where another namespace's number is none in this one.
bool process_has_ended(uint32_t own_pid);
/// Whether the process that had this slot of the account has ended, as far as the broker, or where
/// there is none the slot's lock, tells. True for a slot that is free. A slot stays in use after
/// the end of its process for as long as it is charged.
bool slot_has_ended(uint32_t slot);
/// Whether such charges are left on the GPU (as this process numbers it).
bool ended_are_charged(int gpu);
/// Sweeps before a program is told what is used on the GPU: where no broker watches, as the pages
/// are the family's.
inline void ended_look(int gpu) {
  if (SLUICE_UNLIKELY(load_acquire(process.alone) != 0) && ended_are_charged(gpu)) ended_sweep();
}

}  // namespace sluice::interpose
