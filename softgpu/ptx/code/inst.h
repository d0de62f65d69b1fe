// One decoded instruction. A handler executes it for the 32 lanes of a warp and returns the next
// instruction, or nullptr when the warp has to stop (then Warp says where it goes on).
#pragma once

#include "softgpu/ptx/text/types.h"

namespace softgpu::ptx {

struct Warp;
struct Inst;
using Handler = const Inst* (*)(Warp&, const Inst*);

/// What an instruction does to memory that other warps see. Reads of constants, parameters and
/// `.nc` count as nothing, and so does local memory. An atomic operation counts as a write.
inline constexpr u8 kAccessNone = 0;
inline constexpr u8 kAccessReads = 1;
inline constexpr u8 kAccessWrites = 2;

struct Inst {
  Handler run = nullptr;
  s32 d = 0, a = 0, b = 0, c = 0;  // rows, in bytes from Warp::rf
  s32 e = 0, f = 0;                // further rows: fourth element, second destination
  s64 imm = 0;
  Handler inner = nullptr;  // what `run` guards
  s32 guard = 0;            // predicate row
  u32 serial = 0;           // statements before this one in the function that count: labels do not
  int line = 0;
  u8 guard_negated : 4 = 0;
  u8 access : 4 = kAccessNone;
  u8 flags = 0;
  u8 mode = 0;
  u8 bytes = 0;
};
static_assert(sizeof(Inst) <= 64, "an instruction is one cache line");

}  // namespace softgpu::ptx
