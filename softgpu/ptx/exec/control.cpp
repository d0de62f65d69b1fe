// Flow of control inside a warp. Lanes that diverge become splits; the split with the lowest pc
// runs, and splits that meet become one again. Code is laid out so that this reconverges where a
// post-dominator analysis would, without needing one.
#include "softgpu/ptx/exec/control.h"

#include <sched.h>

#include <cassert>
#include <utility>

namespace softgpu::ptx {
namespace {

/// Turns after which lanes that spin make way for the others of their warp.
constexpr u32 kTurnsMax = 4;

u32 guard_bits(const Warp& w, const Inst* i) {
  const u32 p = *reinterpret_cast<const u32*>(w.rf + i->guard);
  return i->guard_negated != 0 ? ~p : p;
}

const Inst* go(Warp& w, u32 pc) {
  if (pc >= w.splits.pc_min) return warp_settle(w, pc);
  w.from = w.base[pc].serial;
  return w.base + pc;
}

const Inst* jump(Warp& w, const Inst* i, u32 target) {
  const Inst* to = go(w, target);
  if (to <= i && w.count >= w.count_limit) {
    w.ip = to;
    return nullptr;
  }
  return to;
}

void unpark(Warp& w) {
  for (int k = 0; k < w.parked.count; ++k) {
    const Split& split = w.parked.items[static_cast<std::size_t>(k)];
    w.splits.add(split.pc, split.mask);
  }
  w.parked.clear();
}

void leave_frame(Warp& w) {
  Frame& frame = w.frames.back();
  const Signature& signature = w.cta->program->signatures.at(w.code);
  for (std::size_t k = 0; k < frame.site->returns.size() && k < signature.returns.size(); ++k) {
    const CallArgument& to = frame.site->returns[k];
    for (u32 rest = frame.active; rest != 0; rest &= rest - 1) {
      const u32 lane = static_cast<u32>(__builtin_ctz(rest));
      __builtin_memcpy(frame.param_area + u64{lane} * frame.code->param_bytes + to.caller,
                       w.param_area + u64{lane} * w.param_stride + signature.returns[k], to.bytes);
    }
  }
  w.stack_bytes -= u64{w.code->local_bytes} + w.code->param_bytes + 32;
  w.code = frame.code;
  w.base = frame.code->insts.data();
  w.rf = frame.rf;
  w.param_area = frame.param_area;
  w.param_stride = frame.code->param_bytes;
  w.local = frame.local;
  w.local_bytes = frame.code->local_bytes;
  w.active = frame.active;
  w.splits = frame.splits;
  w.parked = frame.parked;
  w.stack_top = frame.stack_top;
  w.ip = frame.back;
  w.frames.pop_back();
}

/// Where the warp goes on when lanes have ended at `i`; nullptr: none of its lanes can run.
const Inst* lanes_left(Warp& w, const Inst* i) {
  if (w.active != 0) return go(w, w.pc_of(i + 1));
  if (const Inst* next = warp_next_split(w)) return next;
  if (w.waits_here()) return nullptr;
  while (!w.frames.empty()) {
    leave_frame(w);
    if (w.active != 0) {
      w.mask = w.active;
      return go(w, w.pc_of(w.ip));
    }
    if (const Inst* next = warp_next_split(w)) return next;
    if (w.waits_here()) return nullptr;
  }
  return nullptr;
}

const Inst* finish_lanes(Warp& w, const Inst* i, u32 lanes, bool exits) {
  warp_account(w, i + 1);
  const bool ends = exits || w.frames.empty();
  if (ends) {
    w.live &= ~lanes;
    w.cta->live -= static_cast<u32>(__builtin_popcount(lanes));
    for (Frame& frame : w.frames) frame.active &= ~lanes;
  }
  w.active &= ~lanes;
  w.mask = w.active;
  bool others_go = false;
  if (ends) {
    if (w.live == 0 && !w.cta->barriers_used) return nullptr;
    others_go = barriers_check(*w.cta);
  }
  const Inst* next = lanes_left(w, i);
  return others_go && next != nullptr ? warp_pause(w, next) : next;
}

/// The instruction with which a turn begins; nullptr: the warp has no lanes to run.
const Inst* turn_begin(Warp& w) {
  const Inst* i = w.ip;
  if (w.active == 0) {
    i = warp_next_split(w);
    w.turns = 0;
    if (i == nullptr) return nullptr;
  }
  w.mask = w.active;
  w.from = i->serial;
  return i;
}

}  // namespace

void SplitList::add(u32 pc, u32 mask) {
  for (int k = 0; k < count; ++k) {
    Split& split = items[static_cast<std::size_t>(k)];
    if (split.pc == pc) {
      split.mask |= mask;
      return;
    }
  }
  assert(count < static_cast<int>(items.size()));
  items[static_cast<std::size_t>(count++)] = {pc, mask};
  if (pc < pc_min) pc_min = pc;
}

void SplitList::remove_at(int at) {
  items[static_cast<std::size_t>(at)] = items[static_cast<std::size_t>(--count)];
  pc_min = kNoPc;
  for (int k = 0; k < count; ++k) {
    const u32 pc = items[static_cast<std::size_t>(k)].pc;
    if (pc < pc_min) pc_min = pc;
  }
}

Split SplitList::take_min() {
  int at = 0;
  while (items[static_cast<std::size_t>(at)].pc != pc_min) ++at;
  const Split split = items[static_cast<std::size_t>(at)];
  remove_at(at);
  return split;
}

const Inst* warp_settle(Warp& w, u32 pc) {
  while (w.splits.pc_min <= pc) {
    if (w.splits.pc_min == pc) {
      w.active |= w.splits.take_min().mask;
    } else {
      w.splits.add(pc, w.active);
      const Split behind = w.splits.take_min();
      pc = behind.pc;
      w.active = behind.mask;
    }
  }
  w.mask = w.active;
  w.from = w.base[pc].serial;
  return w.base + pc;
}

const Inst* warp_next_split(Warp& w) {
  if (w.splits.count == 0) unpark(w);
  if (w.splits.count == 0) {
    w.active = w.mask = 0;
    return nullptr;
  }
  const Split split = w.splits.take_min();
  w.active = w.mask = split.mask;
  w.from = w.base[split.pc].serial;
  return w.base + split.pc;
}

bool warp_ready(const Warp& w) {
  return w.active != 0 || w.splits.count != 0 || w.parked.count != 0;
}

void warp_run(Warp& w) {
  const Inst* i = turn_begin(w);
  while (i != nullptr) i = i->run(w, i);
  w.cta->program->leave_handlers();
}

void warp_run_in_step(Warp& w, bool may_write) {
  u8 other = may_write ? kAccessNone : kAccessWrites;  // the access that ends the turn
  for (const Inst* i = turn_begin(w); i != nullptr; i = i->run(w, i)) {
    if (i->access == kAccessNone) continue;
    if (i->access == other) {
      if (other == kAccessReads) w.turn = kTurnsInStep;  // it has written: no more in step
      warp_pause(w, i);
      break;
    }
    other = i->access ^ (kAccessReads | kAccessWrites);
  }
  w.cta->program->leave_handlers();
}

const Inst* warp_pause(Warp& w, const Inst* next) {
  warp_account(w, next);
  w.ip = next;
  return nullptr;
}

bool turns_restart(Cta& cta) {
  if (cta.first_turn != 0) return false;
  for (Warp& w : cta.warps) {
    if (w.turn > 1) w.turn = 1;
  }
  return true;
}

void warp_rotate(Warp& w) {
  if (w.active == 0 || ++w.turns < kTurnsMax) return;
  w.turns = 0;
  if (w.splits.count == 0 && w.parked.count == 0) return;
  w.parked.add(w.pc_of(w.ip), w.active);
  w.active = 0;
}

const Inst* run_label(Warp& w, const Inst* i) {
  const u32 pc = w.pc_of(i);
  if (__builtin_expect(pc < w.splits.pc_min, 1)) return i + 1;
  warp_account(w, i);
  return warp_settle(w, pc);
}

const Inst* run_guarded(Warp& w, const Inst* i) {
  w.mask = w.active & guard_bits(w, i);
  if (w.mask == 0) {
    w.mask = w.active;
    return i + 1;
  }
  const Inst* next = i->inner(w, i);
  // Whatever changed the flow has set the mask itself.
  if (next == i + 1) w.mask = w.active;
  return next;
}

const Inst* run_branch(Warp& w, const Inst* i) {
  warp_account(w, i + 1);
  return jump(w, i, static_cast<u32>(i->imm));
}

const Inst* run_branch_if(Warp& w, const Inst* i) {
  const u32 taken = w.active & guard_bits(w, i);
  const u32 target = static_cast<u32>(i->imm), next = w.pc_of(i + 1);
  if (taken == w.active) {
    warp_account(w, i + 1);
    return jump(w, i, target);
  }
  if (taken == 0) {
    if (__builtin_expect(next < w.splits.pc_min, 1)) return i + 1;
    warp_account(w, i + 1);
    return warp_settle(w, next);
  }
  warp_account(w, i + 1);
  const u32 rest = w.active & ~taken;
  if (target < next) {
    w.splits.add(next, rest);
    w.active = w.mask = taken;
    return jump(w, i, target);
  }
  w.splits.add(target, taken);
  w.active = w.mask = rest;
  return go(w, next);
}

const Inst* run_branch_table(Warp& w, const Inst* i) {
  const u32* index = reinterpret_cast<const u32*>(w.rf + i->a);
  const JumpTable& table = *reinterpret_cast<const JumpTable*>(i->imm);
  const u32 lanes = w.mask;
  warp_account(w, i + 1);
  if (w.active != lanes) w.splits.add(w.pc_of(i + 1), w.active & ~lanes);
  for (u32 rest = lanes; rest != 0; rest &= rest - 1) {
    const u32 lane = static_cast<u32>(__builtin_ctz(rest));
    if (index[lane] >= table.targets.size()) fault_raise(Fault::kInvalidPc, index[lane]);
    w.splits.add(table.targets[index[lane]], 1u << lane);
  }
  const Inst* to = warp_next_split(w);
  if (w.count >= w.count_limit) {
    w.ip = to;
    return nullptr;
  }
  return to;
}

const Inst* run_return(Warp& w, const Inst* i) {
  const u32 lanes = i->flags != 0 ? w.active & guard_bits(w, i) : w.active;
  return lanes == 0 ? i + 1 : finish_lanes(w, i, lanes, false);
}

const Inst* run_exit(Warp& w, const Inst* i) {
  const u32 lanes = i->flags != 0 ? w.active & guard_bits(w, i) : w.active;
  return lanes == 0 ? i + 1 : finish_lanes(w, i, lanes, true);
}

const Inst* run_trap(Warp& w, const Inst* i) {
  w.at = i;
  fault_raise(Fault::kTrap, 0);
}

const Inst* run_fence(Warp&, const Inst* i) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return i + 1;
}

