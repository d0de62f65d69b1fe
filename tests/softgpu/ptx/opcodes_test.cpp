// Every computing opcode against a scalar reference in C++, lane by lane, over edge values and
// random ones, under full and partial masks, for every instruction set this processor runs.
#include <bit>
#include <cfenv>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

/// An instruction with 64-bit carriers for operands and result; `type` letters: r 32 bits, d 64, f
/// f32, g f64, h 16 bits.
struct Case {
  const char* text;   // with D, A, B, C for the operands
  const char* types;  // of D, A, B, C
  std::function<u64(u64, u64, u64)> reference;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.text; }

float f(u64 x) { return std::bit_cast<float>(static_cast<u32>(x)); }
double g(u64 x) { return std::bit_cast<double>(x); }
u64 of(float x) { return x != x ? 0x7fffffffu : std::bit_cast<u32>(x); }
u64 of(double x) { return x != x ? 0x7fffffffffffffffu : std::bit_cast<u64>(x); }
s32 i(u64 x) { return static_cast<s32>(x); }
u32 u(u64 x) { return static_cast<u32>(x); }
s64 l(u64 x) { return static_cast<s64>(x); }
u64 of(s32 x) { return u(static_cast<u64>(x)); }
u64 of(u32 x) { return x; }

template <class F>
auto rounded(int mode, F body) {
  std::fesetround(mode);
  volatile auto result = body();
  std::fesetround(FE_TONEAREST);
  return result;
}

template <class T>
T flush(T x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T{0}, x) : x;
}

