// See mlp.h.
#include "trainer/model/mlp.h"

#include <algorithm>

#include "trainer/data/dataset.h"

namespace sluice::train {
namespace {

std::size_t area(int rows, int columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

}  // namespace

std::size_t MlpShape::weight_offset(int layer) const {
  std::size_t offset = 0;
  for (int l = 0; l < layer; ++l) offset += area(in(l) + 1, out(l));
  return offset;
}

std::size_t MlpShape::bias_offset(int layer) const {
  return weight_offset(layer) + area(in(layer), out(layer));
}

std::int64_t MlpShape::sample_width() const {
  return *std::max_element(widths.begin(), widths.end());
}

std::vector<ParameterRange> MlpShape::ranges() const {
  RangeList list;
  stack_ranges_add(list, "layer", widths);
  return list.ranges();
}

std::string MlpShape::text() const {
  std::string out;
  for (const int width : widths) out += (out.empty() ? "" : "-") + std::to_string(width);
  return out;
}

MlpShape mlp_shape(const std::vector<int>& hidden) {
  if (hidden.empty() || hidden.size() > kHiddenLayersMax) {
    throw Failure(
        text_format("%zu hidden layers; 1 to %zu are possible", hidden.size(), kHiddenLayersMax));
  }
  MlpShape shape;
  shape.widths.push_back(kImagePixels);
  for (const int width : hidden) {
    if (width < 1 || width > kHiddenMax) {
      throw Failure(
          text_format("a hidden layer of %d units; 1 to %d are possible", width, kHiddenMax));
    }
    shape.widths.push_back(width);
  }
  shape.widths.push_back(kClassCount);
  return shape;
}

std::vector<float> mlp_draw(const MlpShape& shape, std::uint64_t seed) {
  std::vector<float> values(shape.parameter_count());
  for (int layer = 0; layer < shape.layer_count(); ++layer) {
    const std::span<float> weights(values.data() + shape.weight_offset(layer),
                                   area(shape.in(layer), shape.out(layer)));
    weights_draw(weights, shape.in(layer), seed, 0x77656967 + static_cast<std::uint64_t>(layer));
  }
  return values;
}

Mlp::Mlp(Stream& stream, const MlpShape& shape, const NetworkSettings& settings)
    : DenseStack(stream, shape.ranges(), shape.sample(), settings, shape.widths, 0) {}

void Mlp::forward_layers(int batch) { stack_forward(batch, inputs()); }

void Mlp::backward_layers(int batch) {
  stack_backward(batch, inputs(), 0);  // nobody asks for the gradient of the images
}

}  // namespace sluice::train
