// Text of settings: what stands at its edges does not count.
#pragma once

#include <string_view>

namespace softgpu::device {

/// Without blanks and quotes at either end.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kEdges = " \t\r\"";
  const auto first = text.find_first_not_of(kEdges);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kEdges) - first + 1);
}

}  // namespace softgpu::device
