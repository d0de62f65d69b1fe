// Units of virtual time.
#pragma once

#include "broker/sim/sim.h"

namespace sluice::sim {

inline constexpr Nanos kMs = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;

}  // namespace sluice::sim