std::vector<Case> integer_cases() {
  return {
      {"add.s32 D, A, B", "rrr", [](u64 a, u64 b, u64) { return of(u(a) + u(b)); }},
      {"sub.u32 D, A, B", "rrr", [](u64 a, u64 b, u64) { return of(u(a) - u(b)); }},
      {"add.s64 D, A, B", "ddd", [](u64 a, u64 b, u64) { return a + b; }},
      {"mul.lo.s32 D, A, B", "rrr", [](u64 a, u64 b, u64) { return of(u(a) * u(b)); }},
      {"mul.lo.s64 D, A, B", "ddd", [](u64 a, u64 b, u64) { return a * b; }},
      {"mul.hi.s32 D, A, B", "rrr",
       [](u64 a, u64 b, u64) { return of(u(static_cast<u64>((s64{i(a)} * i(b)) >> 32))); }},
      {"mul.hi.u32 D, A, B", "rrr", [](u64 a, u64 b, u64) { return (u64{u(a)} * u(b)) >> 32; }},
      {"mul.hi.u64 D, A, B", "ddd",
       [](u64 a, u64 b, u64) {
         __extension__ using W = unsigned __int128;
         return static_cast<u64>((W{a} * b) >> 64);
       }},
      {"mul.wide.s32 D, A, B", "drr",
       [](u64 a, u64 b, u64) { return static_cast<u64>(s64{i(a)} * i(b)); }},
      {"mul.wide.u32 D, A, B", "drr", [](u64 a, u64 b, u64) { return u64{u(a)} * u(b); }},
      {"mul.wide.s16 D, A, B", "rhh",
       [](u64 a, u64 b, u64) {
         return of(static_cast<std::int16_t>(a) * static_cast<std::int16_t>(b));
       }},
      {"mad.lo.s32 D, A, B, C", "rrrr", [](u64 a, u64 b, u64 c) { return of(u(a) * u(b) + u(c)); }},
      {"mad.wide.u32 D, A, B, C", "drrd", [](u64 a, u64 b, u64 c) { return u64{u(a)} * u(b) + c; }},
      {"mad.hi.u32 D, A, B, C", "rrrr",
       [](u64 a, u64 b, u64 c) { return of(u((u64{u(a)} * u(b)) >> 32) + u(c)); }},
      {"div.s32 D, A, B", "rrr",
       [](u64 a, u64 b, u64) {
         return u(b) == 0 ? 0xffffffffu : i(b) == -1 ? of(0 - u(a)) : of(i(a) / i(b));
       }},
      {"div.u32 D, A, B", "rrr",
       [](u64 a, u64 b, u64) { return u(b) == 0 ? 0xffffffffu : of(u(a) / u(b)); }},
      {"rem.s32 D, A, B", "rrr",
       [](u64 a, u64 b, u64) { return u(b) == 0    ? of(u(a))
                                      : i(b) == -1 ? 0
                                                   : of(i(a) % i(b)); }},
      {"rem.u32 D, A, B", "rrr",
       [](u64 a, u64 b, u64) { return u(b) == 0 ? of(u(a)) : of(u(a) % u(b)); }},
      {"div.s64 D, A, B", "ddd",
       [](u64 a, u64 b, u64) {
         return b == 0 ? ~u64{0} : l(b) == -1 ? 0 - a : static_cast<u64>(l(a) / l(b));
       }},
      {"rem.u64 D, A, B", "ddd", [](u64 a, u64 b, u64) { return b == 0 ? a : a % b; }},
      {"abs.s32 D, A", "rr", [](u64 a, u64, u64) { return of(i(a) < 0 ? 0 - u(a) : u(a)); }},
      {"neg.s64 D, A", "dd", [](u64 a, u64, u64) { return 0 - a; }},
      {"min.s32 D, A, B", "rrr", [](u64 a, u64 b, u64) { return of(std::min(i(a), i(b))); }},
      {"max.u64 D, A, B", "ddd", [](u64 a, u64 b, u64) { return std::max(a, b); }},
      {"sad.s32 D, A, B, C", "rrrr",
       [](u64 a, u64 b, u64 c) { return of(u(c) + (i(a) < i(b) ? u(b) - u(a) : u(a) - u(b))); }},
      {"and.b32 D, A, B", "rrr", [](u64 a, u64 b, u64) { return a & b; }},
      {"xor.b64 D, A, B", "ddd", [](u64 a, u64 b, u64) { return a ^ b; }},
      {"not.b32 D, A", "rr", [](u64 a, u64, u64) { return of(~u(a)); }},
      {"cnot.b32 D, A", "rr", [](u64 a, u64, u64) { return of(u(a) == 0 ? 1u : 0u); }},
      {"shl.b32 D, A, B", "rrr",
       [](u64 a, u64 b, u64) { return u(b) > 31 ? 0 : of(u(a) << u(b)); }},
      {"shr.s32 D, A, B", "rrr", [](u64 a, u64 b, u64) { return of(i(a) >> std::min(u(b), 31u)); }},
      {"shr.u64 D, A, B", "ddr", [](u64 a, u64 b, u64) { return u(b) > 63 ? 0 : a >> u(b); }},
      {"shf.l.wrap.b32 D, A, B, C", "rrrr",
       [](u64 a, u64 b, u64 c) { return of(u(((u64{u(b)} << 32 | u(a)) << (c & 31)) >> 32)); }},
      {"shf.r.clamp.b32 D, A, B, C", "rrrr",
       [](u64 a, u64 b, u64 c) { return of(u((u64{u(b)} << 32 | u(a)) >> std::min(u(c), 32u))); }},
      {"popc.b64 D, A", "rd", [](u64 a, u64, u64) { return static_cast<u64>(std::popcount(a)); }},
      {"clz.b32 D, A", "rr",
       [](u64 a, u64, u64) { return static_cast<u64>(std::countl_zero(u(a))); }},
      {"brev.b32 D, A", "rr",
       [](u64 a, u64, u64) {
         u32 r = 0;
         for (u32 k = 0; k < 32; ++k) r |= ((u(a) >> k) & 1) << (31 - k);
         return of(r);
       }},
      {"bfind.u32 D, A", "rr",
       [](u64 a, u64, u64) {
         return of(u(a) == 0 ? ~0u : 31u - static_cast<u32>(std::countl_zero(u(a))));
       }},
      {"bfind.shiftamt.s32 D, A", "rr",
       [](u64 a, u64, u64) {
         const u32 x = i(a) < 0 ? ~u(a) : u(a);
         return of(x == 0 ? ~0u : static_cast<u32>(std::countl_zero(x)));
       }},
      {"bfe.u32 D, A, 5, 9", "rr", [](u64 a, u64, u64) { return of((u(a) >> 5) & 511u); }},
      {"bfe.s32 D, A, 20, 16", "rr", [](u64 a, u64, u64) { return of(i(a) >> 20); }},
      {"bfi.b32 D, A, B, 7, 11", "rrr",
       [](u64 a, u64 b, u64) {
         const u32 m = 2047u << 7;
         return of((u(b) & ~m) | ((u(a) << 7) & m));
       }},
      {"prmt.b32 D, A, B, 0x9c61", "rrr",
       [](u64 a, u64 b, u64) {
         const u64 v = u64{u(b)} << 32 | u(a);
         u32 r = 0;
         for (u32 k = 0; k < 4; ++k) {
           const u32 s = (0x9c61u >> (4 * k)) & 15;
           u32 byte = u(v >> (8 * (s & 7))) & 255;
           if (s & 8) byte = byte & 128 ? 255 : 0;
           r |= byte << (8 * k);
         }
         return of(r);
       }},
      {"lop3.b32 D, A, B, C, 0xe8", "rrrr",
       [](u64 a, u64 b, u64 c) { return of(u((a & b) | (a & c) | (b & c))); }},
      {"dp4a.s32.u32 D, A, B, C", "rrrr",
       [](u64 a, u64 b, u64 c) {
         u32 r = u(c);
         for (int k = 0; k < 32; k += 8)
           r += u(static_cast<u64>(static_cast<std::int8_t>(a >> k) *
                                   static_cast<std::uint8_t>(b >> k)));
         return of(r);
       }},
      {"add.s16 D, A, B", "hhh", [](u64 a, u64 b, u64) { return (a + b) & 0xffff; }},
  };
}

