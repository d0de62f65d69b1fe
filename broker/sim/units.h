// Times and sizes as experiments write them.
#pragma once

#include "broker/sim/sim.h"

namespace sluice::sim {

inline constexpr Nanos kMs = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

}  // namespace sluice::sim
