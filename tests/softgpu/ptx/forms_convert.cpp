// Conversions: PTX ISA, section 9.7.9 (cvt, cvt.pack). Every source is an exact number, every
// result that number rounded once.
#include <algorithm>
#include <cmath>

#include "tests/softgpu/ptx/forms.h"
#include "tests/softgpu/ptx/forms_values.h"

namespace softgpu::ptx::test {
namespace {

Quad source_number(const FormCase& form, std::string_view from, u64 bits) {
  if (is_real_type(from)) {
    const bool flush = form.has("ftz") && from == "f32";
    return number(flush ? flushed(bits, kF32) : bits, format_of(from));
  }
  const u32 drop = 64 - bits_of(from);
  if (is_signed(from)) return Quad(static_cast<s64>(bits << drop) >> drop);
  return Quad(bits << drop >> drop);
}

/// A whole number next to x; -0 for negative ones that become zero.
Quad whole(Quad x, Rounding rounding) {
  if (x != x || x - x != 0 || x == 0) return x;
  const Quad size = x < 0 ? -x : x;
  if (size >= Quad(0x1p100)) return x;
  Quad down = Quad(static_cast<Uint128>(size));
  const Quad over = size - down;
  const bool odd = static_cast<Uint128>(size) % 2 != 0;
  bool up = false;
  if (rounding == Rounding::kNearest) up = over > Quad(0.5) || (over == Quad(0.5) && odd);
  if (rounding == Rounding::kUp) up = over > 0 && x > 0;
  if (rounding == Rounding::kDown) up = over > 0 && x < 0;
  if (up) down += 1;
  return x < 0 ? -down : down;
}

u64 clamped(Quad value, std::string_view type) {
  const u32 bits = bits_of(type);
  const Int128 one = 1;
  const Int128 least = is_signed(type) ? -(one << (bits - 1)) : 0;
  const Int128 most = (one << (is_signed(type) ? bits - 1 : bits)) - 1;
  if (value <= Quad(least)) return static_cast<u64>(least);
  return static_cast<u64>(value >= Quad(most) ? most : static_cast<Int128>(value));
}

/// PTX ISA 9.0, cvt: "In float-to-integer conversions, depending upon conversion types, NaN input
/// results in following value: Zero if source is not .f64 and destination is not .s64, .u64.
/// Otherwise 1 << (BitWidth(dst) - 1) corresponding to the value of (MAXINT >> 1) + 1 for unsigned
/// type or MININT for signed type." cuda_fp16.h says the same of __half2ll_rz and __half2int_rz.
u64 integer_of_nan(std::string_view to, std::string_view from) {
  if (from != "f64" && to != "s64" && to != "u64") return 0;
  return u64{1} << (bits_of(to) - 1);
}

/// How an integer of a type looks in its register: bytes are extended to 32 bits.
u64 in_register(u64 bits, std::string_view type) {
  const u32 width = bits_of(type);
  if (width == 64) return bits;
  if (width == 8 && is_signed(type)) return static_cast<u32>(static_cast<std::int8_t>(bits));
  return bits & ((u64{1} << width) - 1);
}

u64 to_integer(const FormCase& form, std::string_view to, std::string_view from, u64 bits) {
  const Quad value = source_number(form, from, bits);
  if (value != value) return in_register(integer_of_nan(to, from), to);
  if (is_real_type(from)) return in_register(clamped(whole(value, rounding_of(form)), to), to);
  if (form.has("sat")) return in_register(clamped(value, to), to);
  const u32 drop = 64 - bits_of(from);
  const u64 extended = is_signed(from) ? static_cast<u64>(static_cast<s64>(bits << drop) >> drop)
                                       : bits << drop >> drop;
  return in_register(extended, to);
}

u64 to_real(const FormCase& form, std::string_view to, std::string_view from, u64 bits) {
  const Format& format = format_of(to);
  Quad value = source_number(form, from, bits);
  const bool integral = form.has("rni") || form.has("rzi") || form.has("rmi") || form.has("rpi");
  if (integral) value = whole(value, rounding_of(form));
  u64 result = rounded(value, 0, format, integral ? Rounding::kNearest : rounding_of(form));
  const u64 sign = u64{1} << (format.exponent_bits + format.mantissa_bits);
  const u64 infinity = ((u64{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  if (form.has("satfinite") && (result & (sign - 1)) == infinity) --result;
  if (form.has("ftz") && to == "f32") result = flushed(result, format);
  if (form.has("sat")) result = saturated(result, format);
  if (form.has("relu") && !is_nan(result, format) && (result & sign) != 0) result = 0;
  // An f32 register whose lower 13 bits do not matter.
  if (to == "tf32") return is_nan(result, format) ? kF32.nan : result << 13;
  return result;
}

std::optional<Proof> prove_pack(const FormCase& form) {
  const std::string_view to = form.types()[0];
  const u32 bits = bits_of(to);
  const bool carries = bits == 8;
  Proof proof = plain_proof(form, carries ? 3 : 2, 'r', 'r');
  proof.reference = value_of([=](const u64* in) {
    const auto part = [&](u64 x) {
      return clamped(Quad(static_cast<s32>(x)), to) & ((u64{1} << bits) - 1);
    };
    const u64 pair = part(in[0]) << bits | part(in[1]);
    return carries ? (in[2] << 16 | pair) & 0xffffffff : pair;
  });
  return proof;
}

std::optional<Proof> prove_to_pair(const FormCase& form) {
  const std::string_view to = form.types()[0];
  Proof proof = plain_proof(form, 2, letter_of(to), 'f');
  const std::string_view half = to == "f16x2" ? "f16" : "bf16";
  proof.reference = value_of([=](const u64* in) {
    return to_real(form, half, "f32", in[0]) << 16 | to_real(form, half, "f32", in[1]);
  });
  return proof;
}

}  // namespace

std::optional<Proof> prove_convert(const FormCase& form) {
  if (form.op != "cvt") return std::nullopt;
  if (form.has("pack")) return prove_pack(form);
  const std::string_view to = form.types()[0], from = form.type();
  if (to == "f16x2" || to == "bf16x2") return prove_to_pair(form);
  Proof proof = plain_proof(form, 1, letter_of(to), letter_of(from));
  proof.reference = value_of([=](const u64* in) {
    return is_real_type(to) ? to_real(form, to, from, in[0]) : to_integer(form, to, from, in[0]);
  });
  return proof;
}

}  // namespace softgpu::ptx::test
