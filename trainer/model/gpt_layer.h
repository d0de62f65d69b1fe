// The memory of a transformer's layers (its sum is GptPart::activation_floats); gpt.cpp and
// gpt_backward.cpp only.
#pragma once

#include <optional>

#include "trainer/model/gpt.h"

namespace sluice::train {

// Arrays are [rows, width] unless said otherwise. A part of a tensor has 1/T of the heads (and so
// of qkv's and attended's width) and of the perceptron's units.
struct Gpt::Layer {
  Layer(std::size_t rows, const GptPart& part)
      : attention_norm(rows, static_cast<std::size_t>(part.whole().width)),
        qkv(3 * rows * static_cast<std::size_t>(part.attended())),
        attended(rows * static_cast<std::size_t>(part.attended())),
        sums(rows * static_cast<std::size_t>(part.heads())),
        middle(attention_norm.out.size()),
        mlp_norm(rows, static_cast<std::size_t>(part.whole().width)),
        expanded(rows * static_cast<std::size_t>(part.expanded())),
        gelu(expanded.size()),
        out(attention_norm.out.size()) {}

  Norm attention_norm;
  DeviceArray<float> qkv;       // [rows, 3 width]
  DeviceArray<float> attended;  // by all heads
  DeviceArray<float> sums;      // [items, heads, context], of attention
  DeviceArray<float> middle;    // input + attention
  Norm mlp_norm;
  DeviceArray<float> expanded;  // [rows, 4 width], before and
  DeviceArray<float> gelu;      // after GELU
  DeviceArray<float> out;       // middle + perceptron
};

struct Gpt::Slot {
  Slot(std::size_t rows, const GptPart& part)
      : embedded(rows * static_cast<std::size_t>(part.whole().width)) {
    for (int layer = 0; layer < part.layers(); ++layer) {
      layers.push_back(std::make_unique<Layer>(rows, part));
    }
    if (part.place().is_last())
      last_norm.emplace(rows, static_cast<std::size_t>(part.whole().width));
    if (part.place().is_first()) {
      order.emplace(rows);
      starts.emplace(rows + 1);
    }
  }

  DeviceArray<float> embedded;  // what goes into the first layer
  std::vector<std::unique_ptr<Layer>> layers;
  std::optional<Norm> last_norm;
  // Of the batch's tokens; see order_ and starts_.
  std::optional<DeviceArray<int>> order, starts;
  int distinct = 0;  // tokens of the batch
};

inline const Gpt::Layer& Gpt::layer_of(int number) const {
  return *slot().layers[static_cast<std::size_t>(number)];
}

struct Gpt::Gradients {
  Gradients(std::size_t rows, const GptPart& part)
      : stream(rows * static_cast<std::size_t>(part.whole().width)),
        narrow(stream.size()),
        normed(stream.size()),
        wide(rows * static_cast<std::size_t>(part.expanded())),
        products(rows * static_cast<std::size_t>(part.heads())) {}

  DeviceArray<float> stream;    // of what goes from layer to layer
  DeviceArray<float> narrow;    // of a norm's or an attention's output
  DeviceArray<float> normed;    // of a norm's input
  DeviceArray<float> wide;      // of expanded, [rows, 4 width]; of qkv, [rows, 3 width]
  DeviceArray<float> products;  // of attention
};

}  // namespace sluice::train
