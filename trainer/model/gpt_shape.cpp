// See gpt_shape.h.
#include "trainer/model/gpt_shape.h"

#include <algorithm>
#include <cmath>

#include "kernels/layers.h"
#include "trainer/base/random.h"
#include "trainer/data/text.h"

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
  list.add("tokens", static_cast<std::size_t>(vocabulary) * w, w);
  list.add("positions", static_cast<std::size_t>(context) * w, w);
  for (int layer = 0; layer < layers; ++layer) {
    const std::string name = "layer " + std::to_string(layer) + " ";
    const auto pair = [&](const char* what, const char* first, std::size_t in, std::size_t out) {
      list.add(name + what + " " + first, in * out, in > 1 ? out : 0);
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

}  // namespace sluice::train
