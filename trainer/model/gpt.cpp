// See gpt.h. The shape and the way forward; the way back is in gpt_backward.cpp.
#include "trainer/model/gpt.h"

#include <algorithm>
#include <cmath>

#include "trainer/base/random.h"
#include "trainer/data/text.h"
#include "trainer/model/gpt_layer.h"

namespace sluice::train {
namespace {

constexpr double kDeviation = 0.02;
constexpr double kPositionDeviation = 0.01;
constexpr std::uint64_t kGptPurpose = 0x677074;

void range_draw(std::span<float> values, double deviation, Random random) {
  for (float& value : values) value = static_cast<float>(deviation * random.normal());
}

}  // namespace

std::vector<ParameterRange> GptShape::ranges() const {
  const auto w = static_cast<std::size_t>(width);
  RangeList list;
  list.add("tokens", static_cast<std::size_t>(vocabulary) * w);
  list.add("positions", static_cast<std::size_t>(context) * w);
  for (int layer = 0; layer < layers; ++layer) {
    const std::string name = "layer " + std::to_string(layer) + " ";
    const auto pair = [&](const char* what, const char* first, std::size_t in, std::size_t out) {
      list.add(name + what + " " + first, in * out);
      list.add(name + what + " bias", out);
    };
    pair("attention norm", "gain", 1, w);
    pair("qkv", "weights", w, 3 * w);
    pair("projection", "weights", w, w);
    pair("mlp norm", "gain", 1, w);
    pair("expansion", "weights", w, kMlpFactor * w);
    pair("contraction", "weights", kMlpFactor * w, w);
  }
  list.add("last norm gain", w);
  list.add("last norm bias", w);
  return list.ranges();
}

std::int64_t GptShape::sample_width() const {
  return std::int64_t{context} * std::max(kMlpFactor * width, vocabulary);
}

std::string GptShape::text() const {
  return text_format("gpt %dx%d, %d heads, context %d, %d tokens", layers, width, heads, context,
                     vocabulary);
}

GptShape gpt_shape(const GptShape& shape) {
  const auto check = [](const char* what, int value, int least, int most) {
    if (value >= least && value <= most) return;
    throw Failure(text_format("%s of %d; %d to %d are possible", what, value, least, most));
  };
  check("a vocabulary", shape.vocabulary, 2, kTokensMax);
  check("a --context", shape.context, 1, kContextMax);
  check("a --width", shape.width, 1, kGptWidthMax);
  check("a count of --layers", shape.layers, 1, kGptLayersMax);
  check("a count of --heads", shape.heads, 1, shape.width);
  if (shape.width % shape.heads != 0 || shape.width / shape.heads > kernels::kAttentionSizeMax) {
    throw Failure(
        text_format("--width %d over --heads %d: a head needs a whole number of values, 1 to %d",
                    shape.width, shape.heads, kernels::kAttentionSizeMax));
  }
  return shape;
}

std::vector<float> gpt_draw(const GptShape& shape, std::uint64_t seed) {
  const std::vector<ParameterRange> ranges = shape.ranges();
  std::vector<float> values(ranges.back().end());
  const auto draw_range = [&](std::size_t range, double deviation) {
    range_draw({values.data() + ranges[range].begin, ranges[range].count}, deviation,
               Random(seed, kGptPurpose + range));
  };
  const auto ones = [&](std::size_t range) {
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(ranges[range].begin),
                ranges[range].count, 1.0f);
  };
  draw_range(kTokensRange, kDeviation);
  draw_range(kPositionsRange, kPositionDeviation);
  const double back = kDeviation / std::sqrt(2.0 * shape.layers);
  for (int layer = 0; layer < shape.layers; ++layer) {
    ones(gpt_range(layer, LayerRange::kAttentionGain));
    ones(gpt_range(layer, LayerRange::kMlpGain));
    draw_range(gpt_range(layer, LayerRange::kQkv), kDeviation);
    draw_range(gpt_range(layer, LayerRange::kProjection), back);
    draw_range(gpt_range(layer, LayerRange::kExpand), kDeviation);
    draw_range(gpt_range(layer, LayerRange::kContract), back);
  }
  ones(ranges.size() - 2);
  return values;
}

Gpt::Gpt(Stream& stream, const GptShape& shape, const NetworkSettings& settings)
    : Network(stream, shape.ranges(), shape.sample(), settings),
      shape_(shape),
      embedded_(static_cast<std::size_t>(rows(settings.batch_max) * shape.width)),
      last_norm_(static_cast<std::size_t>(rows(settings.batch_max)),
                 static_cast<std::size_t>(shape.width)),
      order_there_(static_cast<std::size_t>(rows(settings.batch_max))),
      starts_there_(order_there_.size() + 1) {
  const auto count = static_cast<std::size_t>(rows(settings.batch_max));
  for (int layer = 0; layer < shape.layers; ++layer) {
    layers_.push_back(std::make_unique<Layer>(count, shape));
  }
  if (settings.trains) gradients_of_ = std::make_unique<Gradients>(count, shape);
}

Gpt::~Gpt() = default;

CUdeviceptr Gpt::stream_into(int number) const {
  return number == 0 ? embedded_.at() : layers_[static_cast<std::size_t>(number) - 1]->out.at();
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

void Gpt::forward_layers(int batch) {
  const int count = rows(batch);
  stream().launch(kernels::embedding_forward(count, shape_.width, shape_.context, inputs(),
                                             parameter(kTokensRange), parameter(kPositionsRange),
                                             embedded_.at()));
  for (int layer = 0; layer < shape_.layers; ++layer) {
    layer_forward(layer, batch, stream_into(layer));
  }
  norm_forward(last_norm_, count, ranges().size() - 2, stream_into(shape_.layers));
  products().run(kernels::GemmForm::kNt, {count, shape_.vocabulary, shape_.width},
                 last_norm_.out.at(), parameter(kTokensRange), logits());
}

void Gpt::layer_forward(int number, int batch, CUdeviceptr x) {
  const Layer& layer = *layers_[static_cast<std::size_t>(number)];
  const int count = rows(batch);
  const int width = shape_.width;
  const auto range = [&](LayerRange which) { return gpt_range(number, which); };
  norm_forward(layer.attention_norm, count, range(LayerRange::kAttentionGain), x);
  dense_in({count, width, 3 * width}, range(LayerRange::kQkv), layer.attention_norm.out.at(),
           layer.qkv.at());
  stream().launch(kernels::attention_forward(kernels::AttentionRung::kTiled, attention(batch),
                                             layer.qkv.at(), layer.attended.at(), layer.sums.at()));
  dense_in({count, width, width}, range(LayerRange::kProjection), layer.attended.at(),
           layer.middle.at());
  stream().launch(kernels::array_add(count * width, x, layer.middle.at()));

  norm_forward(layer.mlp_norm, count, range(LayerRange::kMlpGain), layer.middle.at());
  dense_in({count, width, kMlpFactor * width}, range(LayerRange::kExpand), layer.mlp_norm.out.at(),
           layer.expanded.at());
  stream().launch(
      kernels::gelu_forward(count * kMlpFactor * width, layer.expanded.at(), layer.gelu.at()));
  dense_in({count, kMlpFactor * width, width}, range(LayerRange::kContract), layer.gelu.at(),
           layer.out.at());
  stream().launch(kernels::array_add(count * width, layer.middle.at(), layer.out.at()));
}

}  // namespace sluice::train
