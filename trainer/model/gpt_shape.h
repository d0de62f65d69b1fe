// The shape of a transformer (gpt.h): its sizes, the order of its parameters, and new ones. Flat
// order: tokens [vocabulary, width], positions [context, width], the layers' (LayerRange), gain and
// bias of the last norm. Weights of dense layers are [in, out].
#pragma once

#include "trainer/model/network.h"

namespace sluice::train {

struct GptShape {
  int vocabulary = 256;
  int context = 64;
  int width = 128;
  int layers = 2;
  int heads = 4;

  std::vector<ParameterRange> ranges() const;
  std::size_t parameter_count() const { return ranges().back().end(); }
  SampleShape sample() const {
    return {static_cast<std::size_t>(context), static_cast<std::size_t>(context), vocabulary};
  }
  /// Values that the largest array of the network has for one sample.
  std::int64_t sample_width() const;
  /// "gpt 2x128, 4 heads, context 64, 256 tokens"
  std::string text() const;
};

inline constexpr int kGptWidthMax = 16384;
inline constexpr int kGptLayersMax = 128;
/// `shape` itself. Throws Failure where it cannot be.
GptShape gpt_shape(const GptShape& shape);

/// GPT-2's: normal weights of deviation 0.02 (positions 0.01), those that lead back to the sum of
/// all layers smaller by sqrt(2 layers); gains 1, biases 0. A function of shape and seed alone.
std::vector<float> gpt_draw(const GptShape& shape, std::uint64_t seed);

/// The ranges of layer l are gpt_range(l, ...); before them are tokens and positions.
enum class LayerRange : std::uint8_t {
  kAttentionGain,
  kAttentionBias,  // of the norm
  kQkv,            // [width, 3 width]
  kQkvBias,
  kProjection,  // [width, width]
  kProjectionBias,
  kMlpGain,
  kMlpBias,  // of the norm
  kExpand,   // [width, 4 width]
  kExpandBias,
  kContract,  // [4 width, width]
  kContractBias,
};
inline constexpr std::size_t kLayerRanges = 12;
inline constexpr std::size_t kTokensRange = 0;
inline constexpr std::size_t kPositionsRange = 1;
constexpr std::size_t gpt_range(int layer, LayerRange which) {
  return 2 + kLayerRanges * static_cast<std::size_t>(layer) + static_cast<std::size_t>(which);
}
/// Of layer norms, as in GPT-2.
inline constexpr float kNormEpsilon = 1e-5f;
inline constexpr int kMlpFactor = 4;

}  // namespace sluice::train
