// See gpt.h. The way forward; the way back is in gpt_backward.cpp.
#include "trainer/model/gpt.h"

#include <cassert>
#include <utility>

#include "trainer/model/gpt_layer.h"

namespace sluice::train {
namespace {

NetworkSettings part_settings(const GptPart& part, NetworkSettings settings) {
  settings.takes_inputs = part.place().is_first();
  settings.gives_logits = part.place().is_last();
  return settings;
}

}  // namespace

Gpt::Gpt(Stream& stream, const GptPart& part, const NetworkSettings& settings, TensorSum sum)
    : Network(stream, part.ranges(), part.whole().sample(), part_settings(part, settings)),
      part_(part),
      shape_(part_.whole()),
      sum_(std::move(sum)) {
  assert(part.place().tensor_count == 1 || sum_);
  const auto count = static_cast<std::size_t>(rows(settings.batch_max));
  for (int slot = 0; slot < settings.slots; ++slot) {
    slots_.push_back(std::make_unique<Slot>(count, part_));
  }
  if (settings.trains) gradients_of_ = std::make_unique<Gradients>(count, part_);
}

Gpt::~Gpt() = default;

CUdeviceptr Gpt::stream_into(int number) const {
  const Slot& here = slot();
  return number == 0 ? here.embedded.at()
                     : here.layers[static_cast<std::size_t>(number) - 1]->out.at();
}

Network::Boundary Gpt::boundary() {
  const CUdeviceptr gradient = gradients_of_ ? gradients_of_->stream.at() : 0;
  return {stream_into(0), stream_into(part_.layers()), gradient, gradient,
          static_cast<std::size_t>(rows(1)) * static_cast<std::size_t>(shape_.width)};
}

void Gpt::norm_forward(const Norm& norm, int count, std::size_t gain, CUdeviceptr x) {
  stream().launch(kernels::layer_norm_forward(count, shape_.width, kNormEpsilon, x, parameter(gain),
                                              parameter(gain + 1), norm.out.at(), norm.means.at(),
                                              norm.scales.at()));
}

void Gpt::dense_in(const DenseShape& shape, std::size_t weights, CUdeviceptr x, CUdeviceptr out) {
  dense_forward(products(), shape, Activation::kNone, x, parameter(weights), parameter(weights + 1),
                out);
}

void Gpt::dense_sum_in(const DenseShape& shape, std::size_t weights, CUdeviceptr x,
                       CUdeviceptr out) {
  products().run(kernels::GemmForm::kNn, {shape.rows, shape.out, shape.in}, x, parameter(weights),
                 out);
  tensor_sum(out, shape.rows);
  stream().launch(kernels::bias_forward(shape.rows, shape.out, parameter(weights + 1), out));
}

void Gpt::tensor_sum(CUdeviceptr data, int count) {
  if (part_.place().tensor_count == 1) return;
  sum_(data, static_cast<std::size_t>(count) * static_cast<std::size_t>(shape_.width));
}

void Gpt::forward_layers(int batch) {
  const int count = rows(batch);
  if (part_.place().is_first()) {
    stream().launch(kernels::embedding_forward(count, shape_.width, shape_.context, inputs(),
                                               parameter(kTokensRange), parameter(kPositionsRange),
                                               stream_into(0)));
  }
  for (int layer = 0; layer < part_.layers(); ++layer) {
    layer_forward(layer, batch, stream_into(layer));
  }
  if (!part_.place().is_last()) return;
  norm_forward(*slot().last_norm, count, ranges().size() - 2, stream_into(part_.layers()));
  products().run(kernels::GemmForm::kNt, {count, shape_.vocabulary, shape_.width},
                 slot().last_norm->out.at(), parameter(kTokensRange), logits());
}

void Gpt::layer_forward(int number, int batch, CUdeviceptr x) {
  const Layer& layer = layer_of(number);
  const int count = rows(batch);
  const int width = shape_.width;
  const int inner = part_.attended();
  const int units = part_.expanded();
  const auto range = [&](LayerRange which) { return part_.range(number, which); };
  norm_forward(layer.attention_norm, count, range(LayerRange::kAttentionGain), x);
  dense_in({count, width, 3 * inner}, range(LayerRange::kQkv), layer.attention_norm.out.at(),
           layer.qkv.at());
  stream().launch(kernels::attention_forward(kernels::AttentionRung::kTiled, attention(batch),
                                             layer.qkv.at(), layer.attended.at(), layer.sums.at()));
  dense_sum_in({count, inner, width}, range(LayerRange::kProjection), layer.attended.at(),
               layer.middle.at());
  stream().launch(kernels::array_add(count * width, x, layer.middle.at()));

  norm_forward(layer.mlp_norm, count, range(LayerRange::kMlpGain), layer.middle.at());
  dense_in({count, width, units}, range(LayerRange::kExpand), layer.mlp_norm.out.at(),
           layer.expanded.at());
  stream().launch(kernels::gelu_forward(count * units, layer.expanded.at(), layer.gelu.at()));
  dense_sum_in({count, units, width}, range(LayerRange::kContract), layer.gelu.at(),
               layer.out.at());
  stream().launch(kernels::array_add(count * width, layer.middle.at(), layer.out.at()));
}

}  // namespace sluice::train
