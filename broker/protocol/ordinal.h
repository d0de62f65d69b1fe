// Places in line, as people say them: "1st", "12th".
#pragma once

#include <cstdint>

namespace sluice::protocol {

inline const char* ordinal_ending(std::uint32_t number) {
  const std::uint32_t last = number % 10;
  if (number % 100 >= 11 && number % 100 <= 13) return "th";
  return last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th";
}

}  // namespace sluice::protocol
