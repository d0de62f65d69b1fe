// See rows.h.
#include "kernels/layers.h"
#include "kernels/reference.h"
#include "kernels/reference_layers.h"
#include "tests/bench/kernels/rows.h"

namespace sluice::bench {
namespace {

namespace reference = kernels::reference;
using reference::Values;

Work gemm_work(Inputs& inputs, int scale, kernels::GemmRung rung) {
  const kernels::GemmShape shape{32 * scale, 48 * scale, 40 * scale};
  const CUdeviceptr a = inputs.floats(size_of(shape.m * shape.k));
  const CUdeviceptr b = inputs.floats(size_of(shape.k * shape.n));
  Work work;
  work.results = size_of(shape.m * shape.n);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::gemm(kernels::GemmForm::kNn, kernels::gemm_whole(rung, shape), shape, a,
                                 b, work.result)};
  work.flops = 2.0 * shape.m * shape.n * shape.k;
  work.bytes = 4.0 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n);
  work.expected = [&inputs, shape] {
    return reference::gemm(kernels::GemmForm::kNn, shape, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

Work gemm_half_work(Inputs& inputs, int scale, kernels::HalfFormat format) {
  const kernels::GemmShape shape{32 * scale, 48 * scale, 40 * scale};
  const CUdeviceptr a = inputs.halves(format, size_of(shape.m * shape.k));
  const CUdeviceptr b = inputs.halves(format, size_of(shape.k * shape.n));
  Work work;
  work.results = size_of(shape.m * shape.n);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::gemm_half(kernels::GemmForm::kNn, format,
                                      kernels::gemm_whole(kernels::GemmRung::kRegister, shape),
                                      shape, a, b, work.result)};
  work.flops = 2.0 * shape.m * shape.n * shape.k;
  work.bytes = 2.0 * (shape.m * shape.k + shape.k * shape.n) + 4.0 * shape.m * shape.n;
  work.expected = [&inputs, shape] {
    return reference::gemm(kernels::GemmForm::kNn, shape, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

Work layer_norm_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96;
  const std::size_t count = size_of(rows * columns);
  const CUdeviceptr x = inputs.floats(count);
  const CUdeviceptr gain = inputs.floats(size_of(columns), 0.5, 2);
  const CUdeviceptr bias = inputs.floats(size_of(columns));
  Work work;
  work.results = count;
  work.result = inputs.empty(count);
  work.launches = {kernels::layer_norm_forward(rows, columns, 1e-5f, x, gain, bias, work.result,
                                               inputs.empty(size_of(rows)),
                                               inputs.empty(size_of(rows)))};
  work.bytes = 8.0 * static_cast<double>(count);
  work.expected = [&inputs, rows, columns] {
    return reference::layer_norm(rows, columns, 1e-5, inputs.drawn(0), inputs.drawn(1),
                                 inputs.drawn(2));
  };
  return work;
}

Work softmax_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96;
  Work work;
  work.results = size_of(rows * columns);
  const CUdeviceptr x = inputs.floats(work.results, -5, 5);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::softmax_forward(rows, columns, x, work.result)};
  work.bytes = 8.0 * static_cast<double>(work.results);
  work.expected = [&inputs, rows, columns] {
    return reference::softmax(rows, columns, inputs.drawn(0));
  };
  return work;
}

Work gelu_work(Inputs& inputs, int scale) {
  Work work;
  work.results = size_of(2048 * scale);
  const CUdeviceptr x = inputs.floats(work.results, -5, 5);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::gelu_forward(2048 * scale, x, work.result)};
  work.bytes = 8.0 * static_cast<double>(work.results);
  work.expected = [&inputs] { return reference::gelu(inputs.drawn(0)); };
  return work;
}

Work attention_work(Inputs& inputs, int scale, kernels::AttentionRung rung) {
  const kernels::AttentionShape shape{1, 2, 48 * scale, 32};
  const std::size_t rows = size_of(shape.heads * shape.length);
  const CUdeviceptr qkv = inputs.floats(rows * 3 * 32);
  Work work;
  work.results = rows * 32;
  work.result = inputs.empty(work.results);
  work.launches = {kernels::attention_forward(rung, shape, qkv, work.result, inputs.empty(rows))};
  // Scores and values, of the causal half.
  work.flops = 2.0 * 2.0 * shape.heads * shape.length * (shape.length + 1) / 2 * shape.size;
  work.bytes = 16.0 * static_cast<double>(work.results);
  work.expected = [&inputs, shape] { return reference::attention(shape, inputs.drawn(0)); };
  return work;
}

Work convolution_work(Inputs& inputs, int scale, bool by_patches) {
  const kernels::WindowShape shape{scale, 14, 14, 8, 3, 1, 1};
  const int filters = 16;
  const CUdeviceptr x = inputs.floats(size_of(shape.items * 14 * 14 * 8));
  const CUdeviceptr weights = inputs.floats(size_of(shape.patch() * filters));
  Work work;
  work.results = size_of(shape.patches() * filters);
  work.result = inputs.empty(work.results);
  const kernels::GemmShape product{shape.patches(), filters, shape.patch()};
  if (by_patches) {
    const CUdeviceptr patches = inputs.empty(size_of(shape.patches() * shape.patch()));
    work.launches = {kernels::patches_gather(shape, x, patches),
                     kernels::gemm(kernels::GemmForm::kNn,
                                   kernels::gemm_whole(kernels::GemmRung::kTiled, product), product,
                                   patches, weights, work.result)};
  } else {
    work.launches = {kernels::convolution_naive(shape, filters, x, weights, work.result)};
  }
  work.flops = 2.0 * product.m * product.n * product.k;
  work.bytes = 4.0 * (shape.items * 14 * 14 * 8 + product.m * product.n);
  work.expected = [&inputs, shape] {
    return reference::convolution(shape, 16, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

Work embedding_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96, length = 24;
  auto tokens = std::make_shared<std::vector<int>>();
  const CUdeviceptr ids = inputs.tokens(size_of(rows), 256, tokens.get());
  const CUdeviceptr table = inputs.floats(size_of(256 * columns));
  const CUdeviceptr positions = inputs.floats(size_of(length * columns));
  Work work;
  work.results = size_of(rows * columns);
  work.result = inputs.empty(work.results);
  work.launches = {
      kernels::embedding_forward(rows, columns, length, ids, table, positions, work.result)};
  work.bytes = 12.0 * static_cast<double>(work.results);
  work.expected = [&inputs, tokens, columns, length] {
    return reference::embedding(columns, length, *tokens, inputs.drawn(0), inputs.drawn(1));
  };
  return work;
}

Work adamw_work(Inputs& inputs, int scale) {
  const int count = 2048 * scale;
  const kernels::AdamwSettings settings{.rate = 0.01f, .decay = 0.1f};
  Work work;
  work.results = size_of(count);
  const CUdeviceptr gradient = inputs.floats(work.results), means = inputs.floats(work.results);
  const CUdeviceptr squares = inputs.floats(work.results, 0.1, 1);
  work.result = inputs.floats(work.results);
  work.launches = {kernels::adamw(count, settings, 3, gradient, means, squares, work.result)};
  work.bytes = 28.0 * count;  // four arrays read, three written
  work.expected = [&inputs, settings] {
    const reference::Adam before{inputs.drawn(1), inputs.drawn(2), inputs.drawn(3)};
    return reference::adamw(settings, 3, inputs.drawn(0), before).weights;
  };
  return work;
}

Work rmsprop_work(Inputs& inputs, int scale) {
  const int count = 2048 * scale;
  const kernels::RmspropSettings settings{.rate = 0.01f, .momentum = 0.9f};
  Work work;
  work.results = size_of(count);
  const CUdeviceptr gradient = inputs.floats(work.results);
  const CUdeviceptr squares = inputs.floats(work.results, 0.1, 1);
  const CUdeviceptr velocity = inputs.floats(work.results);
  work.result = inputs.floats(work.results);
  work.launches = {kernels::rmsprop(count, settings, gradient, squares, velocity, work.result)};
  work.bytes = 28.0 * count;
  work.expected = [&inputs, settings] {
    const reference::Rmsprop before{inputs.drawn(1), inputs.drawn(2), inputs.drawn(3)};
    return reference::rmsprop(settings, inputs.drawn(0), before).weights;
  };
  return work;
}

Work norm_work(Inputs& inputs, int scale) {
  const int count = 2048 * scale;
  const CUdeviceptr x = inputs.floats(size_of(count));
  const int parts = kernels::square_sum_parts(count);
  const CUdeviceptr partials = inputs.empty(size_of(parts));
  Work work;
  work.results = 1;
  work.result = inputs.empty(1);
  work.launches = {kernels::square_sum(count, x, partials),
                   kernels::norm_finish(parts, partials, work.result)};
  work.bytes = 4.0 * count;
  work.expected = [&inputs] { return Values{reference::norm(inputs.drawn(0))}; };
  return work;
}

Work topk_work(Inputs& inputs, int scale) {
  const int count = 2048 * scale, k = count / 100;
  const std::size_t blocks = size_of(kernels::topk_blocks(count));
  const CUdeviceptr x = inputs.floats(size_of(count));
  const CUdeviceptr search =
      inputs.upload(std::vector<std::uint32_t>{0, static_cast<std::uint32_t>(k)});
  const CUdeviceptr histogram = inputs.upload(std::vector<std::uint32_t>(256));
  const CUdeviceptr above = inputs.empty(blocks), equal = inputs.empty(blocks);
  Work work;
  work.results = size_of(k);
  work.result = inputs.empty(work.results);
  for (int shift = 24; shift >= 0; shift -= 8) {
    work.launches.push_back(kernels::topk_histogram(count, shift, search, x, histogram));
    work.launches.push_back(kernels::topk_pick(shift, search, histogram));
  }
  work.launches.push_back(kernels::topk_count(count, search, x, above, equal));
  work.launches.push_back(kernels::topk_offsets(count, above, equal));
  work.launches.push_back(
      kernels::topk_take(count, search, above, equal, x, inputs.empty(size_of(k)), work.result));
  work.bytes = 4.0 * 6 * count;
  work.expected = [&inputs, k] {
    const std::vector<float> narrow(inputs.drawn(0).begin(), inputs.drawn(0).end());
    Values taken;
    for (const int index : reference::topk(k, narrow))
      taken.push_back(inputs.drawn(0)[size_of(index)]);
    return taken;
  };
  return work;
}

Work sgd_work(Inputs& inputs, int scale) {
  const int count = 2048 * scale;
  Work work;
  work.results = size_of(count);
  const CUdeviceptr gradient = inputs.floats(work.results), velocity = inputs.floats(work.results);
  work.result = inputs.floats(work.results);
  work.launches = {kernels::sgd_momentum(count, 0.125f, 0.75f, gradient, velocity, work.result)};
  work.bytes = 20.0 * count;  // three arrays read, two written
  work.expected = [&inputs] {
    return reference::sgd_momentum(0.125, 0.75, inputs.drawn(0), inputs.drawn(1), inputs.drawn(2))
        .weights;
  };
  return work;
}

/// Loss and gradient in one pass: the gradients, and behind them the losses of the rows.
Work cross_entropy_work(Inputs& inputs, int scale) {
  const int rows = 24 * scale, columns = 96;
  auto labels = std::make_shared<std::vector<int>>();
  const CUdeviceptr ids = inputs.tokens(size_of(rows), columns, labels.get());
  const std::size_t count = size_of(rows * columns);
  const CUdeviceptr logits = inputs.floats(count, -5, 5);
  Work work;
  work.results = count + size_of(rows);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::softmax_cross_entropy(
      rows, columns, 0.25f, logits, ids, work.result + count * sizeof(float), work.result)};
  work.bytes = 8.0 * static_cast<double>(count);
  work.expected = [&inputs, labels, rows, columns] {
    reference::Loss loss =
        reference::softmax_cross_entropy(rows, columns, 0.25, inputs.drawn(0), *labels);
    loss.gradient.insert(loss.gradient.end(), loss.losses.begin(), loss.losses.end());
    return loss.gradient;
  };
  return work;
}

Work max_pool_work(Inputs& inputs, int scale) {
  const int items = scale, side = 28, channels = 8;
  const CUdeviceptr x = inputs.floats(size_of(items * side * side * channels));
  Work work;
  work.results = size_of(items * side / 2 * side / 2 * channels);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::max_pool_forward(items, side, side, channels, 2, x, work.result,
                                             inputs.empty(work.results))};
  work.bytes = 4.0 * 6 * static_cast<double>(work.results);
  work.expected = [&inputs, items] {
    return reference::max_pool(items, 28, 28, 8, 2, inputs.drawn(0));
  };
  return work;
}

/// In place: what it is timed on is orthonormal already.
Work gram_schmidt_work(Inputs& inputs, int scale) {
  constexpr int kColumns = 4;
  const int rows = 16 * scale;
  const CUdeviceptr x = inputs.floats(size_of(rows * kColumns));
  Work work;
  work.results = size_of(rows * kColumns);
  work.result = x;
  work.launches = {kernels::gram_schmidt(rows, kColumns, x)};
  work.bytes = 2 * 4.0 * rows * kColumns;
  work.expected = [&inputs, rows] {
    return reference::gram_schmidt(rows, kColumns, inputs.drawn(0));
  };
  return work;
}

Work cast_work(Inputs& inputs, int scale, kernels::HalfFormat format) {
  const int count = 2048 * scale;
  const CUdeviceptr x = inputs.floats(size_of(count));
  const CUdeviceptr half = inputs.empty(size_of(count / 2));
  Work work;
  work.results = size_of(count);
  work.result = inputs.empty(work.results);
  work.launches = {kernels::cast_to_half(format, count, x, half),
                   kernels::cast_from_half(format, count, half, work.result)};
  work.bytes = 12.0 * count;
  work.expected = [&inputs, format] {
    Values rounded;
    for (const double value : inputs.drawn(0)) {
      const std::uint16_t bits = reference::half_bits(format, static_cast<float>(value));
      rounded.push_back(static_cast<double>(reference::half_value(format, bits)));
    }
    return rounded;
  };
  return work;
}

}  // namespace

