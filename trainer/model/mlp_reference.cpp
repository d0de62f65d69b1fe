// See mlp_reference.h.
#include "trainer/model/mlp_reference.h"

#include <algorithm>

#include "kernels/reference.h"

namespace sluice::train {

namespace reference = kernels::reference;

MlpGradient mlp_reference(const MlpShape& shape, std::span<const double> parameters,
                          std::span<const double> inputs, std::span<const int> labels) {
  const int batch = static_cast<int>(labels.size());
  const int layers = shape.layer_count();
  const auto weights = [&](int layer) {
    return parameters.subspan(shape.weight_offset(layer),
                              shape.bias_offset(layer) - shape.weight_offset(layer));
  };
  const auto bias = [&](int layer) {
    return parameters.subspan(shape.bias_offset(layer), static_cast<std::size_t>(shape.out(layer)));
  };

  std::vector<reference::Values> outputs{{inputs.begin(), inputs.end()}};
  for (int layer = 0; layer < layers; ++layer) {
    const int out = shape.out(layer);
    const reference::Values product = reference::gemm(
        kernels::GemmForm::kNn, {batch, out, shape.in(layer)}, outputs.back(), weights(layer));
    outputs.push_back(layer + 1 == layers
                          ? reference::bias_forward(batch, out, bias(layer), product)
                          : reference::bias_relu_forward(batch, out, bias(layer), product));
  }
  const reference::Loss loss =
      reference::softmax_cross_entropy(batch, shape.classes(), 1.0 / batch, outputs.back(), labels);
  MlpGradient result{0, std::vector<double>(shape.parameter_count()), outputs.back()};
  for (const double row : loss.losses) result.loss += row / batch;

  reference::Values delta = loss.gradient;
  for (int layer = layers - 1; layer >= 0; --layer) {
    const int in = shape.in(layer);
    const int out = shape.out(layer);
    const reference::Values& input = outputs[static_cast<std::size_t>(layer)];
    const auto put = [&](const reference::Values& values, std::size_t offset) {
      std::copy(values.begin(), values.end(),
                result.gradients.begin() + static_cast<std::ptrdiff_t>(offset));
    };
    put(reference::gemm(kernels::GemmForm::kTn, {in, out, batch}, input, delta),
        shape.weight_offset(layer));
    put(reference::column_sum(batch, out, delta), shape.bias_offset(layer));
    if (layer == 0) break;
    delta = reference::relu_backward(
        input, reference::gemm(kernels::GemmForm::kNt, {batch, in, out}, delta, weights(layer)));
  }
  return result;
}

}  // namespace sluice::train
