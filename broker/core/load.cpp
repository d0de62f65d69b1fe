// How busy a GPU has been lately: the part of the time for which meters saw work on it, averaged
// over about ten seconds. Usage is asked for once a second where a tenant is alone, so a shorter
// look would see either nothing or everything.
#include "broker/core/load.h"

#include <algorithm>
#include <cmath>

namespace sluice::core {
namespace {

constexpr Nanos kLookNs = 1'000'000'000;
constexpr double kMemoryNs = 10e9;  // older work counts for 1/e

}  // namespace

void loads_look(State& state, Nanos now) {
  if (now - state.loads_at < kLookNs) return;
  const auto passed = static_cast<double>(now - state.loads_at);
  state.loads_at = now;
  const double kept = std::exp(-passed / kMemoryNs);
  for (auto& gpu : state.gpus) {
    const auto busy = static_cast<double>(gpu->busy_ns - gpu->load_busy_ns);
    gpu->load_busy_ns = gpu->busy_ns;
    gpu->load = gpu->load * kept + std::clamp(busy / passed, 0.0, 1.0) * (1 - kept);
  }
}

}  // namespace sluice::core
