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

// How far a warp gets ahead of the others of its block. Its first turns after its start and after a
// barrier are *in step*: such a turn ends where the warp changes from reading memory to writing it,
// or back, and the first one ends before any write. So all warps have read what they read behind a
// barrier before one of them writes, as on hardware, where warps leave a barrier within cycles and
// what is read decides later what is written. Turns have a length as well, which backward branches
// look at; it doubles from turn to turn.

/// Turns in step, unless the warp has written before: enough to read in a loop of 960 instructions.
inline constexpr u32 kTurnsInStep = 4;
/// Instructions of the first turn.
inline constexpr u64 kFirstTurn = 64;
/// The turn from which on length does not grow any more.
inline constexpr u32 kTurnsGrown = 6;
/// Instructions of a turn of full length.
inline constexpr u64 kTurn = kFirstTurn << kTurnsGrown;

/// Runs the warp until it stops: finished, waiting, or at the end of its turn.
void warp_run(Warp& w);
/// Runs a turn in step; `may_write` is false for the first one.
void warp_run_in_step(Warp& w, bool may_write);
/// True when the warp has lanes that could run now.
bool warp_ready(const Warp& w);
/// After a turn of full length: lets other lanes of the warp run when these have had several such
/// turns.
void warp_rotate(Warp& w);
/// Ends the turn in front of `next`. Returns nullptr, what a handler returns then.
const Inst* warp_pause(Warp& w, const Inst* next);
/// The turns of the block's warps begin anew: something that others wait for has happened. Those
/// that were waiting have their first turn next, the others at most their second, so that each of
/// them gets on. Returns false when warps of the block are never in step.
bool turns_restart(Cta& cta);

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
/// Lets barriers go whose last lane has arrived (or left). True: the caller's turn is to end,
/// because others have been let go.
bool barriers_check(Cta& cta);

/// What atomic_handler takes as Form::mode.
enum class AtomicOp : u8 { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCas, kInc, kDec };

}  // namespace softgpu::ptx
