// Plain loops in float64; see reference_optimizers.h.
#include "kernels/reference_optimizers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluice::kernels::reference {

Adam adamw(const AdamwSettings& settings, int step, std::span<const double> gradient,
           const Adam& before) {
  Adam after = before;
  const double first = settings.first;
  const double second = settings.second;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i];
    after.means[i] = first * before.means[i] + (1 - first) * g;
    after.squares[i] = second * before.squares[i] + (1 - second) * g * g;
    const double mean = after.means[i] / (1 - std::pow(first, step));
    const double square = after.squares[i] / (1 - std::pow(second, step));
    after.weights[i] -= settings.rate * (mean / (std::sqrt(square) + settings.epsilon) +
                                         settings.decay * before.weights[i]);
  }
  return after;
}

Rmsprop rmsprop(const RmspropSettings& settings, std::span<const double> gradient,
                const Rmsprop& before) {
  Rmsprop after = before;
  const double smoothing = settings.smoothing;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i];
    after.squares[i] = smoothing * before.squares[i] + (1 - smoothing) * g * g;
    after.velocity[i] = settings.momentum * before.velocity[i] +
                        g / (std::sqrt(after.squares[i]) + settings.epsilon);
    after.weights[i] -= settings.rate * after.velocity[i];
  }
  return after;
}

double norm(std::span<const double> x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

Values gram_schmidt(int rows, int columns, Values x) {
  const auto width = static_cast<std::size_t>(columns);
  const auto product = [&](std::size_t a, std::size_t b) {
    double sum = 0;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
      sum += x[row * width + a] * x[row * width + b];
    return sum;
  };
  Values before(width);
  for (std::size_t c = 0; c < width; ++c) before[c] = std::sqrt(product(c, c));
  for (std::size_t c = 0; c < width; ++c) {
    const double length = std::sqrt(product(c, c));
    const double scale = length > 1e-5 * before[c] ? 1 / length : 0;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
      x[row * width + c] *= scale;
    for (std::size_t later = c + 1; later < width; ++later) {
      const double along = product(c, later);
      for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
        x[row * width + later] -= along * x[row * width + c];
    }
  }
  return x;
}

float half_value(HalfFormat format, std::uint16_t bits) {
  const int exponent_bits = format == HalfFormat::kFp16 ? 5 : 8;
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - bias - fraction_bits);
  } else {
    value = std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

std::uint16_t half_bits(HalfFormat format, float value) {
  // By search: the bits of non-negative values ascend with the value.
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const std::uint16_t infinity = format == HalfFormat::kFp16 ? 0x7c00 : 0x7f80;
  std::uint16_t low = 0;
  std::uint16_t high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (static_cast<double>(half_value(format, middle)) <= magnitude ? low : high) = middle;
  }
  const double below = static_cast<double>(half_value(format, low));
  // Infinity stands where the next value of the format would be.
  const double above =
      high == infinity
          ? 2 * below - static_cast<double>(half_value(format, static_cast<std::uint16_t>(low - 1)))
          : static_cast<double>(half_value(format, high));
  const double middle = (below + above) / 2;
  const bool up = magnitude > middle || (magnitude == middle && low % 2 == 1);
  return static_cast<std::uint16_t>(sign | (up ? high : low));
}

std::vector<int> topk(int k, std::span<const float> x) {
  std::vector<int> indices(x.size());
  std::iota(indices.begin(), indices.end(), 0);
  std::stable_sort(indices.begin(), indices.end(), [&](int a, int b) {
    return std::fabs(x[static_cast<std::size_t>(a)]) > std::fabs(x[static_cast<std::size_t>(b)]);
  });
  indices.resize(static_cast<std::size_t>(k));
  std::sort(indices.begin(), indices.end());
  return indices;
}

}  // namespace sluice::kernels::reference
