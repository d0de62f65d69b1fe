// The multilayer perceptron: its shape, its parameters in one flat array, and the device that
// trains it. Layer l maps x[batch, in] to x W_l + b_l, ReLU after every layer but the last; the
// loss is softmax cross-entropy. Flat order: W_0 (row-major [in, out]), b_0, W_1, b_1, ...
// Gradients have the same order plus kExtraCount floats.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/device/device.h"

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

/// Floats that travel with the gradients through the all-reduce: sum of losses, and the wish to
/// stop.
inline constexpr std::size_t kExtraCount = 2;
inline constexpr std::size_t kExtraLoss = 0;
inline constexpr std::size_t kExtraStop = 1;

/// The model on one GPU for batches up to batch_max. Every method only enqueues on the stream.
class Mlp {
 public:
  Mlp(Stream& stream, const MlpShape& shape, int batch_max, bool trains);

  const MlpShape& shape() const { return shape_; }
  int batch_max() const { return batch_max_; }

  void parameters_upload(std::span<const float> values);
  /// Waits; the only method that does.
  std::vector<float> parameters_download();

  /// inputs: [batch, inputs] floats; labels: [batch] int32. Host memory must stay until the stream
  /// has passed.
  void batch_upload(const float* inputs, const int* labels, int batch);
  void forward(int batch);
  /// Losses of the rows (and nothing else) into losses().
  void loss(int batch);
  /// Gradients of (sum of losses) / global_count, and the sum of losses into the extra. batch 0
  /// gives zeros.
  void backward(int batch, int global_count);
  /// *correct() += right answers of the batch
  void correct_add(int batch);

  CUdeviceptr parameters() const { return parameters_.at(); }
  CUdeviceptr gradients() const { return gradients_.at(); }
  std::size_t gradient_count() const { return shape_.parameter_count() + kExtraCount; }
  CUdeviceptr extra(std::size_t which) const {
    return gradients_.at(shape_.parameter_count() + which);
  }
  CUdeviceptr logits() const { return outputs_.back()->at(); }
  CUdeviceptr losses() const { return losses_.at(); }
  CUdeviceptr correct() const { return correct_.at(); }

 private:
  void product(kernels::GemmForm form, const kernels::GemmShape& shape, CUdeviceptr a,
               CUdeviceptr b, CUdeviceptr c);
  CUdeviceptr input_of(int layer) const {
    return layer == 0 ? inputs_.at() : outputs_[static_cast<std::size_t>(layer) - 1]->at();
  }

  /// Room for partial products; grows to what the shapes in use need, then stays.
  CUdeviceptr workspace(std::size_t floats);

  Stream& stream_;
  MlpShape shape_;
  int batch_max_;
  DeviceArray<float> parameters_;
  DeviceArray<float> gradients_;
  DeviceArray<float> inputs_;
  DeviceArray<int> labels_;
  DeviceArray<float> losses_;
  DeviceArray<int> correct_;
  std::unique_ptr<DeviceArray<float>> workspace_;
  std::vector<std::unique_ptr<DeviceArray<float>>> outputs_;  // of each layer, after its activation
  std::vector<std::unique_ptr<DeviceArray<float>>> deltas_;   // gradient of each layer's output
};

}  // namespace sluice::train
