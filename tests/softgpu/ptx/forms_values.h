// Values for the proofs: what is at the edges of each kind of number, and narrow reals rounded by
// first principles (an independent way from the interpreter's).
#pragma once

#include <random>

#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {

/// Edge values and random bits, as a register of this letter (forms.h) holds them.
u64 wild_value(char letter, std::mt19937_64& random);
/// What ordinary data looks like.
u64 tame_value(char letter, std::mt19937_64& random);
/// The number in a register of a letter of reals (f, g, H, K).
double real_value(u64 bits, char letter);

__extension__ using Quad = __float128;
__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

enum class Rounding : u8 { kNearest, kZero, kDown, kUp, kAway };
Rounding rounding_of(const FormCase& form);

struct Format {
  int exponent_bits, mantissa_bits;
  u64 nan;
};
inline constexpr Format kF16{5, 10, 0x7fff}, kBf16{8, 7, 0x7fff}, kTf32{8, 10, 0x3ffff},
    kF32{8, 23, 0x7fffffff}, kF64{11, 52, 0x7fffffffffffffff};
const Format& format_of(std::string_view type);

/// The bits of `value` + something of the sign of `rest` and smaller than anything of `value`,
/// rounded once.
u64 rounded(Quad value, Quad rest, const Format& format, Rounding rounding);
/// The exact number that the bits stand for (infinities and NaNs included).
Quad number(u64 bits, const Format& format);
/// a * b + c without any rounding: the sum, and what it lacks.
struct Sum {
  Quad value, rest;
};
Sum fused(Quad a, Quad b, Quad c);

/// min or max as the pseudocode of the PTX ISA has it, with .NaN and .xorsign.abs; operands of the
/// form's type, one of a pair.
u64 smaller(const FormCase& form, u64 a, u64 b);

/// Zero of the same sign for a subnormal.
u64 flushed(u64 bits, const Format& format);
bool is_nan(u64 bits, const Format& format);
/// [0, 1], NaN to 0.
u64 saturated(u64 bits, const Format& format);

}  // namespace softgpu::ptx::test
