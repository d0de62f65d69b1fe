// What a debug job will be: how long it lives, how busy it keeps the GPU, how it ends. Drawn from
// its seed alone, before it starts, so that whoever starts many of them knows what to expect of
// each. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "trainer/base/clock.h"

namespace sluice::train {

enum class DebugOutcome : std::uint8_t {
  kOk,
  kFail,   // a kernel stores through a wild pointer; the job says so and exits with 1
  kCrash,  // the host program aborts
  kKill,   // SIGKILL, as from a user or the kernel: nothing is cleaned up
  kLoop,   // never ends by itself
};
inline constexpr std::size_t kOutcomes = 5;

const char* outcome_name(DebugOutcome outcome);
/// The name of one; "random" and anything else are none (false).
bool outcome_parse(const std::string& name, DebugOutcome* out);

/// Where plans are drawn from.
struct DebugMix {
  double life_median_s = 0;  // 0 = no life: the job ends after its kernels
  double life_sigma = 1;     // of the logarithm of the life
  double busy_low = 0.1;     // the GPU's part of the life, drawn evenly between these
  double busy_high = 0.3;
  std::array<double, kOutcomes> odds = {60, 15, 10, 10, 5};  // in any unit
};

struct DebugPlan {
  DebugOutcome outcome = DebugOutcome::kOk;
  Nanos life_ns = 0;  // of a loop: until somebody kills it; 0 = none
  double busy = 0;
};

/// `fixed`: this outcome instead of a drawn one.
DebugPlan debug_plan(const DebugMix& mix, std::uint64_t seed, const DebugOutcome* fixed);

}  // namespace sluice::train
