// Plain loops in float64; see reference_backward.h.
#include "kernels/reference_backward.h"

#include <cmath>
#include <numbers>

#include "kernels/reference_layers.h"

namespace sluice::kernels::reference {
namespace {

std::size_t places(int value) { return static_cast<std::size_t>(value); }

}  // namespace

LayerNormGradients layer_norm_backward(int rows, int columns, double epsilon,
                                       std::span<const double> x, std::span<const double> gain,
                                       std::span<const double> direction) {
  const std::size_t width = places(columns);
  LayerNormGradients out{Values(x.size()), Values(width), Values(width)};
  for (std::size_t begin = 0; begin < places(rows) * width; begin += width) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < width; ++i) mean += x[begin + i] / columns;
    for (std::size_t i = 0; i < width; ++i)
      variance += (x[begin + i] - mean) * (x[begin + i] - mean) / columns;
    const double scale = 1 / std::sqrt(variance + epsilon);
    const auto normal = [&](std::size_t i) { return (x[begin + i] - mean) * scale; };
    double sum = 0, product = 0;  // means over the row
    for (std::size_t i = 0; i < width; ++i) {
      const double wanted = direction[begin + i] * gain[i];
      sum += wanted / columns;
      product += wanted * normal(i) / columns;
      out.gain[i] += direction[begin + i] * normal(i);
      out.bias[i] += direction[begin + i];
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double wanted = direction[begin + i] * gain[i];
      out.input[begin + i] = scale * (wanted - sum - normal(i) * product);
    }
  }
  return out;
}

Values softmax_backward(int rows, int columns, std::span<const double> x,
                        std::span<const double> direction) {
  const Values shares = softmax(rows, columns, x);
  const std::size_t width = places(columns);
  Values out(x.size());
  for (std::size_t begin = 0; begin < out.size(); begin += width) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + width; ++i) sum += direction[i] * shares[i];
    for (std::size_t i = begin; i < begin + width; ++i) out[i] = shares[i] * (direction[i] - sum);
  }
  return out;
}

Values gelu_backward(std::span<const double> x, std::span<const double> direction) {
  const double factor = std::sqrt(2 / std::numbers::pi);
  Values out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = x[i];
    const double bent = std::tanh(factor * (value + 0.044715 * value * value * value));
    const double slope = factor * (1 + 3 * 0.044715 * value * value);
    out.push_back(direction[i] * (0.5 * (1 + bent) + 0.5 * value * (1 - bent * bent) * slope));
  }
  return out;
}

Values embedding_backward(int token_count, int columns, std::span<const int> tokens,
                          std::span<const double> direction) {
  const std::size_t width = places(columns);
  Values out(places(token_count) * width);
  for (std::size_t i = 0; i < direction.size(); ++i)
    out[places(tokens[i / width]) * width + i % width] += direction[i];
  return out;
}

Values position_backward(int length, int columns, std::span<const double> direction) {
  Values out(places(length) * places(columns));
  for (std::size_t i = 0; i < direction.size(); ++i) out[i % out.size()] += direction[i];
  return out;
}

Values attention_backward(const AttentionShape& shape, std::span<const double> qkv,
                          std::span<const double> direction) {
  const auto at = [&](int item, int time, int which, int head, int value) {
    return (((places(item * shape.length + time)) * 3 + places(which)) * places(shape.heads) +
            places(head)) *
               places(shape.size) +
           places(value);
  };
  const auto wanted = [&](int item, int time, int head, int value) {
    return direction[places(((item * shape.length + time) * shape.heads + head) * shape.size +
                            value)];
  };
  const double scale = 1 / std::sqrt(shape.size);
  Values out(qkv.size());
  for (int item = 0; item < shape.items; ++item) {
    for (int head = 0; head < shape.heads; ++head) {
      for (int time = 0; time < shape.length; ++time) {
        Values scores(places(time + 1)), by_share(places(time + 1));
        for (int key = 0; key <= time; ++key) {
          for (int i = 0; i < shape.size; ++i) {
            scores[places(key)] +=
                qkv[at(item, time, 0, head, i)] * qkv[at(item, key, 1, head, i)] * scale;
            by_share[places(key)] += wanted(item, time, head, i) * qkv[at(item, key, 2, head, i)];
          }
        }
        const Values shares = softmax(1, time + 1, scores);
        const Values by_score = softmax_backward(1, time + 1, scores, by_share);
        for (int key = 0; key <= time; ++key) {
          const double share = shares[places(key)], slope = by_score[places(key)] * scale;
          for (int i = 0; i < shape.size; ++i) {
            out[at(item, time, 0, head, i)] += slope * qkv[at(item, key, 1, head, i)];
            out[at(item, key, 1, head, i)] += slope * qkv[at(item, time, 0, head, i)];
            out[at(item, key, 2, head, i)] += share * wanted(item, time, head, i);
          }
        }
      }
    }
  }
  return out;
}

ConvolutionGradients convolution_backward(const WindowShape& shape, int filters,
                                          std::span<const double> x,
                                          std::span<const double> weights,
                                          std::span<const double> direction) {
  ConvolutionGradients out{Values(x.size()), Values(weights.size())};
  const int out_area = shape.out_height() * shape.out_width();
  for (int patch = 0; patch < shape.patches(); ++patch) {
    const int item = patch / out_area;
    const int top = patch % out_area / shape.out_width() * shape.stride - shape.padding;
    const int left = patch % shape.out_width() * shape.stride - shape.padding;
    for (int place = 0; place < shape.patch(); ++place) {
      const int channel = place % shape.channels, pixel = place / shape.channels;
      const int y = top + pixel / shape.kernel, column = left + pixel % shape.kernel;
      if (y < 0 || y >= shape.height || column < 0 || column >= shape.width) continue;
      const std::size_t from =
          places(((item * shape.height + y) * shape.width + column) * shape.channels + channel);
      for (int filter = 0; filter < filters; ++filter) {
        const double wanted = direction[places(patch * filters + filter)];
        const std::size_t weight = places(place * filters + filter);
        out.input[from] += wanted * weights[weight];
        out.weights[weight] += wanted * x[from];
      }
    }
  }
  return out;
}

Values max_pool_backward(int items, int height, int width, int channels, int window,
                         std::span<const double> x, std::span<const double> direction) {
  Values out(x.size());
  std::size_t taken = 0;
  for (int item = 0; item < items; ++item) {
    for (int y = 0; y < height / window; ++y) {
      for (int column = 0; column < width / window; ++column) {
        for (int channel = 0; channel < channels; ++channel) {
          const auto place = [&](int i) {
            return places(
                ((item * height + y * window + i / window) * width + column * window + i % window) *
                    channels +
                channel);
          };
          std::size_t best = place(0);
          for (int i = 1; i < window * window; ++i)
            if (x[place(i)] > x[best]) best = place(i);
          out[best] += direction[taken++];
        }
      }
    }
  }
  return out;
}

}  // namespace sluice::kernels::reference
