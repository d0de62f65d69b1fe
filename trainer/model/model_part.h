// What one rank of a grid has of a model, whatever model it is: all of it, or of a transformer a
// part (gpt_part.h). What the plan, the files and the ranks need to know of it.
#pragma once

#include <optional>

#include "trainer/model/model.h"

namespace sluice::train {

/// A run of the flat array of a part's parameters.
struct ParameterRun {
  std::size_t begin;
  std::size_t count;
};

class ModelPart {
 public:
  ModelPart() = default;
  /// Throws Failure where the model cannot be split so.
  ModelPart(const ModelShape& whole, const PartPlace& place);

  const ModelShape& whole() const { return whole_; }
  const PartPlace& place() const { return place_; }
  std::size_t parameter_count() const;
  /// This part of the whole model's parameters.
  std::vector<float> cut(std::vector<float> whole) const;
  /// Puts the parameters that this rank speaks for back among the whole model's.
  void place_into(std::span<const float> mine, std::span<float> whole) const;
  /// The parameters that this rank speaks for: over all ranks that have one copy of the model,
  /// every parameter once.
  std::vector<ParameterRun> counted() const;
  /// The embedding, where the first and the last stage both have it; a count of 0 elsewhere.
  ParameterRun shared_by_ends() const;
  std::unique_ptr<Network> make(Stream& stream, const NetworkSettings& settings,
                                TensorSum sum) const;
  /// Of a network made so, in device memory: parameters, gradients, activations and batches. The
  /// room that matrix products take for themselves when they first run is not in it; nothing is
  /// known of models other than the transformer.
  std::optional<std::size_t> network_bytes(const NetworkSettings& settings) const;

 private:
  ModelShape whole_;
  PartPlace place_;
  std::optional<GptPart> gpt_;
};

}  // namespace sluice::train
