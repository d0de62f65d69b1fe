// See cnn_reference.h.
#include "trainer/model/cnn_reference.h"

#include "kernels/reference.h"
#include "kernels/reference_layers.h"

namespace sluice::train {

namespace reference = kernels::reference;

std::vector<double> cnn_reference(const CnnShape& shape, std::span<const double> parameters,
                                  std::span<const double> images) {
  const std::vector<ParameterRange> ranges = shape.ranges();
  const auto of = [&](std::size_t range) {
    return parameters.subspan(ranges[range].begin, ranges[range].count);
  };
  const int items = static_cast<int>(images.size()) / (shape.side * shape.side);
  std::size_t range = 0;
  reference::Values x(images.begin(), images.end());
  for (std::size_t block = 0; block < shape.block_count(); ++block, range += 2) {
    const kernels::WindowShape window = shape.window(block, items);
    const int filters = shape.filters[block];
    x = reference::bias_relu_forward(window.patches(), filters, of(range + 1),
                                     reference::convolution(window, filters, x, of(range)));
    x = reference::max_pool(items, window.height, window.width, filters, 2, x);
  }
  const std::vector<int> widths = shape.widths();
  for (std::size_t layer = 0; layer + 1 < widths.size(); ++layer, range += 2) {
    const int out = widths[layer + 1];
    x = reference::gemm(kernels::GemmForm::kNn, {items, out, widths[layer]}, x, of(range));
    x = layer + 2 == widths.size() ? reference::bias_forward(items, out, of(range + 1), x)
                                   : reference::bias_relu_forward(items, out, of(range + 1), x);
  }
  return x;
}

}  // namespace sluice::train
