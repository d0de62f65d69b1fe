// The multilayer perceptron: its shape, its parameters in one flat array, and the device that
// trains it. Layer l maps x[batch, in] to x W_l + b_l, ReLU after every layer but the last; the
// loss is softmax cross-entropy. Flat order: W_0 (row-major [in, out]), b_0, W_1, b_1, ...
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/model/dense_stack.h"

namespace sluice::train {

struct MlpShape {
  std::vector<int> widths;  // inputs, hidden..., classes

  int layer_count() const { return static_cast<int>(widths.size()) - 1; }
  int inputs() const { return widths.front(); }
  int classes() const { return widths.back(); }
  int in(int layer) const { return widths[static_cast<std::size_t>(layer)]; }
  int out(int layer) const { return widths[static_cast<std::size_t>(layer) + 1]; }
  std::size_t weight_offset(int layer) const;
  std::size_t bias_offset(int layer) const;
  std::size_t parameter_count() const { return weight_offset(layer_count()); }
  std::vector<ParameterRange> ranges() const;
  SampleShape sample() const { return {static_cast<std::size_t>(inputs()), 1, classes()}; }
  /// Values that the largest array of the network has for one sample.
  std::int64_t sample_width() const;
  /// "784-128-10"
  std::string text() const;
};

/// Shape for images with these hidden widths. Throws Failure on a width outside 1..kHiddenMax.
inline constexpr int kHiddenMax = 16384;
inline constexpr std::size_t kHiddenLayersMax = 8;
MlpShape mlp_shape(const std::vector<int>& hidden);

/// Normal weights of variance 2/in (He et al. 2015, for ReLU), zero biases; a function of shape and
/// seed alone.
std::vector<float> mlp_draw(const MlpShape& shape, std::uint64_t seed);

/// The MLP on one GPU, for images.
class Mlp : public DenseStack {
 public:
  Mlp(Stream& stream, const MlpShape& shape, const NetworkSettings& settings);

 private:
  void forward_layers(int batch) override;
  void backward_layers(int batch) override;
};

}  // namespace sluice::train
