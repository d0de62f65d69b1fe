// What the residual charges without asking while a call of its own asks. The driver's figure tells
// nobody whose memory it is: a reading for another thread, or the helper's, finds what this thread
// is just loading and charges it as there, so that this thread's own reading finds nothing more.
// Whoever may take back what he loaded, or withhold it, looks here as well.
#pragma once

#include "broker/protocol/pages.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// From before the call to the driver until its memory was measured (residual_settle and the like).
class Growth {
 public:
  Growth();
  /// The residual of a GPU has grown since, and its tenant is above the quota: what was loaded
  /// would not have fitted beside what others are loading. Counted and said as a refusal.
  [[nodiscard]] bool is_above() const;
  /// The same of what only the end of its module takes back: withheld from then on, until the
  /// tenant has come below its quota (residual_settle_late).
  [[nodiscard]] bool is_above_late() const;

 private:
  bool is_above_on(int gpu) const;
  uint64_t charged_[protocol::kTenantGpusMax];
  bool active_;
};

}  // namespace sluice::interpose
