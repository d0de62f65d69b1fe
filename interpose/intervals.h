// The union of busy intervals that arrive almost in order. Times in nanoseconds of one clock.
#pragma once

namespace sluice::interpose {

inline constexpr unsigned kIntervalsMax = 32;        // disjoint ones that are remembered
inline constexpr unsigned kIntervalsForgotten = 16;  // of these, at once

class Intervals {
 public:
  /// Adds [begin, end] and returns by how much the union grew.
  double add(double begin_ns, double end_ns);

 private:
  struct Span {
    double begin, end;
  };
  void oldest_forget();
  Span spans_[kIntervalsMax + 1] = {};
  unsigned count_ = 0;
  bool has_floor_ = false;
  double floor_ns_ = 0;  // what lies before was forgotten: not counted again
};

}  // namespace sluice::interpose
