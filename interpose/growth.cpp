// See growth.h.
#include "interpose/growth.h"

#include "interpose/account.h"
#include "interpose/residual.h"

namespace sluice::interpose {
namespace {

bool is_within(int gpu) {
  const uint64_t quota = process.memory_max(gpu);
  return quota == 0 || process.ledger.total(static_cast<uint32_t>(gpu)) <= quota;
}

}  // namespace

Growth::Growth() : active_(process_mode() == Mode::kActive) {
  if (!active_) return;
  for (uint32_t i = 0; i < process.gpu_count; ++i)
    charged_[i] = residual_charged(static_cast<int>(i));
}

bool Growth::is_above_on(int gpu) const {
  const uint64_t before = charged_[gpu], now = residual_charged(gpu);
  if (now <= before || is_within(gpu)) return false;
  const ErrnoGuard guard;
  charge_refused(gpu, now - before);
  return true;
}

bool Growth::is_above() const {
  bool above = false;
  for (uint32_t i = 0; active_ && i < process.gpu_count; ++i)
    above |= is_above_on(static_cast<int>(i));
  return above;
}

bool Growth::is_above_late() const {
  bool above = false;
  for (uint32_t i = 0; active_ && i < process.gpu_count; ++i) {
    const int gpu = static_cast<int>(i);
    if (!is_above_on(gpu)) continue;
    residual_late_above(gpu);
    above = true;
  }
  return above;
}

}  // namespace sluice::interpose
