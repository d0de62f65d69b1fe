// In what numbers a model computes. Weights, their gradients, the sums of matrix products and
// everything element-wise are fp32 in any case; with bf16 or fp16 the operands of matrix products
// are cast to that format first, which is what tensor cores take (Micikevicius et al., Mixed
// Precision Training, 2018).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice::train {

enum class Precision : std::uint8_t { kFp32, kBf16, kFp16 };

inline constexpr std::array<const char*, 3> kPrecisionNames = {"fp32", "bf16", "fp16"};

inline const char* precision_name(Precision precision) {
  return kPrecisionNames[static_cast<std::size_t>(precision)];
}

inline std::optional<Precision> precision_parse(const std::string& name) {
  for (std::size_t i = 0; i < kPrecisionNames.size(); ++i) {
    if (name == kPrecisionNames[i]) return static_cast<Precision>(i);
  }
  return std::nullopt;
}

}  // namespace sluice::train
