// See rows.h. Where a way back needs what the forward pass kept, that is launched before.
#include <algorithm>
#include <numeric>

#include "kernels/layers.h"
#include "kernels/reference_backward.h"
#include "tests/bench/kernels/rows.h"

namespace sluice::bench {
namespace {

namespace reference = kernels::reference;
using reference::Values;

/// Arrays that lie behind each other in one.
Values joined(std::initializer_list<Values> arrays) {
  Values all;
  for (const Values& one : arrays) all.insert(all.end(), one.begin(), one.end());
  return all;
}

Work layer_norm_backward_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96;
  const std::size_t count = size_of(rows * columns);
  const CUdeviceptr x = inputs.floats(count);
  const CUdeviceptr gain = inputs.floats(size_of(columns), 0.5, 2);
  const CUdeviceptr gradient = inputs.floats(count);
  const CUdeviceptr means = inputs.empty(size_of(rows)), scales = inputs.empty(size_of(rows));
  Work work;
  work.results = count + 2 * size_of(columns);
  work.result = inputs.empty(work.results);
  work.before = {kernels::layer_norm_forward(rows, columns, 1e-5f, x, gain, gain,
                                             inputs.empty(count), means, scales)};
  const CUdeviceptr by_gain = work.result + count * sizeof(float);
  work.launches = {
      kernels::layer_norm_backward(rows, columns, x, gain, means, scales, gradient, work.result),
      kernels::layer_norm_weights_backward(rows, columns, x, means, scales, gradient, by_gain,
                                           by_gain + size_of(columns) * sizeof(float))};
  work.bytes = 4.0 * 5 * static_cast<double>(count);
  work.expected = [&inputs, rows, columns] {
    const auto all = reference::layer_norm_backward(rows, columns, 1e-5, inputs.drawn(0),
                                                    inputs.drawn(1), inputs.drawn(2));
    return joined({all.input, all.gain, all.bias});
  };
  return work;
}

/// In place: timed on gradients that went through it before.
Work softmax_backward_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96;
  Work work;
  work.results = size_of(rows * columns);
  const CUdeviceptr x = inputs.floats(work.results, -2, 2);
  const CUdeviceptr shares = inputs.empty(work.results);
  work.result = inputs.floats(work.results);
  work.before = {kernels::softmax_forward(rows, columns, x, shares)};
  work.launches = {kernels::softmax_backward(rows, columns, shares, work.result)};
  work.bytes = 12.0 * static_cast<double>(work.results);
  work.expected = [&inputs, rows, columns] {
    return reference::softmax_backward(rows, columns, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

/// In place, as above.
Work gelu_backward_work(Inputs& inputs, int scale) {
  Work work;
  work.results = size_of(2048 * scale);
  const CUdeviceptr x = inputs.floats(work.results, -5, 5);
  work.result = inputs.floats(work.results);
  work.launches = {kernels::gelu_backward(2048 * scale, x, work.result)};
  work.bytes = 12.0 * static_cast<double>(work.results);
  work.expected = [&inputs] { return reference::gelu_backward(inputs.drawn(0), inputs.drawn(1)); };
  return work;
}

Work attention_backward_work(Inputs& inputs, int scale) {
  const kernels::AttentionShape shape{1, 2, 48 * scale, 32};
  const std::size_t rows = size_of(shape.heads * shape.length);
  const CUdeviceptr qkv = inputs.floats(rows * 3 * 32);
  const CUdeviceptr gradient = inputs.floats(rows * 32);
  const CUdeviceptr out = inputs.empty(rows * 32), sums = inputs.empty(rows);
  const CUdeviceptr products = inputs.empty(rows);
  Work work;
  work.results = rows * 3 * 32;
  work.result = inputs.empty(work.results);
  work.before = {kernels::attention_forward(kernels::AttentionRung::kTiled, shape, qkv, out, sums)};
  work.launches = {
      kernels::attention_products(shape, out, gradient, products),
      kernels::attention_backward_queries(shape, qkv, sums, products, gradient, work.result),
      kernels::attention_backward_keys(shape, qkv, sums, products, gradient, work.result)};
  // Scores and slopes twice each, and three sums of gradients.
  work.flops = 7.0 * 2.0 * shape.heads * shape.length * (shape.length + 1) / 2 * shape.size;
  work.bytes = 4.0 * 9 * static_cast<double>(rows) * 32;
  work.expected = [&inputs, shape] {
    return reference::attention_backward(shape, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

/// By patches: gradients of the weights, and of the input.
Work convolution_backward_work(Inputs& inputs, int scale) {
  const kernels::WindowShape shape{scale, 14, 14, 8, 3, 1, 1};
  const int filters = 16;
  const std::size_t count = size_of(shape.items * 14 * 14 * 8);
  const CUdeviceptr x = inputs.floats(count);
  const CUdeviceptr weights = inputs.floats(size_of(shape.patch() * filters));
  const CUdeviceptr gradient = inputs.floats(size_of(shape.patches() * filters));
  const CUdeviceptr patches = inputs.empty(size_of(shape.patches() * shape.patch()));
  const CUdeviceptr by_patches = inputs.empty(size_of(shape.patches() * shape.patch()));
  const kernels::GemmShape to_weights{shape.patch(), filters, shape.patches()};
  const kernels::GemmShape to_patches{shape.patches(), shape.patch(), filters};
  const auto whole = [](const kernels::GemmShape& product) {
    return kernels::gemm_whole(kernels::GemmRung::kTiled, product);
  };
  Work work;
  work.results = count + size_of(shape.patch() * filters);
  work.result = inputs.empty(work.results);
  work.before = {kernels::patches_gather(shape, x, patches)};
  work.launches = {kernels::gemm(kernels::GemmForm::kTn, whole(to_weights), to_weights, patches,
                                 gradient, work.result + count * sizeof(float)),
                   kernels::gemm(kernels::GemmForm::kNt, whole(to_patches), to_patches, gradient,
                                 weights, by_patches),
                   kernels::patches_scatter(shape, by_patches, work.result)};
  work.flops = 4.0 * shape.patches() * shape.patch() * filters;
  work.bytes = 4.0 * (2.0 * static_cast<double>(count) + shape.patches() * filters);
  work.expected = [&inputs, shape] {
    const auto all = reference::convolution_backward(shape, 16, inputs.drawn(0), inputs.drawn(1),
                                                     inputs.drawn(2));
    return joined({all.input, all.weights});
  };
  return work;
}

Work max_pool_backward_work(Inputs& inputs, int scale) {
  const int items = scale, side = 28, channels = 8;
  const int outputs = items * side / 2 * side / 2 * channels;
  Work work;
  work.results = size_of(items * side * side * channels);
  const CUdeviceptr x = inputs.floats(work.results);
  const CUdeviceptr gradient = inputs.floats(size_of(outputs));
  const CUdeviceptr places = inputs.empty(size_of(outputs));
  work.result = inputs.upload(std::vector<float>(work.results));
  work.before = {kernels::max_pool_forward(items, side, side, channels, 2, x,
                                           inputs.empty(size_of(outputs)), places)};
  work.launches = {kernels::max_pool_backward(outputs, places, gradient, work.result)};
  work.bytes = 12.0 * outputs;
  work.expected = [&inputs, items] {
    return reference::max_pool_backward(items, 28, 28, 8, 2, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

/// Both tables' gradients, which are added to.
Work embedding_backward_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96, length = 24, token_count = 256;
  auto tokens = std::make_shared<std::vector<int>>();
  const CUdeviceptr ids = inputs.tokens(size_of(rows), token_count, tokens.get());
  // The rows by token, as the loader of a batch prepares them.
  std::vector<int> order(size_of(rows)), starts;
  std::iota(order.begin(), order.end(), 0);
  const auto token = [&](int place) { return (*tokens)[size_of(order[size_of(place)])]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return (*tokens)[size_of(a)] < (*tokens)[size_of(b)]; });
  for (int i = 0; i < rows; ++i)
    if (i == 0 || token(i) != token(i - 1)) starts.push_back(i);
  const int distinct = static_cast<int>(starts.size());
  starts.push_back(rows);
  const CUdeviceptr gradient = inputs.floats(size_of(rows * columns));
  const std::size_t table = size_of(token_count * columns);
  Work work;
  work.results = table + size_of(length * columns);
  work.result = inputs.upload(std::vector<float>(work.results));
  work.launches = {kernels::embedding_backward(distinct, columns, inputs.upload(starts),
                                               inputs.upload(order), ids, gradient, work.result),
                   kernels::position_backward(rows / length, length, columns, gradient,
                                              work.result + table * sizeof(float))};
  work.bytes = 4.0 * (2.0 * rows + 2.0 * distinct + 2.0 * length) * columns;
  work.expected = [&inputs, tokens, columns, length] {
    return joined({reference::embedding_backward(256, columns, *tokens, inputs.drawn(0)),
                   reference::position_backward(length, columns, inputs.drawn(0))});
  };
  return work;
}

}  // namespace

std::vector<Row> backward_rows() {
  return {
      {"convolution back", convolution_backward_work},
      {"max pool back", max_pool_backward_work},
      {"layer norm back", layer_norm_backward_work},
      {"softmax back", softmax_backward_work},
      {"gelu back", gelu_backward_work},
      {"attention back", attention_backward_work},
      {"embedding back", embedding_backward_work},
  };
}

}  // namespace sluice::bench
