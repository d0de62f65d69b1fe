// 32-bit integer operations that compilers hardly emit. One scalar handler executes them all, for
// every instruction set: what the operation is and how it is modified stands in the instruction.
#pragma once

#include "softgpu/ptx/exec/warp.h"

namespace softgpu::ptx {

enum class RareOp : u8 {
  kMul24,
  kMad24,
  kSignExtend,
  kFindNthSet,
  kPackHalves,  // cvt.pack to 16 bits
  kPackBytes,   // cvt.pack to 8 bits
  kLop3Predicate,
  kVideoAdd,
  kVideoSub,
  kVideoAverage,
  kVideoDistance,
  kVideoMin,
  kVideoMax,
  kVideoCompare,
};

// Inst::flags. Which of them an operation looks at is said in rare.cpp.
inline constexpr u8 kRareHigh = 1;
inline constexpr u8 kRareSignedA = 2;
inline constexpr u8 kRareSignedB = 4;
inline constexpr u8 kRareSignedD = 8;
inline constexpr u8 kRareSaturate = 16;
inline constexpr u8 kRareAccumulate = 32;
inline constexpr u8 kRareWrap = 64;
inline constexpr u8 kRareOr = 128;  // lop3: combines with q by or, not and

/// d = operation(a, b, c). mode: RareOp; imm: bits of an element (video), the Compare in the byte
/// above (vset), the table (lop3). Of lop3, e is the predicate q and f the predicate p.
const Inst* run_rare(Warp& w, const Inst* i);

}  // namespace softgpu::ptx
