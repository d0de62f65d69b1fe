// What identifies a handler: operation, types and modifiers. The decoder fills a Form from an
// instruction's text; the handler families (exec/) answer with a function. Everything that varies
// per instruction but not per handler (rows, immediates) is in Inst instead.
#pragma once

#include "softgpu/ptx/text/types.h"

namespace softgpu::ptx {

enum class Op : u8 {
  // integer
  kAdd,
  kSub,
  kMul,
  kMulHi,
  kMulWide,
  kMad,
  kMadHi,
  kMadWide,
  kDiv,
  kRem,
  kAbs,
  kNeg,
  kMin,
  kMax,
  kSad,
  kAddCarry,
  kSubCarry,
  kMadCarryLo,
  kMadCarryHi,
  kDp4a,
  kDp2a,
  // bits
  kAnd,
  kOr,
  kXor,
  kNot,
  kCnot,
  kShl,
  kShr,
  kShf,
  kPrmt,
  kBfe,
  kBfi,
  kBmsk,
  kPopc,
  kClz,
  kBrev,
  kBfind,
  kLop3,
  // moves
  kMove,
  kMovePredicate,
  kPack64,
  kUnpack64,
  kPack32,
  kUnpack32,
  kPack64x4,
  kUnpack64x4,
  kParam,
  kParamAddress,
  kLocalAddress,
  kSharedToGeneric,
  kGenericToShared,
  kIsSpace,
  kVote,
  kMatchAny,
  kMatchAll,
  kShuffle,
  kRedux,
  kActiveMask,
  // real numbers
  kFma,
  kSqrt,
  kRsqrt,
  kRcp,
  kEx2,
  kLg2,
  kSin,
  kCos,
  kTanh,
  kCopysign,
  kTestp,
  // comparison
  kSetp,
  kSet,
  kSelp,
  kSlct,
  kConvert,
  kConvertPair,
  kLoad,
  kStore,
  kMma,
  kWmma,
};

enum class Round : u8 { kNearest, kZero, kDown, kUp, kAway };

enum class Compare : u8 {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan
};

/// How the address of a load, store or atomic is made.
enum class AddressMode : u8 {
  kPointer,      // 64-bit row + immediate
  kIndexed,      // f + (a + e) * bytes + immediate: a has 32 bits, the others are uniform
  kShared32,     // 32-bit row + immediate, offset in the shared window
  kShared64,     // the same from a 64-bit row
  kFixed,        // immediate
  kSharedFixed,  // immediate offset in the shared window
  kLocal,        // 64-bit row + immediate, must stay in the lane's local memory
  kLaneParam,    // immediate offset in the lane's call-parameter area
};

/// Inst::mode of loads and stores, for handlers that serve several kinds of element.
struct Element {
  u8 log_bytes : 2;  // of an element in memory
  u8 is_signed : 1;
  u8 log_count : 2;  // elements per lane
  u8 address : 3;    // AddressMode
};
static_assert(sizeof(Element) == 1);

/// Inst::flags of kIndexed.
inline constexpr u8 kIndexSigned = 1;
inline constexpr u8 kIndexPlus = 2;  // there is a row e

/// Form::mode of real arithmetic.
inline constexpr u8 kModeXorSign = 1;      // min and max: .xorsign.abs
inline constexpr u8 kModeApproximate = 2;  // div.approx

/// Inst::flags of half arithmetic.
inline constexpr u8 kHalfSaturate = 1;
inline constexpr u8 kHalfRelu = 2;
inline constexpr u8 kHalfFlush = 4;
inline constexpr u8 kHalfXorSign = 8;

/// Inst::mode of a comparison of halves: the Compare, and whether subnormals count as zero.
inline constexpr u8 kHalfCompareFlush = 128;

/// Inst::mode of a matrix product of integers.
inline constexpr u8 kMatrixSignedA = 1;
inline constexpr u8 kMatrixSignedB = 2;
inline constexpr u8 kMatrixClamped = 4;  // .satfinite

/// Inst::flags of what the lanes of a warp do together: all named lanes are waited for.
inline constexpr u8 kGather = 16;

struct Form {
  Op op = Op::kAdd;
  Type type = Type::kNone;
  Type from = Type::kNone;
  Round round = Round::kNearest;
  Compare compare = Compare::kEq;
  AddressMode address = AddressMode::kPointer;
  bool flush = false;     // .ftz
  bool saturate = false;  // .sat
  bool integral = false;  // .rni and its kin
  bool carry_in = false;
  bool carry_out = false;
  bool flag = false;  // what the operation makes of it: .wrap, .left, .shiftamt, .NaN, .relu ...
  u8 mode = 0;        // likewise: shuffle direction, vote kind ...
  u8 to_box = 4;      // bytes per lane of the destination row
  u8 from_box = 4;
  u8 vector = 1;
};

}  // namespace softgpu::ptx