/// A waiting kernel leaves the core to others; in modelled time it costs one instruction.
const Inst* run_nanosleep(Warp&, const Inst* i) {
  sched_yield();
  return i + 1;
}

const Inst* run_nothing(Warp&, const Inst* i) { return i + 1; }

const Inst* run_clock(Warp& w, const Inst* i) {
  Host& host = *w.cta->host;
  const u64 now_ns = host.globaltimer_ns();
  u64 value = now_ns;
  if (i->mode == static_cast<u8>(ClockKind::kClock) ||
      i->mode == static_cast<u8>(ClockKind::kClockHigh)) {
    // The warp's own instructions on top, so that two readings in a row differ.
    __extension__ using Wide = unsigned __int128;
    value = static_cast<u64>(Wide{now_ns} * host.clock_hz() / 1000000000u) + w.count + i->serial -
            w.from;
  }
  const bool high = i->mode == static_cast<u8>(ClockKind::kClockHigh) ||
                    i->mode == static_cast<u8>(ClockKind::kTimerHigh);
  if (high) value >>= 32;
  for (u32 rest = w.mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (i->bytes == 8) {
      reinterpret_cast<u64*>(w.rf + i->d)[lane] = value;
    } else {
      reinterpret_cast<u32*>(w.rf + i->d)[lane] = static_cast<u32>(value);
    }
  }
  return i + 1;
}

}  // namespace softgpu::ptx
