// The state of a running warp and of its CTA. Explicit to the last bit, so that a CTA can be left
// at any instruction and taken up again: barriers, fairness between diverged lanes, preemption and
// grid synchronisation all come from that.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "softgpu/ptx/code/code.h"
#include "softgpu/ptx/code/inst.h"

namespace softgpu::ptx {

inline constexpr u32 kAllLanes = 0xffffffffu;
inline constexpr u32 kNoPc = 0xffffffffu;
inline constexpr int kBarriers = 16;

/// Lanes of a warp that wait at `pc` for their turn.
struct Split {
  u32 pc, mask;
};

/// At most one split per lane, plus one while merging.
struct SplitList {
  int count = 0;
  u32 pc_min = kNoPc;
  std::array<Split, 33> items;  // the first `count` mean something

  void add(u32 pc, u32 mask);
  Split take_min();
  void remove_at(int at);
  void clear() {
    count = 0;
    pc_min = kNoPc;
  }
};

/// Lanes that wait at a barrier.
struct Waiting {
  u32 pc = 0;
  u32 mask = 0;
  u32 barrier = 0;
  s32 result_row = 0;  // bar.red: where the result goes
  u8 result = 0;       // 0 none, else Reduction
  u32 depth = 0;       // number of frames below the one that waits
};

struct Frame {
  const Code* code = nullptr;
  const CallSite* site = nullptr;
  u8* rf = nullptr;
  u8* param_area = nullptr;
  u8* local = nullptr;
  const Inst* back = nullptr;  // where the caller goes on
  u32 active = 0;              // lanes that made the call
  SplitList splits, parked;
  u8* stack_top = nullptr;
};

struct Cta;

/// What a turn looks at comes first: a turn may be as short as ten instructions.
struct Warp {
  u8* rf = nullptr;        // register file of the current frame
  u8* entry_rf = nullptr;  // of the kernel's own frame
  u32 mask = 0;            // lanes that execute the current instruction
  u32 active = 0;          // lanes at the current pc, whatever its guard says
  const Inst* base = nullptr;
  const Inst* ip = nullptr;  // where to go on, while the warp does not run
  const Inst* at = nullptr;  // last instruction that may fault
  u64 count = 0;             // instructions executed, up to the last change of flow
  u64 count_limit = 0;       // end of the turn
  u64 counted = 0;           // what of `count` the worker knows
  u32 from = 0;              // serial at the last change of flow
  u32 turn = 0;              // turns since its start or its last barrier, at most kTurnsGrown
  u32 turns = 0;             // turns of full length since the running lanes last changed
  u32 live = 0;              // lanes that have not exited
  Cta* cta = nullptr;
  SplitList splits;
  u8* shared = nullptr;
  u32 shared_bytes = 0;
  u32 local_bytes = 0;       // per lane, of the current frame
  u8* local = nullptr;       // of the current frame, lane 0
  u8* param_area = nullptr;  // of the current frame, lane 0
  u32 param_stride = 0;
  const std::byte* params = nullptr;  // of the kernel
  const Code* code = nullptr;
  u32 index = 0;
  SplitList parked;  // used up their share of the turn
  std::vector<Waiting> waiting;
  std::vector<Frame> frames;
  // Frames of called functions are stacked here; blocks stay for the next call.
  std::vector<std::pair<u8*, std::size_t>> stack_blocks;
  std::size_t stack_block = 0;
  u8* stack_top = nullptr;
  u64 stack_bytes = 0;  // per lane, by the kernel's reckoning
  u32 gathered = 0;     // lanes that have met the others their .sync instruction names

  Warp() = default;
  Warp(const Warp&) = delete;
  Warp(Warp&&) = default;
  Warp& operator=(const Warp&) = delete;
  ~Warp();

  /// True when lanes of the current frame wait at a barrier.
  bool waits_here() const {
    for (const Waiting& entry : waiting) {
      if (entry.depth == frames.size()) return true;
    }
    return false;
  }
  u32 pc_of(const Inst* inst) const { return static_cast<u32>(inst - base); }
};

enum class Reduction : u8 { kNone, kAnd, kOr, kPopc };

struct Barrier {
  u32 arrived = 0;
  u32 expected = 0;  // 0: every live thread of the CTA
  bool all = true, any = false;
  u32 count = 0;
};

struct LaunchState;

struct Cta {
  std::vector<Warp> warps;
  std::array<Barrier, kBarriers> barriers;
  u32 live = 0;
  bool barriers_used = false;  // by this block
  u32 first_turn = 0;          // number of a warp's first turn; kTurnsGrown: never in step
  Dim3 index;
  u32 sm = 0;
  u8* shared = nullptr;
  u32 shared_bytes = 0;
  u8* local = nullptr;  // of all warps
  u64 local_bytes = 0;
  const Launch* launch = nullptr;
  Host* host = nullptr;
  const Program* program = nullptr;
  u64 grid_workspace = 0;
};

/// Ends the launch with a fault; never returns to the handler. See run/fault.cpp.
[[noreturn]] void fault_raise(Fault fault, u64 address);
/// What goes with the fault that is raised next. Apart from it, because a fault leaves its frame
/// without destroying what is in it.
void fault_text_keep(std::string text);

/// Faults unless the bytes lie in the local memory of some frame of the warp, or elsewhere in the
/// CTA's.
void local_check(const Warp& warp, u64 address, u64 bytes);

/// Fills one special register's row for a warp.
void special_fill(const Warp& warp, Special what, u32* row);

}  // namespace softgpu::ptx
