// The exporter's words for what the protocol has numbers for: values of metric labels and of
// /snapshot.json. A contract.
#pragma once

#include <array>
#include <cstddef>

namespace sluice::exporter {

inline constexpr std::array<const char*, 4> kClassNames{"inference", "debug", "batch", "exclusive"};
inline constexpr std::array<const char*, 4> kStateNames{"queued", "running", "swapped",
                                                        "suspended"};
inline constexpr std::array<const char*, 7> kReasonNames{
    "none", "resources", "priority", "user_limit", "drain", "gang", "share"};

inline constexpr std::array<const char*, 7> kStayNames{
    "goes", "not_swappable", "exclusive", "runaway", "failed", "host_memory", "lost"};

template <class Enum>
constexpr std::size_t index_of(Enum value) {
  return static_cast<std::size_t>(value);
}

}  // namespace sluice::exporter
