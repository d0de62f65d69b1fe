// See intervals.h.
#include "interpose/intervals.h"

#include <string.h>

namespace sluice::interpose {

void Intervals::oldest_forget() {
  has_floor_ = true;
  floor_ns_ = spans_[kIntervalsForgotten - 1].end;
  count_ -= kIntervalsForgotten;
  memmove(static_cast<void*>(spans_), spans_ + kIntervalsForgotten, count_ * sizeof(Span));
}

// One span in the place of those from `first` to before `last`, of which there may be none.
void Intervals::replace(unsigned first, unsigned last, const Span& merged) {
  memmove(static_cast<void*>(spans_ + first + 1), spans_ + last, (count_ - last) * sizeof(Span));
  spans_[first] = merged;
  count_ += first + 1 - last;
  if (count_ > kIntervalsMax) oldest_forget();
}

}  // namespace sluice::interpose