std::vector<Case> real_cases() {
  return {
      {"add.f32 D, A, B", "fff", [](u64 a, u64 b, u64) { return of(f(a) + f(b)); }},
      {"sub.rn.f32 D, A, B", "fff", [](u64 a, u64 b, u64) { return of(f(a) - f(b)); }},
      {"mul.f32 D, A, B", "fff", [](u64 a, u64 b, u64) { return of(f(a) * f(b)); }},
      {"mul.rz.f32 D, A, B", "fff",
       [](u64 a, u64 b, u64) {
         return of(rounded(FE_TOWARDZERO, [&] {
           volatile float x = f(a), y = f(b);
           return x * y;
         }));
       }},
      {"add.rm.f32 D, A, B", "fff",
       [](u64 a, u64 b, u64) {
         return of(rounded(FE_DOWNWARD, [&] {
           volatile float x = f(a), y = f(b);
           return x + y;
         }));
       }},
      {"add.rp.f64 D, A, B", "ggg",
       [](u64 a, u64 b, u64) {
         return of(rounded(FE_UPWARD, [&] {
           volatile double x = g(a), y = g(b);
           return x + y;
         }));
       }},
      {"fma.rn.f32 D, A, B, C", "ffff",
       [](u64 a, u64 b, u64 c) { return of(std::fma(f(a), f(b), f(c))); }},
      {"fma.rm.f32 D, A, B, C", "ffff",
       [](u64 a, u64 b, u64 c) {
         return of(rounded(FE_DOWNWARD, [&] {
           volatile float x = f(a), y = f(b), z = f(c);
           return std::fma(x, y, z);
         }));
       }},
      {"fma.rn.f64 D, A, B, C", "gggg",
       [](u64 a, u64 b, u64 c) { return of(std::fma(g(a), g(b), g(c))); }},
      {"add.ftz.f32 D, A, B", "fff",
       [](u64 a, u64 b, u64) { return of(flush(flush(f(a)) + flush(f(b)))); }},
      {"mul.sat.f32 D, A, B", "fff",
       [](u64 a, u64 b, u64) {
         const float x = f(a) * f(b);
         return of(x > 0 ? std::min(x, 1.f) : 0.f);
       }},
      {"div.rn.f32 D, A, B", "fff", [](u64 a, u64 b, u64) { return of(f(a) / f(b)); }},
      {"div.rn.f64 D, A, B", "ggg", [](u64 a, u64 b, u64) { return of(g(a) / g(b)); }},
      {"div.rz.f32 D, A, B", "fff",
       [](u64 a, u64 b, u64) {
         return of(rounded(FE_TOWARDZERO, [&] {
           volatile float x = f(a), y = f(b);
           return x / y;
         }));
       }},
      {"sqrt.rn.f32 D, A", "ff", [](u64 a, u64, u64) { return of(std::sqrt(f(a))); }},
      {"rcp.rn.f64 D, A", "gg", [](u64 a, u64, u64) { return of(1.0 / g(a)); }},
      {"neg.f32 D, A", "ff", [](u64 a, u64, u64) { return a ^ 0x80000000u; }},
      {"abs.f64 D, A", "gg", [](u64 a, u64, u64) { return a & 0x7fffffffffffffffu; }},
      {"copysign.f32 D, A, B", "fff",
       [](u64 a, u64 b, u64) { return (b & 0x7fffffffu) | (a & 0x80000000u); }},
      {"min.f32 D, A, B", "fff",
       [](u64 a, u64 b, u64) {
         return f(a) == 0 && f(b) == 0 ? of(u(a | b))
                                       : of(f(a) != f(a)   ? f(b)
                                            : f(b) != f(b) ? f(a)
                                                           : std::min(f(a), f(b)));
       }},
      {"max.f64 D, A, B", "ggg",
       [](u64 a, u64 b, u64) {
         return g(a) == 0 && g(b) == 0 ? a & b
                                       : of(g(a) != g(a)   ? g(b)
                                            : g(b) != g(b) ? g(a)
                                                           : std::max(g(a), g(b)));
       }},
  };
}

