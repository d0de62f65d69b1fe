// See growth.h.
#include "interpose/growth.h"

#include "interpose/account.h"
#include "interpose/residual.h"

namespace sluice::interpose {
namespace {

uint32_t late_above[protocol::kTenantGpusMax];

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

bool Growth::is_above() const {
  bool above = false;
  for (uint32_t i = 0; active_ && i < process.gpu_count; ++i) {
    const int gpu = static_cast<int>(i);
    const uint64_t now = residual_charged(gpu);
    if (now <= charged_[i] || is_within(gpu)) continue;
    const ErrnoGuard guard;
    charge_refused(gpu, now - charged_[i]);
    above = true;
  }
  return above;
}

bool Growth::is_above_late() const {
  bool above = false;
  for (uint32_t i = 0; active_ && i < process.gpu_count; ++i) {
    const int gpu = static_cast<int>(i);
    const uint64_t now = residual_charged(gpu);
    if (is_within(gpu)) {
      store_release(late_above[i], 0u);
    } else if (now > charged_[i]) {
      const ErrnoGuard guard;
      charge_refused(gpu, now - charged_[i]);
      store_release(late_above[i], 1u);
    }
    above |= load_acquire(late_above[i]) != 0;
  }
  return above;
}

}  // namespace sluice::interpose
