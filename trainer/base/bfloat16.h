// bfloat16 on the host: the upper half of a float, rounded to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice::train {

struct Bfloat16 {
  std::uint16_t bits = 0;

  Bfloat16() = default;
  explicit Bfloat16(float value) {
    const auto whole = std::bit_cast<std::uint32_t>(value);
    const bool nan = (whole & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounding = 0x7fffu + ((whole >> 16) & 1u);
    bits = static_cast<std::uint16_t>(nan ? (whole >> 16) | 0x40u : (whole + rounding) >> 16);
  }
  float value() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

  Bfloat16& operator+=(Bfloat16 other) { return *this = Bfloat16(value() + other.value()); }
  bool operator<(Bfloat16 other) const { return value() < other.value(); }
};
static_assert(sizeof(Bfloat16) == 2);

}  // namespace sluice::train