template <class T>
u64 clamp_to(double x) {
  if (x != x) return sizeof(T) == 8 ? u64{1} << 63 : 0;  // forms_convert.cpp has the ISA's words
  if (x >= std::ldexp(1.0, std::numeric_limits<T>::digits))
    return static_cast<u64>(std::numeric_limits<T>::max());
  if (x < static_cast<double>(std::numeric_limits<T>::min()))
    return static_cast<u64>(std::numeric_limits<T>::min());
  return static_cast<u64>(static_cast<T>(x));
}

std::vector<Case> convert_cases() {
  return {
      {"cvt.s64.s32 D, A", "dr", [](u64 a, u64, u64) { return static_cast<u64>(s64{i(a)}); }},
      {"cvt.u32.u64 D, A", "rd", [](u64 a, u64, u64) { return of(u(a)); }},
      // From registers that are wider than the type they are read as.
      {"cvt.s64.s32 D, A", "dd", [](u64 a, u64, u64) { return static_cast<u64>(s64{i(a)}); }},
      {"cvt.u64.u32 D, A", "dd", [](u64 a, u64, u64) { return u64{u(a)}; }},
      {"cvt.s64.s16 D, A", "dd",
       [](u64 a, u64, u64) { return static_cast<u64>(s64{static_cast<std::int16_t>(a)}); }},
      {"cvt.u64.u8 D, A", "dd", [](u64 a, u64, u64) { return a & 0xff; }},
      {"cvt.s32.s8 D, A", "rd", [](u64 a, u64, u64) { return of(static_cast<std::int8_t>(a)); }},
      {"cvt.u32.u16 D, A", "rd", [](u64 a, u64, u64) { return a & 0xffff; }},
      {"cvt.s32.s8 D, A", "rr",
       [](u64 a, u64, u64) { return of(s32{static_cast<std::int8_t>(a)}); }},
      {"cvt.u16.u32 D, A", "hr", [](u64 a, u64, u64) { return a & 0xffff; }},
      {"cvt.sat.u8.s32 D, A", "rr", [](u64 a, u64, u64) { return of(std::clamp(i(a), 0, 255)); }},
      {"cvt.rn.f32.s32 D, A", "fr", [](u64 a, u64, u64) { return of(static_cast<float>(i(a))); }},
      {"cvt.rz.f32.u64 D, A", "fd",
       [](u64 a, u64, u64) {
         return of(rounded(FE_TOWARDZERO, [&] {
           volatile u64 x = a;
           return static_cast<float>(x);
         }));
       }},
      {"cvt.rp.f32.s64 D, A", "fd",
       [](u64 a, u64, u64) {
         return of(rounded(FE_UPWARD, [&] {
           volatile s64 x = l(a);
           return static_cast<float>(x);
         }));
       }},
      {"cvt.rn.f64.u64 D, A", "gd", [](u64 a, u64, u64) { return of(static_cast<double>(a)); }},
      {"cvt.f64.f32 D, A", "gf", [](u64 a, u64, u64) { return of(static_cast<double>(f(a))); }},
      {"cvt.rn.f32.f64 D, A", "fg", [](u64 a, u64, u64) { return of(static_cast<float>(g(a))); }},
      {"cvt.rm.f32.f64 D, A", "fg",
       [](u64 a, u64, u64) {
         return of(rounded(FE_DOWNWARD, [&] {
           volatile double x = g(a);
           return static_cast<float>(x);
         }));
       }},
      {"cvt.rzi.s32.f32 D, A", "rf",
       [](u64 a, u64, u64) { return of(u(clamp_to<s32>(std::trunc(static_cast<double>(f(a)))))); }},
      {"cvt.rni.u32.f32 D, A", "rf",
       [](u64 a, u64, u64) {
         return of(u(clamp_to<u32>(std::nearbyint(static_cast<double>(f(a))))));
       }},
      {"cvt.rmi.s64.f64 D, A", "dg",
       [](u64 a, u64, u64) { return clamp_to<s64>(std::floor(g(a))); }},
      {"cvt.rpi.u64.f64 D, A", "dg",
       [](u64 a, u64, u64) { return clamp_to<u64>(std::ceil(g(a))); }},
      {"cvt.rni.f32.f32 D, A", "ff", [](u64 a, u64, u64) { return of(std::nearbyint(f(a))); }},
      {"cvt.sat.f32.f32 D, A", "ff",
       [](u64 a, u64, u64) {
         const float x = f(a);
         return of(x > 0 ? std::min(x, 1.f) : 0.f);
       }},
      {"cvt.rzi.f64.f64 D, A", "gg", [](u64 a, u64, u64) { return of(std::trunc(g(a))); }},
  };
}

