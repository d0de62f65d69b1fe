// The part of a transformer that one rank of a grid has. Two ways to split, which go together:
//
// - stages: equal runs of layers; the first stage also has the embeddings, the last one the last
//   norm, and the token embedding again, which gives the logits.
// - tensor (Shoeybi et al., Megatron-LM, 2019): of every layer the heads and the units of the
//   perceptron are shared out: qkv and the expansion by columns (with their biases), the projection
//   and the contraction by rows. What these two give is a part of a sum over the tensor's ranks, so
//   attention and perceptron each cost one all-reduce on the way forward, and, for the gradient of
//   what went into them, one on the way back. Everything else (norms, embeddings, the biases after
//   that sum) every one of these ranks has whole, and computes alike, bit for bit.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trainer/model/gpt_shape.h"

namespace sluice::train {

/// Where a rank is among those that have one copy of a model.
struct PartPlace {
  int tensor = 0;
  int tensor_count = 1;
  int stage = 0;
  int stage_count = 1;

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stage_count - 1; }
  bool is_whole() const { return tensor_count == 1 && stage_count == 1; }
};

/// A tensor of the part: its range, and what of the whole model's tensor it is. That is [outer,
/// inner]; where it is split, a part has an equal stretch of every row.
struct GptPiece {
  ParameterRange range;     // among the part's
  std::size_t whole_begin;  // where the tensor begins among the whole model's parameters
  std::size_t outer, inner;
  bool split;
  bool counts;  // this rank speaks for it: of tensors that several ranks have, one does
};

class GptPart {
 public:
  /// All of it; implicit, because most who speak of a model mean all of it.
  GptPart(const GptShape& whole) : GptPart(whole, PartPlace{}) {}
  /// Throws Failure where the model cannot be split so.
  GptPart(const GptShape& whole, const PartPlace& place);

  const GptShape& whole() const { return whole_; }
  const PartPlace& place() const { return place_; }
  const std::vector<GptPiece>& pieces() const { return pieces_; }
  std::vector<ParameterRange> ranges() const;
  std::size_t parameter_count() const { return pieces_.back().range.end(); }

  int layers() const { return whole_.layers / place_.stage_count; }
  int heads() const { return whole_.heads / place_.tensor_count; }
  /// Values of all heads of a token.
  int attended() const { return whole_.width / place_.tensor_count; }
  /// Units of a layer's perceptron.
  int expanded() const { return kMlpFactor * whole_.width / place_.tensor_count; }
  /// The number of a layer's range among the part's; the part's first layer is 0.
  std::size_t range(int layer, LayerRange which) const {
    return before_layers() + kLayerRanges * static_cast<std::size_t>(layer) +
           static_cast<std::size_t>(which);
  }

  /// This part of the whole model's values.
  std::vector<float> cut(std::span<const float> whole) const;
  /// Puts those that count back to where they belong.
  void place_into(std::span<const float> mine, std::span<float> whole) const;

  /// Floats of device memory that the network has for itself, beside parameters and gradients; of
  /// `slots` batches of `batch` samples, as NetworkSettings has them.
  std::size_t activation_floats(int batch, int slots, bool trains) const;

 private:
  std::size_t before_layers() const {
    return place_.is_first() ? 2 : place_.is_last() ? 1 : std::size_t{0};
  }
  void pieces_make();

  GptShape whole_;
  PartPlace place_;
  std::vector<GptPiece> pieces_;
};

}  // namespace sluice::train
