// See layers.h. Perceptron and convolutional network; the transformer is in layers_gpt.cpp.
#include "trainer/plan/layers.h"

#include <cmath>

#include "trainer/plan/layer_writer.h"

namespace sluice::train::planner {
namespace {

constexpr double kHeapsFactor = 2;

std::size_t area(int rows, int columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

/// Dense layers with ReLU between them, as trainer/model/dense_stack.cpp; `below` says that the
/// gradient of what comes in is asked for.
void stack_write(LayerWriter& write, const std::vector<int>& widths, int batch, bool below,
                 ModelCost& model) {
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const bool last = i + 2 == widths.size();
    const DenseShape shape{batch, widths[i], widths[i + 1]};
    const double outputs = static_cast<double>(batch) * shape.out;
    LayerCost layer;
    layer.name = text_format("dense %d-%d", shape.in, shape.out);
    layer.ranges = {area(shape.in, shape.out), static_cast<std::size_t>(shape.out)};
    layer.boundary_floats = outputs;
    layer.kept_floats = 2 * outputs;       // outputs and their gradients
    if (last) layer.kept_floats += batch;  // losses
    write.into(layer.forward);
    write.dense_forward(shape, last ? Activation::kNone : Activation::kRelu);
    write.into(layer.backward);
    if (last) write.loss(batch, shape.out);
    write.dense_weights_backward(shape);
    write.final(1);
    write.final(0);
    if (i > 0 || below) write.dense_input_backward(shape);
    if (i > 0) {
      write.elements(kernels::relu_backward(batch * shape.in, 0, 0),
                     static_cast<double>(batch) * shape.in);
    }
    model.layers.push_back(std::move(layer));
  }
}

/// One convolution of a network, as trainer/model/cnn.cpp.
LayerCost convolution(LayerWriter& write, const CnnShape& shape, std::size_t block, int batch,
                      ModelCost& model) {
  const kernels::WindowShape window = shape.window(block, batch);
  const kernels::WindowShape next = shape.window(block + 1, batch);
  const int filters = shape.filters[block];
  const DenseShape dense{window.patches(), window.patch(), filters};
  const int pooled = batch * next.height * next.width * filters;
  const double maps = static_cast<double>(dense.rows) * filters;
  const double patches = static_cast<double>(dense.rows) * dense.in;
  LayerCost layer;
  layer.name = text_format("convolution %d-%d", window.channels, filters);
  layer.ranges = {area(dense.in, filters), static_cast<std::size_t>(filters)};
  layer.boundary_floats = pooled;
  layer.kept_floats = patches + 2 * maps + 3 * static_cast<double>(pooled);
  write.into(layer.forward);
  write.elements(kernels::patches_gather(window, 0, 0), patches);
  write.product(kernels::GemmForm::kNn, {dense.rows, filters, dense.in}, Weights::kRight);
  write.elements(kernels::bias_relu_forward(dense.rows, filters, 0, 0), maps);
  write.elements(kernels::max_pool_forward(batch, window.height, window.width, filters, 2, 0, 0, 0),
                 pooled);
  write.into(layer.backward);
  write.zero(maps);
  write.elements(kernels::max_pool_backward(pooled, 0, 0, 0), pooled);
  write.elements(kernels::relu_backward(dense.rows * filters, 0, 0), maps);
  write.dense_weights_backward(dense);
  write.final(1);
  write.final(0);
  if (block > 0) {
    model.scratch_floats = std::max(model.scratch_floats, patches);
    write.dense_input_backward(dense);
    write.elements(
        kernels::patches_scatter(window, 0, 0),
        static_cast<double>(window.items) * window.height * window.width * window.channels);
  }
  return layer;
}

ModelCost classifier_cost(const ModelShape& shape, const ModelUse& use) {
  ModelCost model;
  LayerWriter write(use);
  const SampleShape sample = shape.sample();
  const double inputs = static_cast<double>(sample.inputs) * use.batch;
  if (const auto* cnn = shape.get<CnnShape>()) {
    model.scratch_floats = 1;
    for (std::size_t block = 0; block < cnn->block_count(); ++block)
      model.layers.push_back(convolution(write, *cnn, block, use.batch, model));
    stack_write(write, cnn->widths(), use.batch, true, model);
  } else {
    stack_write(write, shape.get<MlpShape>()->widths, use.batch, false, model);
  }
  model.layers.front().kept_floats += inputs;
  model.layers.back().kept_floats += use.batch;  // the right answers
  model.input = {copy_work(kUpload, inputs * sizeof(float))};
  model.answers = {copy_work(kUpload, static_cast<double>(use.batch) * sizeof(int))};
  model.scratch_floats += write.product_floats();
  return model;
}

}  // namespace

double tokens_distinct(double rows, double vocabulary) {
  return std::max(1.0, std::min({rows, vocabulary, kHeapsFactor * std::sqrt(rows)}));
}

bool tensor_possible(const ModelShape& shape, int tensor) {
  if (tensor == 1) return true;
  const auto* gpt = shape.get<GptShape>();
  return gpt != nullptr && gpt->heads % tensor == 0;
}

ModelCost model_cost(const ModelShape& shape, const ModelUse& use) {
  if (!tensor_possible(shape, use.tensor)) {
    throw Failure(
        text_format("%s cannot be split over %d ranks: only a transformer can, into whole "
                    "heads",
                    shape.text().c_str(), use.tensor));
  }
  if (const auto* gpt = shape.get<GptShape>()) return gpt_cost(*gpt, use);
  return classifier_cost(shape, use);
}

}  // namespace sluice::train::planner
