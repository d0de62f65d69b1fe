// See dense_stack.h.
#include "trainer/model/dense_stack.h"

#include <cassert>
#include <cmath>

#include "trainer/base/random.h"

namespace sluice::train {

DenseStack::DenseStack(Stream& stream, std::vector<ParameterRange> ranges,
                       const SampleShape& sample, const NetworkSettings& settings,
                       std::vector<int> widths, std::size_t first_range)
    : Network(stream, std::move(ranges), sample, settings),
      widths_(std::move(widths)),
      first_range_(first_range) {
  for (std::size_t layer = 0; !is_last(layer); ++layer) {
    const std::size_t count =
        static_cast<std::size_t>(settings.batch_max) * static_cast<std::size_t>(widths_[layer + 1]);
    hidden_.push_back(std::make_unique<DeviceArray<float>>(count));
    if (settings.trains) deltas_.push_back(std::make_unique<DeviceArray<float>>(count));
  }
}

void DenseStack::stack_forward(int batch, CUdeviceptr features) {
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    dense_forward(products(), dense(layer, batch),
                  is_last(layer) ? Activation::kNone : Activation::kRelu,
                  layer == 0 ? features : output_of(layer - 1), parameter(weights_range(layer)),
                  parameter(bias_range(layer)), output_of(layer));
  }
}

void DenseStack::stack_backward(int batch, CUdeviceptr features, CUdeviceptr features_gradient) {
  for (std::size_t layer = layers(); layer-- > 0;) {
    const DenseShape shape = dense(layer, batch);
    const CUdeviceptr input = layer == 0 ? features : output_of(layer - 1);
    dense_weights_backward(products(), shape, input, delta_of(layer),
                           gradient(weights_range(layer)), gradient(bias_range(layer)));
    gradient_final(bias_range(layer));
    gradient_final(weights_range(layer));
    const CUdeviceptr below = layer == 0 ? features_gradient : delta_of(layer - 1);
    if (below == 0) break;
    dense_input_backward(products(), shape, parameter(weights_range(layer)), delta_of(layer),
                         below);
    if (layer > 0) stream().launch(kernels::relu_backward(batch * shape.in, input, below));
  }
}

void stack_ranges_add(RangeList& list, const std::string& name, const std::vector<int>& widths) {
  for (std::size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    const std::string numbered = name + " " + std::to_string(layer);
    const auto out = static_cast<std::size_t>(widths[layer + 1]);
    list.add(numbered + " weights", static_cast<std::size_t>(widths[layer]) * out, out);
    list.add(numbered + " bias", out);
  }
}

void weights_draw(std::span<float> weights, int inputs, std::uint64_t seed, std::uint64_t purpose) {
  Random random(seed, purpose);
  const double deviation = std::sqrt(2.0 / inputs);
  for (float& value : weights) value = static_cast<float>(deviation * random.normal());
}

}  // namespace sluice::train
