// The transformer's way back; see gpt.h. What goes from layer to layer is a sum, so its gradient
// passes each part untouched and the part's own is added to it.
#include <algorithm>
#include <numeric>

#include "trainer/model/gpt_layer.h"

namespace sluice::train {

void Gpt::norm_backward(const Norm& norm, int count, std::size_t gain, CUdeviceptr x,
                        CUdeviceptr from, CUdeviceptr to) {
  stream().launch(kernels::layer_norm_weights_backward(count, shape_.width, x, norm.means.at(),
                                                       norm.scales.at(), from, gradient(gain),
                                                       gradient(gain + 1)));
  gradient_final(gain + 1);
  gradient_final(gain);
  stream().launch(kernels::layer_norm_backward(count, shape_.width, x, parameter(gain),
                                               norm.means.at(), norm.scales.at(), from, to));
}

void Gpt::dense_back(const DenseShape& shape, std::size_t weights, CUdeviceptr x, CUdeviceptr from,
                     CUdeviceptr to) {
  dense_weights_backward(products(), shape, x, from, gradient(weights), gradient(weights + 1));
  gradient_final(weights + 1);
  gradient_final(weights);
  dense_input_backward(products(), shape, parameter(weights), from, to);
}

void Gpt::backward_layers(int batch) {
  const PartPlace& place = part_.place();
  if (place.is_last()) logits_backward(batch);
  for (int layer = part_.layers(); layer-- > 0;) {
    mlp_backward(layer, batch);
    attention_backward(layer, batch, stream_into(layer));
  }
  if (place.is_first()) {
    embedding_backward(batch);
  } else if (place.is_last()) {
    gradient_final(kTokensRange);
  }
}

/// The token embedding gives the logits and takes the tokens in: its gradient has two parts, which
/// two stages may have, and is final at the very end.
void Gpt::logits_backward(int batch) {
  const int count = rows(batch);
  const Norm& norm = *slot().last_norm;
  const Gradients& g = *gradients_of_;
  products().run(kernels::GemmForm::kTn, {shape_.vocabulary, shape_.width, count},
                 logits_gradient(), norm.out.at(), gradient(kTokensRange));
  products().run(kernels::GemmForm::kNn, {count, shape_.width, shape_.vocabulary},
                 logits_gradient(), parameter(kTokensRange), g.narrow.at());
  norm_backward(norm, count, ranges().size() - 2, stream_into(part_.layers()), g.narrow.at(),
                g.stream.at());
}

void Gpt::mlp_backward(int number, int batch) {
  const Layer& layer = layer_of(number);
  const Gradients& g = *gradients_of_;
  const int count = rows(batch);
  const int width = shape_.width;
  const int units = part_.expanded();
  dense_back({count, units, width}, part_.range(number, LayerRange::kContract), layer.gelu.at(),
             g.stream.at(), g.wide.at());
  stream().launch(kernels::gelu_backward(count * units, layer.expanded.at(), g.wide.at()));
  dense_back({count, width, units}, part_.range(number, LayerRange::kExpand),
             layer.mlp_norm.out.at(), g.wide.at(), g.narrow.at());
  tensor_sum(g.narrow.at(), count);
  norm_backward(layer.mlp_norm, count, part_.range(number, LayerRange::kMlpGain), layer.middle.at(),
                g.narrow.at(), g.normed.at());
  stream().launch(kernels::array_add(count * width, g.normed.at(), g.stream.at()));
}

void Gpt::attention_backward(int number, int batch, CUdeviceptr x) {
  const Layer& layer = layer_of(number);
  const Gradients& g = *gradients_of_;
  const int count = rows(batch);
  const int width = shape_.width;
  const int inner = part_.attended();
  dense_back({count, inner, width}, part_.range(number, LayerRange::kProjection),
             layer.attended.at(), g.stream.at(), g.narrow.at());
  const kernels::AttentionShape heads = attention(batch);
  stream().launch(
      kernels::attention_products(heads, layer.attended.at(), g.narrow.at(), g.products.at()));
  stream().launch(kernels::attention_backward_queries(heads, layer.qkv.at(), layer.sums.at(),
                                                      g.products.at(), g.narrow.at(), g.wide.at()));
  stream().launch(kernels::attention_backward_keys(heads, layer.qkv.at(), layer.sums.at(),
                                                   g.products.at(), g.narrow.at(), g.wide.at()));
  dense_back({count, width, 3 * inner}, part_.range(number, LayerRange::kQkv),
             layer.attention_norm.out.at(), g.wide.at(), g.narrow.at());
  tensor_sum(g.narrow.at(), count);
  norm_backward(layer.attention_norm, count, part_.range(number, LayerRange::kAttentionGain), x,
                g.narrow.at(), g.normed.at());
  stream().launch(kernels::array_add(count * width, g.normed.at(), g.stream.at()));
}

void Gpt::embedding_backward(int batch) {
  const CUdeviceptr from = gradients_of_->stream.at();
  const Slot& here = slot();
  const int width = shape_.width;
  stream().zero(gradient(kPositionsRange), ranges()[kPositionsRange].count);
  stream().launch(
      kernels::position_backward(batch, shape_.context, width, from, gradient(kPositionsRange)));
  gradient_final(kPositionsRange);
  if (!part_.place().is_last()) stream().zero(gradient(kTokensRange), ranges()[kTokensRange].count);
  stream().launch(kernels::embedding_backward(here.distinct, width, here.starts->at(),
                                              here.order->at(), inputs(), from,
                                              gradient(kTokensRange)));
  gradient_final(kTokensRange);
}

void Gpt::batch_look(const void* inputs, int batch) {
  if (!trains() || !part_.place().is_first()) return;
  const auto* tokens = static_cast<const int*>(inputs);
  order_.resize(static_cast<std::size_t>(rows(batch)));
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int a, int b) { return tokens[a] < tokens[b]; });
  starts_.clear();
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (i == 0 || tokens[order_[i]] != tokens[order_[i - 1]])
      starts_.push_back(static_cast<int>(i));
  }
  starts_.push_back(static_cast<int>(order_.size()));
  // From pageable memory, which may be used again once the call returns.
  Slot& here = slot();
  here.distinct = static_cast<int>(starts_.size()) - 1;
  stream().upload(here.order->at(), order_.data(), order_.size() * sizeof(int));
  stream().upload(here.starts->at(), starts_.data(), starts_.size() * sizeof(int));
}

}  // namespace sluice::train
