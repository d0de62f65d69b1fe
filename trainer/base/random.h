// Random numbers that are the same on every machine and standard library: the distributions of
// <random> are not. The generator is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
// number generators", OOPSLA 2014).
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace sluice::train {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// An independent stream: what is drawn for one purpose never shifts what is drawn for another.
  Random(std::uint64_t seed, std::uint64_t purpose) : state_(seed) {
    state_ = next() ^ (purpose * 0xd1342543de82ef95ULL);
    next();
  }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// In [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// In [0, bound); the bias of the multiplication is below 2^-32 for every bound used here.
  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(((next() >> 32) * bound) >> 32);
  }
  /// Standard normal, by Box and Muller.
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }
  /// Exponential with the given mean: gaps of a Poisson process.
  double exponential(double mean) { return -mean * std::log(1.0 - uniform()); }

 private:
  std::uint64_t state_;
};

/// 0..count-1 in random order (Fisher-Yates).
inline std::vector<std::uint32_t> permutation_draw(std::uint32_t count, Random random) {
  std::vector<std::uint32_t> order(count);
  for (std::uint32_t i = 0; i < count; ++i) order[i] = i;
  for (std::uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace sluice::train