std::vector<Row> forward_rows() {
  using kernels::AttentionRung;
  using kernels::GemmRung;
  using kernels::HalfFormat;
  return {
      {"gemm naive", [](Inputs& in, int n) { return gemm_work(in, n, GemmRung::kNaive); }},
      {"gemm tiled", [](Inputs& in, int n) { return gemm_work(in, n, GemmRung::kTiled); }},
      {"gemm register", [](Inputs& in, int n) { return gemm_work(in, n, GemmRung::kRegister); }},
      {"gemm fp16", [](Inputs& in, int n) { return gemm_half_work(in, n, HalfFormat::kFp16); }},
      {"gemm bf16", [](Inputs& in, int n) { return gemm_half_work(in, n, HalfFormat::kBf16); }},
      {"convolution naive", [](Inputs& in, int n) { return convolution_work(in, n, false); }},
      {"convolution patches", [](Inputs& in, int n) { return convolution_work(in, n, true); }},
      {"layer norm", layer_norm_work},
      {"softmax", softmax_work},
      {"gelu", gelu_work},
      {"attention naive",
       [](Inputs& in, int n) { return attention_work(in, n, AttentionRung::kNaive); }},
      {"attention tiled",
       [](Inputs& in, int n) { return attention_work(in, n, AttentionRung::kTiled); }},
      {"max pool", max_pool_work},
      {"embedding", embedding_work},
      {"cross-entropy", cross_entropy_work},
      {"sgd, momentum", sgd_work},
      {"adamw", adamw_work},
      {"rmsprop", rmsprop_work},
      {"gradient norm", norm_work},
      {"top 1 %", topk_work},
      {"gram-schmidt of 4", gram_schmidt_work},
      {"cast fp16 and back", [](Inputs& in, int n) { return cast_work(in, n, HalfFormat::kFp16); }},
      {"cast bf16 and back", [](Inputs& in, int n) { return cast_work(in, n, HalfFormat::kBf16); }},
  };
}

}  // namespace sluice::bench
