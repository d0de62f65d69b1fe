// A decoder-only transformer that says for every token of a text which comes next (Radford et al.,
// GPT-2, 2019): token and position embeddings; layers of causal attention and a GELU perceptron
// four times as wide, each behind a layer norm and added to what went in; a last norm; logits by
// the token embedding again (tied). Flat order: tokens [vocabulary, width], positions [context,
// width], the layers' (LayerRange), gain and bias of the last norm. Weights of dense layers are
// [in, out].
#pragma once

#include "kernels/layers.h"
#include "trainer/model/network.h"
#include "trainer/model/products.h"

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

class Gpt : public Network {
 public:
  Gpt(Stream& stream, const GptShape& shape, const NetworkSettings& settings);
  ~Gpt() override;

 private:
  void forward_layers(int batch) override;
  struct Layer;      // what a layer keeps of its batch for the way back
  struct Gradients;  // of what layers pass on; the same memory for all
  struct Norm {
    Norm(std::size_t rows, std::size_t width) : out(rows * width), means(rows), scales(rows) {}
    DeviceArray<float> out;
    DeviceArray<float> means;
    DeviceArray<float> scales;
  };

  void batch_look(const void* inputs, int batch) override;
  void backward_layers(int batch) override;
  void layer_forward(int number, int batch, CUdeviceptr x);
  void mlp_backward(int number, int batch);
  void attention_backward(int number, int batch, CUdeviceptr x);
  void embedding_backward(int batch);
  void norm_forward(const Norm& norm, int rows, std::size_t gain, CUdeviceptr x);
  void norm_backward(const Norm& norm, int rows, std::size_t gain, CUdeviceptr x, CUdeviceptr from,
                     CUdeviceptr to);
  /// A dense layer whose bias is the range after its weights.
  void dense_in(const DenseShape& shape, std::size_t weights, CUdeviceptr x, CUdeviceptr out);
  void dense_back(const DenseShape& shape, std::size_t weights, CUdeviceptr x, CUdeviceptr from,
                  CUdeviceptr to);
  int rows(int batch) const { return batch * shape_.context; }
  kernels::AttentionShape attention(int batch) const {
    return {batch, shape_.heads, shape_.context, shape_.width / shape_.heads};
  }
  /// What goes into layer `number`; after the last, what goes into the last norm.
  CUdeviceptr stream_into(int number) const;

  const GptShape shape_;
  DeviceArray<float> embedded_;
  std::vector<std::unique_ptr<Layer>> layers_;
  Norm last_norm_;
  std::unique_ptr<Gradients> gradients_of_;
  // Rows of the batch by token, for the gradient of the embedding (kernels/layers.h).
  std::vector<int> order_, starts_;
  DeviceArray<int> order_there_, starts_there_;
};

}  // namespace sluice::train
