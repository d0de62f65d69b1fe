// Barriers count lanes, not warps: diverged lanes of one warp arrive one after the other. A
// CTA-wide barrier waits for the live threads, one with a thread count for that many, where a warp
// that arrives whole counts as 32 threads.
#include <algorithm>

#include "softgpu/ptx/exec/control.h"

namespace softgpu::ptx {
namespace {

/// Above the 16 CTA barriers: lanes that wait for others of their warp.
constexpr u32 kWarpBarrier = kBarriers;

u32 reduction_value(const Barrier& barrier, u8 kind) {
  switch (static_cast<Reduction>(kind)) {
    case Reduction::kAnd:
      return barrier.all ? ~0u : 0u;
    case Reduction::kOr:
      return barrier.any ? ~0u : 0u;
    default:
      return barrier.count;
  }
}

void give_result(Warp& w, const Waiting& waiting, const Barrier& barrier) {
  if (waiting.result == 0) return;
  const u32 value = reduction_value(barrier, waiting.result);
  u8* rf = waiting.depth == w.frames.size() ? w.rf : w.frames[waiting.depth].rf;
  if (static_cast<Reduction>(waiting.result) == Reduction::kPopc) {
    u32* row = reinterpret_cast<u32*>(rf + waiting.result_row);
    for (u32 rest = waiting.mask; rest != 0; rest &= rest - 1) row[__builtin_ctz(rest)] = value;
  } else {
    u32& p = *reinterpret_cast<u32*>(rf + waiting.result_row);
    p = (p & ~waiting.mask) | (value & waiting.mask);
  }
}

template <class Keep>
void release(Warp& w, Keep keep) {
  for (std::size_t k = 0; k < w.waiting.size();) {
    if (keep(w.waiting[k])) {
      ++k;
      continue;
    }
    const Waiting& freed = w.waiting[k];
    SplitList& splits = freed.depth == w.frames.size() ? w.splits : w.frames[freed.depth].splits;
    splits.add(freed.pc, freed.mask);
    w.waiting[k] = w.waiting.back();
    w.waiting.pop_back();
  }
}

void barrier_check(Cta& cta, u32 id) {
  Barrier& barrier = cta.barriers[id];
  if (barrier.arrived == 0) return;
  const u32 needed = barrier.expected != 0 ? barrier.expected : cta.live;
  if (barrier.arrived < needed) return;
  const Barrier full = barrier;
  barrier = Barrier();
  for (Warp& w : cta.warps) {
    release(w, [&](const Waiting& waiting) {
      if (waiting.barrier != id) return true;
      give_result(w, waiting, full);
      return false;
    });
  }
}

/// The members of a warp barrier are in `result_row` of the waiting entry, which it has no other
/// use for.
void warp_barrier_check(Warp& w) {
  u32 there = 0, wanted = 0;
  for (const Waiting& waiting : w.waiting) {
    if (waiting.barrier != kWarpBarrier) continue;
    there |= waiting.mask;
    wanted |= static_cast<u32>(waiting.result_row);
  }
  if (there == 0 || (wanted & w.live & ~there) != 0) return;
  release(w, [](const Waiting& waiting) { return waiting.barrier != kWarpBarrier; });
}

void arrive(Warp& w, const Inst* i, Barrier& barrier, u32 count) {
  // An aligned barrier with a count takes a whole warp as 32 threads, exited lanes included.
  const bool whole = count != 0 && w.mask == w.live;
  barrier.arrived += whole ? 32 : static_cast<u32>(__builtin_popcount(w.mask));
  barrier.expected = count;
  if (i->mode == 0) return;
  u32 p = *reinterpret_cast<const u32*>(w.rf + i->c);
  if ((i->flags & kBarrierNegate) != 0) p = ~p;
  barrier.all = barrier.all && (p & w.mask) == w.mask;
  barrier.any = barrier.any || (p & w.mask) != 0;
  barrier.count += static_cast<u32>(__builtin_popcount(p & w.mask));
}

/// The lanes of the mask wait; others of the warp go on.
const Inst* wait(Warp& w, const Inst* i, const Waiting& waiting) {
  warp_account(w, i + 1);
  if (w.active != w.mask) w.splits.add(w.pc_of(i + 1), w.active & ~w.mask);
  w.waiting.push_back(waiting);
  w.waiting.back().depth = static_cast<u32>(w.frames.size());
  w.active = w.mask = 0;
  return nullptr;
}

}  // namespace

void barriers_check(Cta& cta) {
  if (!cta.barriers_used) return;
  for (u32 id = 0; id < kBarriers; ++id) barrier_check(cta, id);
  for (Warp& w : cta.warps) {
    if (!w.waiting.empty()) warp_barrier_check(w);
  }
}

const Inst* run_barrier(Warp& w, const Inst* i) {
  const int first = __builtin_ctz(w.mask);
  w.at = i;
  w.cta->barriers_used = true;
  u32 id = static_cast<u32>(i->imm);
  if ((i->flags & kBarrierIdRow) != 0) id = reinterpret_cast<const u32*>(w.rf + i->a)[first];
  if (id >= kBarriers) fault_raise(Fault::kIllegalInstruction, id);
  u32 count = 0;
  if ((i->flags & kBarrierCount) != 0) count = reinterpret_cast<const u32*>(w.rf + i->b)[first];
  arrive(w, i, w.cta->barriers[id], count);
  if ((i->flags & kBarrierArrive) != 0) {
    barrier_check(*w.cta, id);
    return i + 1;
  }
  wait(w, i, {w.pc_of(i + 1), w.mask, id, i->d, i->mode, 0});
  barrier_check(*w.cta, id);
  return warp_next_split(w);
}

const Inst* run_warp_barrier(Warp& w, const Inst* i) {
  const u32 members = reinterpret_cast<const u32*>(w.rf + i->a)[__builtin_ctz(w.mask)];
  if ((members & w.live & ~w.mask) == 0) return i + 1;
  w.cta->barriers_used = true;
  wait(w, i, {w.pc_of(i + 1), w.mask, kWarpBarrier, static_cast<s32>(members), 0, 0});
  warp_barrier_check(w);
  return warp_next_split(w);
}

}  // namespace softgpu::ptx
