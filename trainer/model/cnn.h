// A small convolutional network for images: blocks of a 3x3 convolution (padding 1), ReLU and 2x2
// max pooling, then dense layers. A convolution is the matrix product of patches and weights
// (kernels/layers.h). Flat order: for every block weights [3, 3, channels, filters] and bias
// [filters], then the dense layers' as in mlp.h; features are [height, width, filters].
#pragma once

#include "kernels/layers.h"
#include "trainer/model/dense_stack.h"

namespace sluice::train {

struct CnnShape {
  int side = 28;  // of the images, which have one channel
  std::vector<int> filters;
  std::vector<int> hidden;
  int classes = 10;

  std::size_t block_count() const { return filters.size(); }
  /// The convolution of a block.
  kernels::WindowShape window(std::size_t block, int items) const;
  /// Widths of the dense layers: features, hidden..., classes.
  std::vector<int> widths() const;
  std::vector<ParameterRange> ranges() const;
  std::size_t parameter_count() const { return ranges().back().end(); }
  SampleShape sample() const { return {static_cast<std::size_t>(side * side), 1, classes}; }
  /// Values that the largest array of the network has for one sample.
  std::int64_t sample_width() const;
  /// "28x28-8c-16c-128-10"
  std::string text() const;
};

inline constexpr int kFiltersMax = 512;
inline constexpr std::size_t kBlocksMax = 3;  // 28 pixels become 14, 7, 3
/// Shape for the images of dataset.h. Throws Failure where it cannot be.
CnnShape cnn_shape(const std::vector<int>& filters, const std::vector<int>& hidden);

/// Normal weights of variance 2/inputs, zero biases; a function of shape and seed alone.
std::vector<float> cnn_draw(const CnnShape& shape, std::uint64_t seed);

class Cnn : public DenseStack {
 public:
  Cnn(Stream& stream, const CnnShape& shape, const NetworkSettings& settings);

 private:
  void forward_layers(int batch) override;
  /// What a block keeps of its batch for the way back.
  struct Block {
    Block(const kernels::WindowShape& window, std::size_t filters, bool trains);
    DeviceArray<float> patches;
    DeviceArray<float> maps;    // after ReLU
    DeviceArray<float> pooled;  // [items, height / 2, width / 2, filters]
    DeviceArray<int> places;    // where in maps each pooled value was
    DeviceArray<float> maps_gradient;
    DeviceArray<float> pooled_gradient;
  };

  void backward_layers(int batch) override;
  void block_backward(std::size_t block, int batch);
  kernels::GemmShape product(std::size_t block, int batch) const;
  int pooled_count(std::size_t block, int batch) const;

  const CnnShape shape_;
  std::vector<std::unique_ptr<Block>> blocks_;
  DeviceArray<float> patches_gradient_;  // of the block that is on its way back
};

}  // namespace sluice::train
