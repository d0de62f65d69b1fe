// The handlers that change what a warp does next: branches, barriers, calls, returns; and the few
// that look outside the warp. They exist once, not per instruction set.
#pragma once

#include "softgpu/ptx/code/form.h"
#include "softgpu/ptx/exec/warp.h"

namespace softgpu::ptx {

const Inst* run_label(Warp& w, const Inst* i);
const Inst* run_guarded(Warp& w, const Inst* i);
const Inst* run_branch(Warp& w, const Inst* i);        // imm: target pc
const Inst* run_branch_if(Warp& w, const Inst* i);     // + guard
const Inst* run_branch_table(Warp& w, const Inst* i);  // a: index row, imm: JumpTable*
const Inst* run_return(Warp& w, const Inst* i);        // flags bit 0: guarded
const Inst* run_exit(Warp& w, const Inst* i);          // likewise
const Inst* run_trap(Warp& w, const Inst* i);
const Inst* run_barrier(Warp& w, const Inst* i);       // see kBarrier* below
const Inst* run_warp_barrier(Warp& w, const Inst* i);  // a: member mask row
const Inst* run_fence(Warp& w, const Inst* i);
const Inst* run_nanosleep(Warp& w, const Inst* i);
const Inst* run_nothing(Warp& w, const Inst* i);
const Inst* run_clock(Warp& w, const Inst* i);  // mode: ClockKind; bytes: 4 or 8
const Inst* run_call(Warp& w, const Inst* i);   // imm: CallSite*

enum class ClockKind : u8 { kClock, kClockHigh, kTimer, kTimerHigh };

// Inst::flags of run_barrier. a: id row when kBarrierIdRow (else imm), b: thread count row when
// kBarrierCount, c: predicate row (bar.red), d: result row, mode: Reduction.
inline constexpr u8 kBarrierArrive = 1;
inline constexpr u8 kBarrierIdRow = 2;
inline constexpr u8 kBarrierCount = 4;
inline constexpr u8 kBarrierNegate = 8;

/// True when lanes of the mask lack others that they name in `members`, one word a lane. Those wait
/// for them; the handler returns what warp_gather() gives, and runs again when they are there.
bool warp_lacks(Warp& w, const u32* members);
const Inst* warp_gather(Warp& w, const Inst* i, const u32* members);
/// What lanes name that need the whole warp (.aligned).
extern const u32 kWholeWarp[32];

/// Runs the warp until it stops: finished, waiting, or at the end of its turn.
void warp_run(Warp& w);
/// True when the warp has lanes that could run now.
bool warp_ready(const Warp& w);
/// After a turn that ended by count: lets other lanes of the warp run when these have had several
/// turns.
void warp_rotate(Warp& w);

/// Counts what ran since the last change of flow; `next` is the instruction after the last one
/// executed.
inline void warp_account(Warp& w, const Inst* next) {
  w.count += next->serial - w.from;
  w.from = next->serial;
}

/// Goes on at `pc` with the active lanes, or with lanes that are behind, or together with lanes
/// that wait there.
const Inst* warp_settle(Warp& w, u32 pc);
/// When no lane is active: other lanes of the warp, or nullptr.
const Inst* warp_next_split(Warp& w);
/// Lets barriers go whose last lane has arrived (or left).
void barriers_check(Cta& cta);

/// What atomic_handler takes as Form::mode.
enum class AtomicOp : u8 { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCas, kInc, kDec };

}  // namespace softgpu::ptx
