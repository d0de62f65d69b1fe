// What each kernel should compute, in float64 on the CPU, written for being obviously right and
// nothing else. The kernels' tests and the trainer's gradient checks compare with these; no program
// uses them at run time.
#pragma once

#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace sluice::kernels::reference {

using Values = std::vector<double>;

/// C[m,n] = op(A) op(B)
Values gemm(GemmForm form, const GemmShape& shape, std::span<const double> a,
            std::span<const double> b);
/// x[rows, columns] + bias
Values bias_forward(int rows, int columns, std::span<const double> bias, std::span<const double> x);
Values bias_relu_forward(int rows, int columns, std::span<const double> bias,
                         std::span<const double> x);
Values relu_backward(std::span<const double> output, std::span<const double> gradient);
Values column_sum(int rows, int columns, std::span<const double> x);

struct Momentum {
  Values velocity;
  Values weights;
};
Momentum sgd_momentum(double rate, double momentum, std::span<const double> gradient,
                      std::span<const double> velocity, std::span<const double> weights);

struct Loss {
  Values losses;    // per row
  Values gradient;  // (softmax - one hot) factor
};
Loss softmax_cross_entropy(int rows, int columns, double factor, std::span<const double> logits,
                           std::span<const int> labels);
int correct_count(int rows, int columns, std::span<const double> logits,
                  std::span<const int> labels);

}  // namespace sluice::kernels::reference
