// What a model does in one micro-batch, layer by layer, as work (rates.h), without a device: every
// launch of forward and backward pass in order, when which gradients are final, what each layer
// keeps for its way back, and, where the transformer is split over `tensor` ranks, where those must
// meet. The launches are those of trainer/model; a test holds the sum of their times to a measured
// step.
//
// Tensor parallelism is Megatron's (Shoeybi et al., Megatron-LM, 2019): the columns of QKV and
// expansion and the rows of projection and contraction are split, and so are the heads; embeddings
// and norms are everyone's. One all-reduce of [batch x context, width] per attention and per
// perceptron in each direction.
#pragma once

#include <string>
#include <vector>

#include "trainer/model/model.h"
#include "trainer/plan/work.h"

namespace sluice::train::planner {

/// One thing after the other on a rank's stream.
struct Item {
  enum class Kind { kWork, kFinal, kTensorReduce };
  Kind kind = Kind::kWork;
  Work work{};            // of kWork
  std::size_t range = 0;  // of kFinal: which range of the layer has its gradient
  double floats = 0;      // of kTensorReduce
};

struct LayerCost {
  std::string name;
  std::vector<Item> forward;
  std::vector<Item> backward;
  std::vector<std::size_t> ranges;  // floats of each of this rank's tensors, in the flat order
  double kept_floats = 0;           // for the way back, of each micro-batch under way
  double boundary_floats = 0;       // what goes into the next layer
};

struct ModelCost {
  std::vector<LayerCost> layers;  // in the order of the forward pass
  std::vector<Work> input;        // copies to the first stage
  std::vector<Work> answers;      // and to the last
  double scratch_floats = 0;      // whatever is under way, once
};

struct ModelUse {
  int batch = 1;   // samples of a micro-batch
  int tensor = 1;  // ranks that a layer is split over
  Precision precision = Precision::kFp32;
  int multiprocessors = 1;
};

/// Throws Failure where the model cannot be split so.
ModelCost model_cost(const ModelShape& shape, const ModelUse& use);

/// Whether its layers can be split over so many ranks.
bool tensor_possible(const ModelShape& shape, int tensor);

/// How many of its tokens a text of `rows` uses (Heaps' law, with the exponent 1/2 and the factor 2
/// that English as bytes has).
double tokens_distinct(double rows, double vocabulary);

}  // namespace sluice::train::planner
