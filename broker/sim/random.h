// Repeatable randomness: the same seed gives the same run on every machine and library (the
// distributions of the standard library differ between implementations). splitmix64, Steele, Lea
// and Flood 2014.
#pragma once

#include <cmath>
#include <cstdint>

namespace sluice::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// In [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// In [low, high], both included.
  std::int64_t range(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double p) { return unit() < p; }
  double exponential(double mean) { return -mean * std::log1p(-unit()); }
  /// How late a sleeper wakes up on a busy host with two cores, as measured with processes: 0.1 ms
  /// in the median, and up to 5 ms one time in a hundred.
  std::int64_t wake() {
    constexpr double kMeanNs = 100'000 / 0.693;
    constexpr std::int64_t kTailNs = 5'000'000;
    return chance(0.01) ? range(0, kTailNs) : static_cast<std::int64_t>(exponential(kMeanNs));
  }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::sim
