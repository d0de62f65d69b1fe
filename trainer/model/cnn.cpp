// See cnn.h.
#include "trainer/model/cnn.h"

#include <algorithm>

#include "trainer/data/dataset.h"
#include "trainer/model/mlp.h"

namespace sluice::train {
namespace {

constexpr int kKernel = 3;
constexpr int kPool = 2;
constexpr std::uint64_t kDrawPurpose = 0x636f6e76;

std::size_t product_of(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

/// Floats of the patches' gradient: of any block but the first.
std::size_t patches_gradient_count(const CnnShape& shape, const NetworkSettings& settings) {
  std::size_t most = 1;
  for (std::size_t block = 1; settings.trains && block < shape.block_count(); ++block) {
    const kernels::WindowShape window = shape.window(block, settings.batch_max);
    most = std::max(most, product_of(window.patches(), window.patch()));
  }
  return most;
}

}  // namespace

kernels::WindowShape CnnShape::window(std::size_t block, int items) const {
  int edge = side;
  for (std::size_t before = 0; before < block; ++before) edge /= kPool;
  const int channels = block == 0 ? 1 : filters[block - 1];
  return {items, edge, edge, channels, kKernel, 1, kKernel / 2};
}

std::vector<int> CnnShape::widths() const {
  const int edge = window(block_count(), 1).height;
  std::vector<int> out = {edge * edge * filters.back()};
  out.insert(out.end(), hidden.begin(), hidden.end());
  out.push_back(classes);
  return out;
}

std::vector<ParameterRange> CnnShape::ranges() const {
  RangeList list;
  for (std::size_t block = 0; block < block_count(); ++block) {
    const std::string name = "convolution " + std::to_string(block);
    list.add(name + " weights", product_of(window(block, 1).patch(), filters[block]),
             static_cast<std::size_t>(filters[block]));
    list.add(name + " bias", static_cast<std::size_t>(filters[block]));
  }
  stack_ranges_add(list, "dense", widths());
  return list.ranges();
}

std::int64_t CnnShape::sample_width() const {
  std::int64_t most = 0;
  for (std::size_t block = 0; block < block_count(); ++block) {
    const kernels::WindowShape one = window(block, 1);
    most = std::max(most, std::int64_t{one.patches()} * std::max(one.patch(), filters[block]));
  }
  const std::vector<int> dense = widths();
  return std::max<std::int64_t>(most, *std::max_element(dense.begin(), dense.end()));
}

std::string CnnShape::text() const {
  std::string out = text_format("%dx%d", side, side);
  for (const int count : filters) out += text_format("-%dc", count);
  for (const int width : hidden) out += text_format("-%d", width);
  return out + text_format("-%d", classes);
}

CnnShape cnn_shape(const std::vector<int>& filters, const std::vector<int>& hidden) {
  if (filters.empty() || filters.size() > kBlocksMax) {
    throw Failure(
        text_format("%zu convolutions; 1 to %zu are possible", filters.size(), kBlocksMax));
  }
  for (const int count : filters) {
    if (count < 1 || count > kFiltersMax) {
      throw Failure(
          text_format("a convolution of %d filters; 1 to %d are possible", count, kFiltersMax));
    }
  }
  mlp_shape(hidden);  // the same limits
  CnnShape shape;
  static_assert(kImagePixels == 28 * 28);
  shape.filters = filters;
  shape.hidden = hidden;
  shape.classes = kClassCount;
  return shape;
}

std::vector<float> cnn_draw(const CnnShape& shape, std::uint64_t seed) {
  std::vector<float> values(shape.parameter_count());
  const std::vector<ParameterRange> ranges = shape.ranges();
  const std::vector<int> widths = shape.widths();
  for (std::size_t range = 0; range < ranges.size(); range += 2) {  // every other is a bias
    const std::size_t layer = range / 2;
    const int inputs = layer < shape.block_count() ? shape.window(layer, 1).patch()
                                                   : widths[layer - shape.block_count()];
    weights_draw({values.data() + ranges[range].begin, ranges[range].count}, inputs, seed,
                 kDrawPurpose + layer);
  }
  return values;
}

Cnn::Block::Block(const kernels::WindowShape& window, std::size_t filters, bool trains)
    : patches(product_of(window.patches(), window.patch())),
      maps(static_cast<std::size_t>(window.patches()) * filters),
      pooled(product_of(window.items, window.height / kPool * (window.width / kPool)) * filters),
      places(pooled.size()),
      maps_gradient(trains ? maps.size() : 1),
      pooled_gradient(trains ? pooled.size() : 1) {}

Cnn::Cnn(Stream& stream, const CnnShape& shape, const NetworkSettings& settings)
    : DenseStack(stream, shape.ranges(), shape.sample(), settings, shape.widths(),
                 2 * shape.block_count()),
      shape_(shape),
      patches_gradient_(patches_gradient_count(shape, settings)) {
  for (std::size_t block = 0; block < shape.block_count(); ++block) {
    blocks_.push_back(std::make_unique<Block>(shape.window(block, settings.batch_max),
                                              static_cast<std::size_t>(shape.filters[block]),
                                              settings.trains));
  }
}

kernels::GemmShape Cnn::product(std::size_t block, int batch) const {
  const kernels::WindowShape window = shape_.window(block, batch);
  return {window.patches(), shape_.filters[block], window.patch()};
}

int Cnn::pooled_count(std::size_t block, int batch) const {
  const kernels::WindowShape next = shape_.window(block + 1, batch);
  return batch * next.height * next.width * shape_.filters[block];
}

void Cnn::forward_layers(int batch) {
  CUdeviceptr x = inputs();
  for (std::size_t number = 0; number < blocks_.size(); ++number) {
    const Block& block = *blocks_[number];
    const kernels::WindowShape window = shape_.window(number, batch);
    const int filters = shape_.filters[number];
    stream().launch(kernels::patches_gather(window, x, block.patches.at()));
    products().run(kernels::GemmForm::kNn, product(number, batch), block.patches.at(),
                   parameter(2 * number), block.maps.at());
    stream().launch(kernels::bias_relu_forward(window.patches(), filters, parameter(2 * number + 1),
                                               block.maps.at()));
    stream().launch(kernels::max_pool_forward(batch, window.height, window.width, filters, kPool,
                                              block.maps.at(), block.pooled.at(),
                                              block.places.at()));
    x = block.pooled.at();
  }
  stack_forward(batch, x);
}

void Cnn::backward_layers(int batch) {
  const Block& last = *blocks_.back();
  stack_backward(batch, last.pooled.at(), last.pooled_gradient.at());
  for (std::size_t block = blocks_.size(); block-- > 0;) block_backward(block, batch);
}

void Cnn::block_backward(std::size_t number, int batch) {
  const Block& block = *blocks_[number];
  const auto [patches, filters, patch] = product(number, batch);
  const CUdeviceptr delta = block.maps_gradient.at();
  stream().zero(delta, product_of(patches, filters));
  stream().launch(kernels::max_pool_backward(pooled_count(number, batch), block.places.at(),
                                             block.pooled_gradient.at(), delta));
  stream().launch(kernels::relu_backward(patches * filters, block.maps.at(), delta));
  const DenseShape dense{patches, patch, filters};
  dense_weights_backward(products(), dense, block.patches.at(), delta, gradient(2 * number),
                         gradient(2 * number + 1));
  gradient_final(2 * number + 1);
  gradient_final(2 * number);
  if (number == 0) return;  // nobody asks for the gradient of the images
  dense_input_backward(products(), dense, parameter(2 * number), delta, patches_gradient_.at());
  stream().launch(kernels::patches_scatter(shape_.window(number, batch), patches_gradient_.at(),
                                           blocks_[number - 1]->pooled_gradient.at()));
}

}  // namespace sluice::train
