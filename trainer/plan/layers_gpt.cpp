// The transformer's launches, as trainer/model/gpt.cpp and gpt_backward.cpp make them. See
// layers.h.
#include "trainer/plan/layer_writer.h"

namespace sluice::train::planner {
namespace {

struct Sizes {
  Sizes(const GptShape& s, const ModelUse& use)
      : shape(s),
        rows(use.batch * s.context),
        width(s.width),
        qkv(3 * s.width / use.tensor),
        inner(s.width / use.tensor),
        wide(kMlpFactor * s.width / use.tensor),
        values(static_cast<double>(rows) * s.width),
        heads{use.batch, s.heads / use.tensor, s.context, s.width / s.heads} {}

  const GptShape& shape;
  const int rows, width;
  const int qkv, inner, wide;  // of this rank
  const double values;         // of a layer's input
  const kernels::AttentionShape heads;
};

void norm_forward(LayerWriter& write, const Sizes& s) {
  write.add(rows_work(kernels::layer_norm_forward(s.rows, s.width, kNormEpsilon, 0, 0, 0, 0, 0, 0),
                      s.rows, s.width));
}

void norm_backward(LayerWriter& write, const Sizes& s, std::size_t gain) {
  write.add(columns_work(kernels::layer_norm_weights_backward(s.rows, s.width, 0, 0, 0, 0, 0, 0),
                         s.rows, s.width));
  write.final(gain + 1);
  write.final(gain);
  write.add(
      rows_work(kernels::layer_norm_backward(s.rows, s.width, 0, 0, 0, 0, 0, 0), s.rows, s.width));
}

void dense_back(LayerWriter& write, const DenseShape& shape, std::size_t weights) {
  write.dense_weights_backward(shape);
  write.final(weights + 1);
  write.final(weights);
  write.dense_input_backward(shape);
}

void add_values(LayerWriter& write, const Sizes& s) {
  write.elements(kernels::array_add(static_cast<int>(s.values), 0, 0), s.values);
}

void layer_forward(LayerWriter& write, const Sizes& s) {
  norm_forward(write, s);
  write.dense_forward({s.rows, s.width, s.qkv}, Activation::kNone);
  write.add(attention_work(
      kernels::attention_forward(kernels::AttentionRung::kTiled, s.heads, 0, 0, 0), s.heads));
  write.dense_forward({s.rows, s.inner, s.width}, Activation::kNone);
  write.tensor_reduce(s.values);
  add_values(write, s);
  norm_forward(write, s);
  write.dense_forward({s.rows, s.width, s.wide}, Activation::kNone);
  const double wide = static_cast<double>(s.rows) * s.wide;
  write.elements(kernels::gelu_forward(static_cast<int>(wide), 0, 0), wide);
  write.dense_forward({s.rows, s.wide, s.width}, Activation::kNone);
  write.tensor_reduce(s.values);
  add_values(write, s);
}

void layer_backward(LayerWriter& write, const Sizes& s) {
  const auto at = [](LayerRange which) { return static_cast<std::size_t>(which); };
  const double wide = static_cast<double>(s.rows) * s.wide;
  dense_back(write, {s.rows, s.wide, s.width}, at(LayerRange::kContract));
  write.elements(kernels::gelu_backward(static_cast<int>(wide), 0, 0), wide);
  dense_back(write, {s.rows, s.width, s.wide}, at(LayerRange::kExpand));
  write.tensor_reduce(s.values);
  norm_backward(write, s, at(LayerRange::kMlpGain));
  add_values(write, s);
  dense_back(write, {s.rows, s.inner, s.width}, at(LayerRange::kProjection));
  const double times = static_cast<double>(s.heads.items) * s.heads.heads * s.heads.length;
  write.add(rows_work(kernels::attention_products(s.heads, 0, 0, 0), times, s.heads.size));
  write.add(attention_work(kernels::attention_backward_queries(s.heads, 0, 0, 0, 0, 0), s.heads));
  write.add(attention_work(kernels::attention_backward_keys(s.heads, 0, 0, 0, 0, 0), s.heads));
  dense_back(write, {s.rows, s.width, s.qkv}, at(LayerRange::kQkv));
  write.tensor_reduce(s.values);
  norm_backward(write, s, at(LayerRange::kAttentionGain));
  add_values(write, s);
}

LayerCost layer_cost(LayerWriter& write, const Sizes& s, int number) {
  LayerCost layer;
  layer.name = text_format("layer %d", number);
  const auto w = static_cast<std::size_t>(s.width);
  const auto dense = [&](int in, int out) {
    layer.ranges.push_back(static_cast<std::size_t>(in) * static_cast<std::size_t>(out));
    layer.ranges.push_back(static_cast<std::size_t>(out));
  };
  const auto norm = [&] { layer.ranges.insert(layer.ranges.end(), {w, w}); };
  norm();
  dense(s.width, s.qkv);
  dense(s.inner, s.width);
  norm();
  dense(s.width, s.wide);
  dense(s.wide, s.width);
  layer.boundary_floats = s.values;
  const double rows = s.rows;
  // Two norms, qkv, attended and its sums, middle, expanded, gelu, out.
  layer.kept_floats = 2 * (s.values + 2 * rows) + rows * s.qkv + rows * s.inner +
                      rows * s.heads.heads + 2 * s.values + 2 * rows * s.wide;
  write.into(layer.forward);
  layer_forward(write, s);
  write.into(layer.backward);
  layer_backward(write, s);
  return layer;
}

LayerCost embedding_cost(LayerWriter& write, const Sizes& s, int batch) {
  LayerCost layer;
  layer.name = "embedding";
  const GptShape& shape = s.shape;
  const double positions = static_cast<double>(shape.context) * s.width;
  const double distinct = tokens_distinct(s.rows, shape.vocabulary);
  layer.ranges = {static_cast<std::size_t>(shape.vocabulary) * static_cast<std::size_t>(s.width),
                  static_cast<std::size_t>(positions)};
  layer.boundary_floats = s.values;
  layer.kept_floats =
      s.values + 3 * static_cast<double>(s.rows) + 1;  // with tokens and their order
  write.into(layer.forward);
  write.elements(kernels::embedding_forward(s.rows, s.width, shape.context, 0, 0, 0, 0), s.values);
  write.into(layer.backward);
  write.zero(positions);
  write.add(parts_work(kernels::position_backward(batch, shape.context, s.width, 0, 0), positions,
                       batch));
  write.final(1);
  write.add(
      tokens_work(kernels::embedding_backward(static_cast<int>(distinct), s.width, 0, 0, 0, 0, 0),
                  static_cast<int>(distinct), s.rows, s.width));
  write.final(0);
  return layer;
}

/// The last norm and the logits, by the token embedding again.
LayerCost head_cost(LayerWriter& write, const Sizes& s) {
  LayerCost layer;
  layer.name = "head";
  const int vocabulary = s.shape.vocabulary;
  const auto w = static_cast<std::size_t>(s.width);
  layer.ranges = {w, w};
  layer.boundary_floats = static_cast<double>(s.rows) * vocabulary;
  layer.kept_floats = s.values + 2.0 * s.rows + 2 * layer.boundary_floats + 2.0 * s.rows;
  write.into(layer.forward);
  norm_forward(write, s);
  write.product(kernels::GemmForm::kNt, {s.rows, vocabulary, s.width}, Weights::kRight);
  write.into(layer.backward);
  write.loss(s.rows, vocabulary);
  write.product(kernels::GemmForm::kTn, {vocabulary, s.width, s.rows}, Weights::kNone);
  write.product(kernels::GemmForm::kNn, {s.rows, s.width, vocabulary}, Weights::kRight);
  norm_backward(write, s, 0);
  return layer;
}

}  // namespace

ModelCost gpt_cost(const GptShape& shape, const ModelUse& use) {
  const Sizes s(shape, use);
  ModelCost model;
  LayerWriter write(use);
  model.layers.push_back(embedding_cost(write, s, use.batch));
  for (int layer = 0; layer < shape.layers; ++layer)
    model.layers.push_back(layer_cost(write, s, layer));
  model.layers.push_back(head_cost(write, s));
  const double rows = s.rows;
  const double words = rows * sizeof(int);
  // The rows by token, where each begins, and the tokens.
  model.input = {copy_work(kUpload, words),
                 copy_work(kUpload, (tokens_distinct(rows, shape.vocabulary) + 1) * sizeof(int)),
                 copy_work(kUpload, words)};
  model.answers = {copy_work(kUpload, words)};
  model.scratch_floats =
      3 * s.values + rows * std::max(s.wide, s.qkv) + rows * s.heads.heads + write.product_floats();
  return model;
}

}  // namespace sluice::train::planner