const u64 kEdges[] = {0,
                      1,
                      2,
                      31,
                      32,
                      33,
                      63,
                      64,
                      0x7f,
                      0x80,
                      0xff,
                      0x7fff,
                      0x8000,
                      0xffff,
                      0x7fffffff,
                      0x80000000,
                      0xffffffff,
                      0x3f800000,
                      0xbf800000,
                      0x7f800000,
                      0xff800000,
                      0x7fc00000,
                      0x00800000,
                      0x007fffff,
                      0x80000001,
                      0x4b000000,
                      0x4f000000,
                      0xcf000000,
                      0x3f000000,
                      0x40200000,
                      u64{1} << 63,
                      0x7fffffffffffffff,
                      0xffffffffffffffff,
                      0x3ff0000000000000,
                      0xbff8000000000000,
                      0x7ff0000000000000,
                      0x7ff8000000000000,
                      0x000fffffffffffff,
                      0x43e0000000000000,
                      0xc3e0000000000000,
                      0x3fe0000000000000};
constexpr std::size_t kCaseLanes = 2048;

u64 value_for(char type, std::mt19937_64& random) {
  const u64 pick = random();
  u64 bits = pick % 3 == 0 ? kEdges[random() % std::size(kEdges)] : random();
  if (pick % 5 == 1 && type == 'f')
    bits = std::bit_cast<u32>(static_cast<float>(static_cast<s32>(random())) * 0x1p-20f);
  if (pick % 5 == 1 && type == 'g')
    bits = std::bit_cast<u64>(static_cast<double>(static_cast<s64>(random())) * 0x1p-40);
  if (type == 'r' || type == 'f') bits &= 0xffffffffu;
  if (type == 'h') bits &= 0xffff;
  return bits;
}

