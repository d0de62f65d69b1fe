// See gpt_reference.h.
#include "trainer/model/gpt_reference.h"

#include "kernels/reference.h"
#include "kernels/reference_layers.h"

namespace sluice::train {

namespace reference = kernels::reference;

std::vector<double> gpt_reference(const GptShape& shape, std::span<const double> parameters,
                                  std::span<const int> tokens) {
  const std::vector<ParameterRange> ranges = shape.ranges();
  const int rows = static_cast<int>(tokens.size());
  const int width = shape.width;
  std::size_t next = 0;  // ranges are used in their order, but for the tokens' second use
  const auto take = [&] {
    const ParameterRange& range = ranges[next++];
    return parameters.subspan(range.begin, range.count);
  };
  const auto norm = [&](const reference::Values& x) {
    const auto gain = take();
    return reference::layer_norm(rows, width, static_cast<double>(kNormEpsilon), x, gain, take());
  };
  const auto dense = [&](int in, int out, const reference::Values& x) {
    const auto weights = take();
    return reference::bias_forward(
        rows, out, take(), reference::gemm(kernels::GemmForm::kNn, {rows, out, in}, x, weights));
  };
  const auto add = [](reference::Values& to, const reference::Values& x) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += x[i];
  };

  const auto table = take();
  reference::Values x = reference::embedding(width, shape.context, tokens, table, take());
  const kernels::AttentionShape heads{rows / shape.context, shape.heads, shape.context,
                                      width / shape.heads};
  for (int layer = 0; layer < shape.layers; ++layer) {
    const reference::Values attention_in = norm(x);
    add(x, dense(width, width, reference::attention(heads, dense(width, 3 * width, attention_in))));
    const reference::Values mlp_in = norm(x);
    add(x, dense(4 * width, width, reference::gelu(dense(width, 4 * width, mlp_in))));
  }
  return reference::gemm(kernels::GemmForm::kNt, {rows, shape.vocabulary, width}, norm(x), table);
}

}  // namespace sluice::train
