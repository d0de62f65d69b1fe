// The memory of a transformer's layers; gpt.cpp and gpt_backward.cpp only.
#pragma once

#include "trainer/model/gpt.h"

namespace sluice::train {

// Arrays are [rows, width] unless said otherwise.
struct Gpt::Layer {
  Layer(std::size_t rows, const GptShape& shape)
      : attention_norm(rows, static_cast<std::size_t>(shape.width)),
        qkv(3 * attention_norm.out.size()),
        attended(attention_norm.out.size()),
        sums(rows * static_cast<std::size_t>(shape.heads)),
        middle(attention_norm.out.size()),
        mlp_norm(rows, static_cast<std::size_t>(shape.width)),
        expanded(kMlpFactor * attention_norm.out.size()),
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

struct Gpt::Gradients {
  Gradients(std::size_t rows, const GptShape& shape)
      : stream(rows * static_cast<std::size_t>(shape.width)),
        narrow(stream.size()),
        normed(stream.size()),
        wide(kMlpFactor * stream.size()),
        products(rows * static_cast<std::size_t>(shape.heads)) {}

  DeviceArray<float> stream;    // of what goes from layer to layer
  DeviceArray<float> narrow;    // of a norm's or an attention's output
  DeviceArray<float> normed;    // of a norm's input
  DeviceArray<float> wide;      // of expanded, [rows, 4 width]; of qkv, [rows, 3 width]
  DeviceArray<float> products;  // of attention
};

}  // namespace sluice::train
