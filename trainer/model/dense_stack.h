// Dense layers one after the other, the last part of every classifier here: ReLU after each but the
// last, whose outputs are the logits. A perceptron is this and nothing else.
#pragma once

#include <memory>
#include <vector>

#include "trainer/model/network.h"
#include "trainer/model/products.h"

namespace sluice::train {

class DenseStack : public Network {
 protected:
  /// widths: features, hidden..., classes. Layer l has ranges first_range + 2 l (weights [in, out])
  /// and first_range + 2 l + 1 (bias).
  DenseStack(Stream& stream, std::vector<ParameterRange> ranges, const SampleShape& sample,
             const NetworkSettings& settings, std::vector<int> widths, std::size_t first_range);

  /// logits() from features [batch, widths.front()]
  void stack_forward(int batch, CUdeviceptr features);
  /// Gradients of the stack's parameters from logits_gradient(), and that of the features unless
  /// features_gradient is 0.
  void stack_backward(int batch, CUdeviceptr features, CUdeviceptr features_gradient);

 private:
  std::size_t layers() const { return widths_.size() - 1; }
  bool is_last(std::size_t layer) const { return layer + 1 == layers(); }
  DenseShape dense(std::size_t layer, int batch) const {
    return {batch, widths_[layer], widths_[layer + 1]};
  }
  std::size_t weights_range(std::size_t layer) const { return first_range_ + 2 * layer; }
  std::size_t bias_range(std::size_t layer) const { return weights_range(layer) + 1; }
  CUdeviceptr output_of(std::size_t layer) const {
    return is_last(layer) ? logits() : hidden_[layer]->at();
  }
  CUdeviceptr delta_of(std::size_t layer) const {
    return is_last(layer) ? logits_gradient() : deltas_[layer]->at();
  }

  const std::vector<int> widths_;
  const std::size_t first_range_;
  std::vector<std::unique_ptr<DeviceArray<float>>> hidden_;  // of each hidden layer, after its ReLU
  std::vector<std::unique_ptr<DeviceArray<float>>> deltas_;  // gradients of these
};

/// Appends the ranges of such layers: "NAME 0 weights", "NAME 0 bias", ...
void stack_ranges_add(RangeList& list, const std::string& name, const std::vector<int>& widths);

/// Normal weights of variance 2/inputs (He et al., Delving Deep into Rectifiers, 2015), in place.
void weights_draw(std::span<float> weights, int inputs, std::uint64_t seed, std::uint64_t purpose);

}  // namespace sluice::train
