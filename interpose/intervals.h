// The union of busy intervals that arrive almost in order. Times in nanoseconds of one clock.
#pragma once

namespace sluice::interpose {

inline constexpr unsigned kIntervalsMax = 512;        // disjoint ones that are remembered
inline constexpr unsigned kIntervalsForgotten = 256;  // of these, at once

class Intervals {
 public:
  /// Adds [begin, end] and returns by how much the union grew. `part(from, to)` is told of each
  /// part of it that is new, in order.
  template <class Part>
  double add(double begin_ns, double end_ns, Part part) {
    if (has_floor_ && begin_ns < floor_ns_) begin_ns = floor_ns_;
    if (end_ns <= begin_ns) return 0;
    // Mostly they come in order, or go on where the newest ended.
    if (count_ == 0 || begin_ns > spans_[count_ - 1].end) {
      if (count_ == kIntervalsMax) oldest_forget();
      spans_[count_++] = Span{begin_ns, end_ns};
      part(begin_ns, end_ns);
      return end_ns - begin_ns;
    }
    if (Span& newest = spans_[count_ - 1]; begin_ns >= newest.begin) {
      const double known_ns = newest.end;
      if (end_ns <= known_ns) return 0;
      newest.end = end_ns;
      part(known_ns, end_ns);
      return end_ns - known_ns;
    }
    return add_late(begin_ns, end_ns, part);
  }
  double add(double begin_ns, double end_ns) {
    return add(begin_ns, end_ns, [](double, double) {});
  }
  /// With the next one that is by itself, the oldest ones are forgotten.
  bool is_full() const { return count_ == kIntervalsMax; }
  void clear() {
    count_ = 0;
    has_floor_ = false;
  }

 private:
  struct Span {
    double begin, end;
  };
  // Everything that touches [begin, end] becomes one span; what it covered already is not new.
  template <class Part>
  double add_late(double begin_ns, double end_ns, Part part) {
    unsigned last = count_;
    while (last > 0 && spans_[last - 1].begin > end_ns) --last;
    unsigned first = last;
    while (first > 0 && spans_[first - 1].end >= begin_ns) --first;
    double grown_ns = 0, at_ns = begin_ns;
    const auto grow = [&](double to_ns) {
      if (to_ns <= at_ns) return;
      part(at_ns, to_ns);
      grown_ns += to_ns - at_ns;
    };
    Span merged{begin_ns, end_ns};
    for (unsigned i = first; i < last; ++i) {
      const Span& span = spans_[i];
      grow(span.begin);
      if (span.end > at_ns) at_ns = span.end;
      if (span.begin < merged.begin) merged.begin = span.begin;
      if (span.end > merged.end) merged.end = span.end;
    }
    grow(end_ns);
    replace(first, last, merged);
    return grown_ns;
  }
  void replace(unsigned first, unsigned last, const Span& merged);
  void oldest_forget();

  Span spans_[kIntervalsMax + 1] = {};
  unsigned count_ = 0;
  bool has_floor_ = false;
  double floor_ns_ = 0;  // what lies before was forgotten: not counted again
};

}  // namespace sluice::interpose
