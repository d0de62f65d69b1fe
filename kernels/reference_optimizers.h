// What the optimizers' kernels should compute, in float64 on the CPU; see reference.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/optimizers.h"

namespace sluice::kernels::reference {

using Values = std::vector<double>;

struct Adam {
  Values means;
  Values squares;
  Values weights;
};
/// Step `step` from `before`.
Adam adamw(const AdamwSettings& settings, int step, std::span<const double> gradient,
           const Adam& before);

struct Rmsprop {
  Values squares;
  Values velocity;
  Values weights;
};
Rmsprop rmsprop(const RmspropSettings& settings, std::span<const double> gradient,
                const Rmsprop& before);

/// Euclidean.
double norm(std::span<const double> x);

/// The bits of the nearest value of the format, to even; beyond the largest of fp16 infinity.
std::uint16_t half_bits(HalfFormat format, float value);
float half_value(HalfFormat format, std::uint16_t bits);

/// Orthonormal columns of x[rows, columns], by modified Gram-Schmidt; zero where one depends on
/// those before it.
Values gram_schmidt(int rows, int columns, Values x);

/// Ascending indices of the k largest magnitudes, of equals the first.
std::vector<int> topk(int k, std::span<const float> x);

}  // namespace sluice::kernels::reference
