// Names and sizes of the PTX scalar types; see types.h.
#include "softgpu/ptx/text/types.h"

#include <array>
#include <utility>

namespace softgpu::ptx {

Type type_of(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, Type>, 21> kNames{{
      {"b8", Type::kB8},     {"b16", Type::kB16},       {"b32", Type::kB32},
      {"b64", Type::kB64},   {"b128", Type::kB128},     {"u8", Type::kU8},
      {"u16", Type::kU16},   {"u32", Type::kU32},       {"u64", Type::kU64},
      {"s8", Type::kS8},     {"s16", Type::kS16},       {"s32", Type::kS32},
      {"s64", Type::kS64},   {"f16", Type::kF16},       {"f16x2", Type::kF16x2},
      {"bf16", Type::kBf16}, {"bf16x2", Type::kBf16x2}, {"f32", Type::kF32},
      {"f64", Type::kF64},   {"pred", Type::kPred},     {"tf32", Type::kTf32},
  }};
  for (const auto& [text, type] : kNames) {
    if (text == name) return type;
  }
  return Type::kNone;
}

u32 type_bytes(Type type) {
  switch (type) {
    case Type::kB8:
    case Type::kU8:
    case Type::kS8:
      return 1;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBf16:
      return 2;
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
      return 8;
    case Type::kB128:
      return 16;
    default:
      return 4;
  }
}

}  // namespace softgpu::ptx
