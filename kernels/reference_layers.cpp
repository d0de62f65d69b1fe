// Plain loops in float64; see reference_layers.h.
#include "kernels/reference_layers.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace sluice::kernels::reference {
namespace {

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

/// Row-major index of any number of dimensions: index and extent in turn, the first extent unused.
std::size_t flat(std::initializer_list<std::pair<int, int>> places) {
  std::size_t index = 0;
  for (const auto& [at, extent] : places) index = index * size_of(extent) + size_of(at);
  return index;
}

}  // namespace

Values layer_norm(int rows, int columns, double epsilon, std::span<const double> x,
                  std::span<const double> gain, std::span<const double> bias) {
  Values out(x.size());
  for (int row = 0; row < rows; ++row) {
    const auto line = x.subspan(flat({{row, rows}, {0, columns}}), size_of(columns));
    const double mean = std::accumulate(line.begin(), line.end(), 0.0) / columns;
    double variance = 0;
    for (const double value : line) variance += (value - mean) * (value - mean) / columns;
    for (int column = 0; column < columns; ++column) {
      const std::size_t i = size_of(column);
      out[flat({{row, rows}, {column, columns}})] =
          (line[i] - mean) / std::sqrt(variance + epsilon) * gain[i] + bias[i];
    }
  }
  return out;
}

Values softmax(int rows, int columns, std::span<const double> x) {
  Values out(x.size());
  for (int row = 0; row < rows; ++row) {
    const std::size_t begin = flat({{row, rows}, {0, columns}});
    const auto line = x.subspan(begin, size_of(columns));
    const double highest = *std::max_element(line.begin(), line.end());
    double sum = 0;
    for (const double value : line) sum += std::exp(value - highest);
    for (std::size_t i = 0; i < line.size(); ++i) {
      out[begin + i] = std::exp(line[i] - highest) / sum;
    }
  }
  return out;
}

Values gelu(std::span<const double> x) {
  Values out;
  for (const double value : x) {
    const double inner =
        std::sqrt(2 / std::numbers::pi) * (value + 0.044715 * value * value * value);
    out.push_back(0.5 * value * (1 + std::tanh(inner)));
  }
  return out;
}

Values embedding(int columns, int length, std::span<const int> tokens,
                 std::span<const double> tokens_table, std::span<const double> positions_table) {
  Values out;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const int position = static_cast<int>(row) % length;
    for (int column = 0; column < columns; ++column) {
      out.push_back(tokens_table[flat({{tokens[row], 0}, {column, columns}})] +
                    positions_table[flat({{position, 0}, {column, columns}})]);
    }
  }
  return out;
}

Values attention(const AttentionShape& shape, std::span<const double> qkv) {
  const auto at = [&](int item, int time, int which, int head, int value) {
    return qkv[flat(
        {{item, 0}, {time, shape.length}, {which, 3}, {head, shape.heads}, {value, shape.size}})];
  };
  Values out(qkv.size() / 3);
  for (int item = 0; item < shape.items; ++item) {
    for (int head = 0; head < shape.heads; ++head) {
      for (int time = 0; time < shape.length; ++time) {
        Values scores;
        for (int key = 0; key <= time; ++key) {
          double score = 0;
          for (int i = 0; i < shape.size; ++i) {
            score += at(item, time, 0, head, i) * at(item, key, 1, head, i);
          }
          scores.push_back(score / std::sqrt(shape.size));
        }
        const Values shares = softmax(1, time + 1, scores);
        for (int i = 0; i < shape.size; ++i) {
          double sum = 0;
          for (int key = 0; key <= time; ++key) {
            sum += shares[size_of(key)] * at(item, key, 2, head, i);
          }
          out[flat({{item, 0}, {time, shape.length}, {head, shape.heads}, {i, shape.size}})] = sum;
        }
      }
    }
  }
  return out;
}

Values convolution(const WindowShape& shape, int filters, std::span<const double> x,
                   std::span<const double> weights) {
  Values out;
  for (int item = 0; item < shape.items; ++item) {
    for (int y = 0; y < shape.out_height(); ++y) {
      for (int column = 0; column < shape.out_width(); ++column) {
        for (int filter = 0; filter < filters; ++filter) {
          double sum = 0;
          for (int ky = 0; ky < shape.kernel; ++ky) {
            for (int kx = 0; kx < shape.kernel; ++kx) {
              const int from_y = y * shape.stride + ky - shape.padding;
              const int from_x = column * shape.stride + kx - shape.padding;
              if (from_y < 0 || from_y >= shape.height) continue;
              if (from_x < 0 || from_x >= shape.width) continue;
              for (int channel = 0; channel < shape.channels; ++channel) {
                sum += x[flat({{item, 0},
                               {from_y, shape.height},
                               {from_x, shape.width},
                               {channel, shape.channels}})] *
                       weights[flat({{ky, 0},
                                     {kx, shape.kernel},
                                     {channel, shape.channels},
                                     {filter, filters}})];
              }
            }
          }
          out.push_back(sum);
        }
      }
    }
  }
  return out;
}

Values max_pool(int items, int height, int width, int channels, int window,
                std::span<const double> x) {
  Values out;
  for (int item = 0; item < items; ++item) {
    for (int y = 0; y < height / window; ++y) {
      for (int column = 0; column < width / window; ++column) {
        for (int channel = 0; channel < channels; ++channel) {
          double best = -INFINITY;
          for (int i = 0; i < window * window; ++i) {
            best = std::max(best, x[flat({{item, 0},
                                          {y * window + i / window, height},
                                          {column * window + i % window, width},
                                          {channel, channels}})]);
          }
          out.push_back(best);
        }
      }
    }
  }
  return out;
}

Values finite_difference(const std::function<Values(std::span<const double>)>& function,
                         std::span<const double> x, std::span<const double> direction,
                         double step) {
  Values point(x.begin(), x.end());
  const auto along = [&] {
    const Values out = function(point);
    assert(out.size() == direction.size());
    return std::inner_product(out.begin(), out.end(), direction.begin(), 0.0);
  };
  Values gradient;
  for (double& value : point) {
    const double before = value;
    value = before + step;
    const double higher = along();
    value = before - step;
    gradient.push_back((higher - along()) / (2 * step));
    value = before;
  }
  return gradient;
}

}  // namespace sluice::kernels::reference
