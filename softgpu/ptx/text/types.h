// The scalar types and state spaces of PTX, and the few questions the rest of the interpreter asks
// about them. Shared by the parser, the decoder and the handlers; it knows none of them.
#pragma once

#include <cstdint>
#include <string_view>

namespace softgpu::ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

constexpr u64 align_up(u64 value, u64 align) { return (value + align - 1) / align * align; }

enum class Type : u8 {
  kNone,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kTf32,
  kF32,
  kF64,
  kPred,
};

enum class Space : u8 { kGeneric, kGlobal, kShared, kLocal, kConst, kParam };

/// kNone when `name` ("u32", no dot) is no type.
Type type_of(std::string_view name);
u32 type_bytes(Type type);

constexpr bool type_is_signed(Type t) {
  return t == Type::kS8 || t == Type::kS16 || t == Type::kS32 || t == Type::kS64;
}
constexpr bool type_is_half(Type t) {
  return t == Type::kF16 || t == Type::kF16x2 || t == Type::kBf16 || t == Type::kBf16x2;
}
constexpr bool type_is_real(Type t) {
  return t == Type::kF32 || t == Type::kF64 || t == Type::kTf32 || type_is_half(t);
}

/// Bytes of one lane of a register that holds a value of this type: registers narrower than 32 bits
/// live in 4 bytes.
inline u32 type_box(Type t) { return type_bytes(t) == 8 ? 8 : 4; }

}  // namespace softgpu::ptx
