// Plain loops in float64; see reference.h.
#include "kernels/reference.h"

#include <algorithm>
#include <cmath>

namespace sluice::kernels::reference {
namespace {

std::size_t at(int row, int column, int columns) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
         static_cast<std::size_t>(column);
}

std::size_t area(int rows, int columns) { return at(rows, 0, columns); }

}  // namespace

Values gemm(GemmForm form, const GemmShape& shape, std::span<const double> a,
            std::span<const double> b) {
  assert(a.size() == area(shape.m, shape.k) && b.size() == area(shape.k, shape.n));
  Values c(area(shape.m, shape.n));
  for (int row = 0; row < shape.m; ++row) {
    for (int column = 0; column < shape.n; ++column) {
      double sum = 0;
      for (int i = 0; i < shape.k; ++i) {
        const double left = form == GemmForm::kTn ? a[at(i, row, shape.m)] : a[at(row, i, shape.k)];
        const double right =
            form == GemmForm::kNt ? b[at(column, i, shape.k)] : b[at(i, column, shape.n)];
        sum += left * right;
      }
      c[at(row, column, shape.n)] = sum;
    }
  }
  return c;
}

Values bias_forward(int rows, int columns, std::span<const double> bias,
                    std::span<const double> x) {
  Values out(x.begin(), x.end());
  assert(out.size() == area(rows, columns));
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      out[at(row, column, columns)] += bias[static_cast<std::size_t>(column)];
    }
  }
  return out;
}

Values bias_relu_forward(int rows, int columns, std::span<const double> bias,
                         std::span<const double> x) {
  Values out = bias_forward(rows, columns, bias, x);
  for (double& value : out) value = std::max(0.0, value);
  return out;
}

Values relu_backward(std::span<const double> output, std::span<const double> gradient) {
  assert(output.size() == gradient.size());
  Values out(gradient.begin(), gradient.end());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!(output[i] > 0)) out[i] = 0;
  }
  return out;
}

Values column_sum(int rows, int columns, std::span<const double> x) {
  assert(x.size() == area(rows, columns));
  Values sums(static_cast<std::size_t>(columns));
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      sums[static_cast<std::size_t>(column)] += x[at(row, column, columns)];
    }
  }
  return sums;
}

Momentum sgd_momentum(double rate, double momentum, std::span<const double> gradient,
                      std::span<const double> velocity, std::span<const double> weights) {
  assert(gradient.size() == velocity.size() && gradient.size() == weights.size());
  Momentum out{Values(velocity.begin(), velocity.end()), Values(weights.begin(), weights.end())};
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    out.velocity[i] = momentum * velocity[i] + gradient[i];
    out.weights[i] -= rate * out.velocity[i];
  }
  return out;
}

Loss softmax_cross_entropy(int rows, int columns, double factor, std::span<const double> logits,
                           std::span<const int> labels) {
  assert(logits.size() == area(rows, columns) && labels.size() == static_cast<std::size_t>(rows));
  Loss out{Values(static_cast<std::size_t>(rows)), Values(logits.size())};
  for (int row = 0; row < rows; ++row) {
    const auto line = logits.subspan(at(row, 0, columns), static_cast<std::size_t>(columns));
    const double highest = *std::max_element(line.begin(), line.end());
    double sum = 0;
    for (const double value : line) sum += std::exp(value - highest);
    const int label = labels[static_cast<std::size_t>(row)];
    assert(label >= 0 && label < columns);
    out.losses[static_cast<std::size_t>(row)] =
        std::log(sum) - (line[static_cast<std::size_t>(label)] - highest);
    for (int column = 0; column < columns; ++column) {
      const double share = std::exp(line[static_cast<std::size_t>(column)] - highest) / sum;
      out.gradient[at(row, column, columns)] = (share - (column == label ? 1.0 : 0.0)) * factor;
    }
  }
  return out;
}

int correct_count(int rows, int columns, std::span<const double> logits,
                  std::span<const int> labels) {
  int count = 0;
  for (int row = 0; row < rows; ++row) {
    const auto line = logits.subspan(at(row, 0, columns), static_cast<std::size_t>(columns));
    const auto best = std::max_element(line.begin(), line.end()) - line.begin();
    count += best == labels[static_cast<std::size_t>(row)] ? 1 : 0;
  }
  return count;
}

}  // namespace sluice::kernels::reference