/// What ordinary data looks like: handlers may take a shorter way for rows of it.
u64 tame_value_for(char type, bool positive, std::mt19937_64& random) {
  const u64 bits = random();
  const double size = static_cast<double>(bits >> 44) * 0x1p-10 + 0x1p-8;
  const double value = positive || (bits & 1) == 0 ? size : -size;
  if (type == 'f') return std::bit_cast<u32>(static_cast<float>(value));
  if (type == 'g') return std::bit_cast<u64>(value);
  return value_for(type, random);
}

/// Every third warp is wild in all lanes, every third in one lane, every third in none.
u64 lane_value_for(char type, std::size_t lane, std::mt19937_64& random) {
  const std::size_t warp = lane / 32;
  const bool wild = warp % 3 == 0 || (warp % 3 == 1 && lane % 32 == warp % 32);
  return wild ? value_for(type, random) : tame_value_for(type, warp % 2 == 0, random);
}

const char* operand_type(char type) {
  return type == 'h'   ? ".b16"
         : type == 'r' ? ".b32"
         : type == 'f' ? ".f32"
         : type == 'g' ? ".f64"
                       : ".b64";
}
const char* slot_type(char type) {
  return type == 'h'   ? "u16"
         : type == 'r' ? "u32"
         : type == 'f' ? "f32"
         : type == 'g' ? "f64"
                       : "u64";
}

/// Loads the operands of its lane from 8-byte slots, runs the instruction where lane % 3 != 0 (or
/// everywhere), stores.
std::string program_for(const Case& c, bool partial) {
  const std::string types = c.types;
  std::string body =
      ".visible .entry k(.param .u64 d, .param .u64 a, .param .u64 b, .param .u64 c)\n{\n.reg "
      ".pred %p; .reg .b32 %t<6>; .reg .b64 %q<9>;\n";
  const char* names = "DABC";
  for (std::size_t k = 0; k < types.size(); ++k)
    body += std::string(".reg ") + operand_type(types[k]) + " " + names[k] + ";\n";
  body +=
      "mov.u32 %t0, %tid.x; mov.u32 %t1, %ctaid.x; mov.u32 %t2, %ntid.x; mad.lo.s32 %t3, %t1, %t2, "
      "%t0; mul.wide.u32 %q0, %t3, 8;\n";
  const char* params = "dabc";
  for (std::size_t k = 0; k < 4; ++k) {
    const std::string n = std::to_string(k + 1);
    body += std::string("ld.param.u64 %q") + n + ", [" + params[k] + "]; add.s64 %q" + n + ", %q" +
            n + ", %q0;\n";
    if (k < types.size())
      body +=
          std::string("ld.global.") + slot_type(types[k]) + " " + names[k] + ", [%q" + n + "];\n";
  }
  if (partial) body += "rem.u32 %t4, %t3, 3; setp.eq.u32 %p, %t4, 0; @%p bra DONE;\n";
  body += std::string(c.text) + ";\n";
  if (partial) body += "DONE:\n";
  body += std::string("st.global.") + slot_type(types[0]) + " [%q1], D;\nret;\n}\n";
  return ptx_module(body);
}

/// Results of `c` for all lanes, run on the instruction set `isa`.
void run_case(const Case& c, const char* isa, bool partial, std::vector<u64>& result,
              const std::vector<u64>* operands) {
  ::setenv("SOFTGPU_ISA", isa, 1);
  HeapMemory memory;
  TestHost host;
  const LoadResult loaded = module_load(program_for(c, partial), memory);
  ::unsetenv("SOFTGPU_ISA");
  ASSERT_EQ(loaded.status, LoadStatus::kOk) << loaded.log;
  Arguments arguments;
  arguments.add(result.data());
  for (int k = 0; k < 3; ++k) arguments.add(operands[k].data());
  Launch launch;
  launch.grid.x = kCaseLanes / 128;
  launch.block.x = 128;
  launch.params = arguments.data();
  const Outcome outcome = launch_run(*module_kernel(*loaded.module, "k"), launch, host);
  ASSERT_EQ(outcome.fault, Fault::kNone) << outcome.fault_text;
}

class OpcodeTest : public ::testing::TestWithParam<std::tuple<Case, const char*>> {};

