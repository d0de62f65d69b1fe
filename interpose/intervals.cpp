// See intervals.h.
#include "interpose/intervals.h"

#include <string.h>

#include "interpose/types.h"

namespace sluice::interpose {

void Intervals::oldest_forget() {
  has_floor_ = true;
  floor_ns_ = spans_[kIntervalsForgotten - 1].end;
  count_ -= kIntervalsForgotten;
  memmove(static_cast<void*>(spans_), spans_ + kIntervalsForgotten, count_ * sizeof(Span));
}

double Intervals::add(double begin_ns, double end_ns) {
  if (has_floor_ && begin_ns < floor_ns_) begin_ns = floor_ns_;
  if (end_ns <= begin_ns) return 0;
  // Mostly they come in order.
  if (SLUICE_LIKELY(count_ == 0 || begin_ns > spans_[count_ - 1].end)) {
    if (count_ == kIntervalsMax) oldest_forget();
    spans_[count_++] = Span{begin_ns, end_ns};
    return end_ns - begin_ns;
  }
  // Or go on where the newest ended.
  if (Span& newest = spans_[count_ - 1]; begin_ns >= newest.begin) {
    if (end_ns <= newest.end) return 0;
    const double grown_ns = end_ns - newest.end;
    newest.end = end_ns;
    return grown_ns;
  }
  // Everything that touches [begin, end] becomes one span; what it covered already is not counted
  // again.
  double covered = 0;
  unsigned kept = 0, at = 0;
  Span merged{begin_ns, end_ns};
  for (unsigned i = 0; i < count_; ++i) {
    const Span s = spans_[i];
    if (s.end < begin_ns || s.begin > end_ns) {
      if (s.end < begin_ns) at = kept + 1;
      spans_[kept++] = s;
      continue;
    }
    const double low = s.begin > begin_ns ? s.begin : begin_ns;
    const double high = s.end < end_ns ? s.end : end_ns;
    covered += high - low;
    if (s.begin < merged.begin) merged.begin = s.begin;
    if (s.end > merged.end) merged.end = s.end;
  }
  for (unsigned i = kept; i > at; --i) spans_[i] = spans_[i - 1];
  spans_[at] = merged;
  count_ = kept + 1;
  if (count_ > kIntervalsMax) oldest_forget();
  return end_ns - begin_ns - covered;
}

}  // namespace sluice::interpose
