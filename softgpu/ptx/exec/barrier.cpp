// Barriers count lanes, not warps: diverged lanes of one warp arrive one after the other. A
// CTA-wide barrier waits for the live threads, one with a thread count for that many, where a warp
// that arrives whole counts as 32 threads.
#include <algorithm>

#include "softgpu/ptx/exec/control.h"

namespace softgpu::ptx {
namespace {

/// Above the 16 CTA barriers: lanes that wait for others of their warp, behind a barrier or in
/// front of an instruction that all of them execute.
constexpr u32 kWarpBarrier = kBarriers;
constexpr u32 kWarpGather = kBarriers + 1;

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

/// True when lanes have been let go.
template <class Keep>
bool release(Warp& w, Keep keep) {
  const std::size_t before = w.waiting.size();
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
  return w.waiting.size() != before;
}

/// True when the barrier has let its warps go and the caller's turn is to end, so that it does not
/// get ahead of them.
bool barrier_check(Cta& cta, u32 id) {
  Barrier& barrier = cta.barriers[id];
  if (barrier.arrived == 0) return false;
  const u32 needed = barrier.expected != 0 ? barrier.expected : cta.live;
  if (barrier.arrived < needed) return false;
  const Barrier full = barrier;
  barrier = Barrier();
  const bool in_step = turns_restart(cta);
  for (Warp& w : cta.warps) {
    const bool freed = release(w, [&](const Waiting& waiting) {
      if (waiting.barrier != id) return true;
      give_result(w, waiting, full);
      return false;
    });
    if (freed) w.turn = cta.first_turn;
  }
  return in_step;
}

/// Of a waiting entry of the warp: the lanes it waits for.
u32 members_of(const Waiting& waiting) { return static_cast<u32>(waiting.result_row); }

/// The members of a warp barrier are in `result_row` of the waiting entry, which it has no other
/// use for.
void warp_barrier_check(Warp& w) {
  u32 there = 0, wanted = 0;
  for (const Waiting& waiting : w.waiting) {
    if (waiting.barrier != kWarpBarrier) continue;
    there |= waiting.mask;
    wanted |= members_of(waiting);
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

/// Lanes that wait in front of an instruction go when all they name wait there as well. When all
/// they name wait, but in front of another instruction, nobody else will come: they go, too, each
/// with whom it is with (the ISA leaves open what they get).
void warp_gather_check(Warp& w) {
  const auto there = [&w](const Waiting& entry, bool same_place) {
    u32 lanes = 0;
    for (const Waiting& other : w.waiting) {
      const bool here = other.pc == entry.pc && other.depth == entry.depth;
      if (other.barrier == kWarpGather && members_of(other) == members_of(entry) &&
          (here || !same_place))
        lanes |= other.mask;
    }
    return lanes;
  };
  u32 complete = 0;
  for (const Waiting& entry : w.waiting) {
    if (entry.barrier != kWarpGather) continue;
    const u32 wanted = members_of(entry) & w.live;
    if ((wanted & ~there(entry, true)) == 0) {
      complete |= entry.mask;
    } else if ((wanted & ~there(entry, false)) == 0) {
      complete |= entry.mask;
      w.gathered |= entry.mask;
    }
  }
  if (complete == 0) return;
  release(w, [complete](const Waiting& entry) {
    return entry.barrier != kWarpGather || (entry.mask & complete) == 0;
  });
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

bool barriers_check(Cta& cta) {
  if (!cta.barriers_used) return false;
  bool others_go = false;
  for (u32 id = 0; id < kBarriers; ++id) others_go |= barrier_check(cta, id);
  for (Warp& w : cta.warps) {
    if (w.waiting.empty()) continue;
    warp_barrier_check(w);
    warp_gather_check(w);
  }
  return others_go;
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
  if ((i->flags & kBarrierArrive) != 0)
    return barrier_check(*w.cta, id) ? warp_pause(w, i + 1) : i + 1;
  wait(w, i, {w.pc_of(i + 1), w.mask, id, i->d, i->mode, 0});
  return barrier_check(*w.cta, id) ? nullptr : warp_next_split(w);
}

const Inst* run_warp_barrier(Warp& w, const Inst* i) {
  const u32 members = reinterpret_cast<const u32*>(w.rf + i->a)[__builtin_ctz(w.mask)];
  if ((members & w.live & ~w.mask) == 0) return i + 1;
  w.cta->barriers_used = true;
  wait(w, i, {w.pc_of(i + 1), w.mask, kWarpBarrier, static_cast<s32>(members), 0, 0});
  warp_barrier_check(w);
  return warp_next_split(w);
}

const u32 kWholeWarp[32] = {
    kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes,
    kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes,
    kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes,
    kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes, kAllLanes};

bool warp_lacks(Warp& w, const u32* members) {
  if ((w.gathered & w.mask) == w.mask) {
    w.gathered &= ~w.mask;
    return false;
  }
  for (u32 rest = w.mask; rest != 0; rest &= rest - 1) {
    if ((members[__builtin_ctz(rest)] & w.live & ~w.mask) != 0) return true;
  }
  return false;
}

const Inst* warp_gather(Warp& w, const Inst* i, const u32* members) {
  w.at = i;
  w.cta->barriers_used = true;
  const u32 pc = w.pc_of(i), lanes = w.mask;
  // Nothing has been executed yet: it is counted when it is.
  warp_account(w, i);
  if (w.active != lanes) w.splits.add(pc + 1, w.active & ~lanes);
  u32 complete = 0;
  for (u32 rest = lanes; rest != 0;) {
    const u32 named = members[__builtin_ctz(rest)];
    u32 group = 0;
    for (u32 left = rest; left != 0; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      if (members[lane] == named) group |= 1u << lane;
    }
    rest &= ~group;
    if ((named & w.live & ~lanes) == 0) {
      complete |= group;
    } else {
      w.waiting.push_back(
          {pc, group, kWarpGather, static_cast<s32>(named), 0, static_cast<u32>(w.frames.size())});
    }
  }
  if (complete != 0) w.splits.add(pc, complete);
  w.active = w.mask = 0;
  warp_gather_check(w);
  return warp_next_split(w);
}

}  // namespace softgpu::ptx