TEST_P(OpcodeTest, EveryLaneMatchesTheReference) {
  const auto& [c, isa] = GetParam();
  std::mt19937_64 random(7);
  const std::string types = c.types;
  std::vector<u64> values[4];
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t n = 0; n < kCaseLanes; ++n)
      values[k].push_back(lane_value_for(k < types.size() ? types[k] : 'd', n, random));
  }
  for (const bool partial : {false, true}) {
    std::vector<u64> result = values[0];
    ASSERT_NO_FATAL_FAILURE(run_case(c, isa, partial, result, values + 1));
    for (std::size_t n = 0; n < kCaseLanes; ++n) {
      const bool skipped = partial && n % 3 == 0;
      const u64 want =
          skipped ? values[0][n] : c.reference(values[1][n], values[2][n], values[3][n]);
      ASSERT_EQ(result[n], want) << c.text << " lane " << n << std::hex << " a=" << values[1][n]
                                 << " b=" << values[2][n] << " c=" << values[3][n];
    }
  }
}

/// The functions that hardware approximates: within three units in the last place of the true
/// value, which none of ours may exceed, in rows of ordinary values and in rows with an odd one.
std::vector<Case> approximate_cases() {
  const auto with = [](auto function, bool flushes) {
    return [=](u64 a, u64, u64) {
      const float x = flushes ? flush(f(a)) : f(a);
      const float y = static_cast<float>(function(static_cast<double>(x)));
      return of(flushes ? flush(y) : y);
    };
  };
  const auto inverse = [](double x) { return 1 / x; };
  const auto power = [](double x) { return std::exp2(x); };
  return {{"ex2.approx.f32 D, A", "ff", with(power, false)},
          {"ex2.approx.ftz.f32 D, A", "ff", with(power, true)},
          {"rcp.approx.ftz.f32 D, A", "ff", with(inverse, true)},
          {"rsqrt.approx.f32 D, A", "ff", with([](double x) { return 1 / std::sqrt(x); }, false)}};
}

class ApproximateTest : public OpcodeTest {};

TEST_P(ApproximateTest, EveryLaneIsNearTheTrueValue) {
  const auto& [c, isa] = GetParam();
  std::mt19937_64 random(11);
  std::vector<u64> result(kCaseLanes), values[3];
  for (std::size_t n = 0; n < kCaseLanes; ++n) {
    const u64 value = lane_value_for('f', n, random);
    // A quarter of it where 2^x is neither zero nor infinite.
    values[0].push_back(n % 128 < 32 ? of(std::fmod(f(value), 160.f)) : value);
  }
  values[1] = values[2] = values[0];
  ASSERT_NO_FATAL_FAILURE(run_case(c, isa, false, result, values));
  for (std::size_t n = 0; n < kCaseLanes; ++n) {
    const float want = f(c.reference(values[0][n], 0, 0)), got = f(result[n]);
    if (want != want || std::isinf(want) || want == 0) {
      ASSERT_EQ(u(result[n]), u(of(want))) << c.text << std::hex << " a=" << values[0][n];
    } else {
      ASSERT_NEAR(got, want, std::fabs(want) * 0x3p-23f + 0x1p-149f)
          << c.text << std::hex << " a=" << values[0][n];
    }
  }
}

const char* const kIsas[] = {"base", "avx2", "avx512"};
INSTANTIATE_TEST_SUITE_P(Integer, OpcodeTest,
                         ::testing::Combine(::testing::ValuesIn(integer_cases()),
                                            ::testing::ValuesIn(kIsas)));
INSTANTIATE_TEST_SUITE_P(Real, OpcodeTest,
                         ::testing::Combine(::testing::ValuesIn(real_cases()),
                                            ::testing::ValuesIn(kIsas)));
INSTANTIATE_TEST_SUITE_P(Functions, ApproximateTest,
                         ::testing::Combine(::testing::ValuesIn(approximate_cases()),
                                            ::testing::ValuesIn(kIsas)));
INSTANTIATE_TEST_SUITE_P(Convert, OpcodeTest,
                         ::testing::Combine(::testing::ValuesIn(convert_cases()),
                                            ::testing::ValuesIn(kIsas)));

}  // namespace
}  // namespace softgpu::ptx::test
