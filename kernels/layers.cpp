// Grids and arguments of the layers' kernels; the argument order here is the parameter order in the
// .cuh files.
#include "kernels/layers.h"

#include <cmath>

namespace sluice::kernels {
namespace {

constexpr unsigned kAttentionTile = 32;  // of attention.cuh
constexpr unsigned kAttentionThreads = 128;

Launch attention(Kernel kernel, const AttentionShape& shape, unsigned times_per_block) {
  assert(shape.items > 0 && shape.heads > 0 && shape.size > 0);
  assert(shape.size <= kAttentionSizeMax);
  const Extent grid{ceil_divide(shape.length, times_per_block), static_cast<unsigned>(shape.heads),
                    static_cast<unsigned>(shape.items)};
  Launch launch(kernel, grid, {kAttentionThreads});
  return launch.arguments(shape.heads, shape.length, shape.size);
}

/// What scores are multiplied with (Vaswani et al., Attention Is All You Need, 2017).
float attention_scale(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.size));
}

Launch windows(Kernel kernel, const WindowShape& shape, std::int64_t count) {
  assert(shape.stride > 0 && shape.padding >= 0 && shape.kernel > 0);
  assert(shape.out_height() > 0 && shape.out_width() > 0);
  Launch launch = elementwise(kernel, count);
  launch.arguments(shape.items, shape.height, shape.width, shape.channels, shape.kernel);
  return launch.arguments(shape.stride, shape.padding, shape.out_height(), shape.out_width());
}

}  // namespace

Launch layer_norm_forward(int rows, int columns, float epsilon, CUdeviceptr x, CUdeviceptr gain,
                          CUdeviceptr bias, CUdeviceptr out, CUdeviceptr means,
                          CUdeviceptr scales) {
  elements(rows, columns);
  return rowwise(Kernel::kLayerNormForward, rows)
      .arguments(rows, columns, epsilon, x, gain, bias, out, means, scales);
}

Launch layer_norm_backward(int rows, int columns, CUdeviceptr x, CUdeviceptr gain,
                           CUdeviceptr means, CUdeviceptr scales, CUdeviceptr gradient,
                           CUdeviceptr input_gradient) {
  elements(rows, columns);
  return rowwise(Kernel::kLayerNormBackward, rows)
      .arguments(rows, columns, x, gain, means, scales, gradient, input_gradient);
}

Launch layer_norm_weights_backward(int rows, int columns, CUdeviceptr x, CUdeviceptr means,
                                   CUdeviceptr scales, CUdeviceptr gradient,
                                   CUdeviceptr gain_gradient, CUdeviceptr bias_gradient) {
  elements(rows, columns);
  return Launch(Kernel::kLayerNormWeightsBackward, {ceil_divide(columns, 32)}, {32, 8})
      .arguments(rows, columns, x, means, scales, gradient, gain_gradient, bias_gradient);
}

Launch softmax_forward(int rows, int columns, CUdeviceptr x, CUdeviceptr out) {
  elements(rows, columns);
  return rowwise(Kernel::kSoftmaxForward, rows).arguments(rows, columns, x, out);
}

Launch softmax_backward(int rows, int columns, CUdeviceptr output, CUdeviceptr gradient) {
  elements(rows, columns);
  return rowwise(Kernel::kSoftmaxBackward, rows).arguments(rows, columns, output, gradient);
}

Launch gelu_forward(int count, CUdeviceptr x, CUdeviceptr out) {
  return elementwise(Kernel::kGeluForward, count).arguments(count, x, out);
}

Launch gelu_backward(int count, CUdeviceptr x, CUdeviceptr gradient) {
  return elementwise(Kernel::kGeluBackward, count).arguments(count, x, gradient);
}

Launch embedding_forward(int rows, int columns, int length, CUdeviceptr tokens,
                         CUdeviceptr tokens_table, CUdeviceptr positions_table, CUdeviceptr out) {
  assert(length > 0);
  return elementwise(Kernel::kEmbeddingForward, elements(rows, columns))
      .arguments(rows, columns, length, tokens, tokens_table, positions_table, out);
}

Launch embedding_backward(int distinct, int columns, CUdeviceptr starts, CUdeviceptr order,
                          CUdeviceptr tokens, CUdeviceptr gradient, CUdeviceptr table_gradient) {
  assert(distinct > 0 && columns > 0);
  return Launch(Kernel::kEmbeddingBackward, {static_cast<unsigned>(distinct)}, {128})
      .arguments(columns, starts, order, tokens, gradient, table_gradient);
}

Launch position_backward(int batch, int length, int columns, CUdeviceptr gradient,
                         CUdeviceptr table_gradient) {
  assert(batch > 0);
  return elementwise(Kernel::kPositionBackward, elements(length, columns))
      .arguments(batch, length, columns, gradient, table_gradient);
}

Launch attention_forward(AttentionRung rung, const AttentionShape& shape, CUdeviceptr qkv,
                         CUdeviceptr out, CUdeviceptr sums) {
  const bool tiled = rung == AttentionRung::kTiled;
  return attention(tiled ? Kernel::kAttentionForward : Kernel::kAttentionForwardNaive, shape,
                   tiled ? kAttentionTile : kAttentionThreads / 32)
      .arguments(attention_scale(shape), qkv, out, sums);
}

Launch attention_products(const AttentionShape& shape, CUdeviceptr out, CUdeviceptr gradient,
                          CUdeviceptr products) {
  return attention(Kernel::kAttentionProducts, shape, kAttentionThreads / 32)
      .arguments(out, gradient, products);
}

Launch attention_backward_queries(const AttentionShape& shape, CUdeviceptr qkv, CUdeviceptr sums,
                                  CUdeviceptr products, CUdeviceptr gradient,
                                  CUdeviceptr qkv_gradient) {
  return attention(Kernel::kAttentionBackwardQueries, shape, kAttentionTile)
      .arguments(attention_scale(shape), qkv, sums, products, gradient, qkv_gradient);
}

Launch attention_backward_keys(const AttentionShape& shape, CUdeviceptr qkv, CUdeviceptr sums,
                               CUdeviceptr products, CUdeviceptr gradient,
                               CUdeviceptr qkv_gradient) {
  return attention(Kernel::kAttentionBackwardKeys, shape, kAttentionTile)
      .arguments(attention_scale(shape), qkv, sums, products, gradient, qkv_gradient);
}

Launch convolution_naive(const WindowShape& shape, int filters, CUdeviceptr x, CUdeviceptr weights,
                         CUdeviceptr out) {
  return windows(Kernel::kConvolutionNaive, shape, elements(shape.patches(), filters))
      .arguments(filters, x, weights, out);
}

Launch patches_gather(const WindowShape& shape, CUdeviceptr x, CUdeviceptr patches) {
  return windows(Kernel::kPatchesGather, shape, elements(shape.patches(), shape.patch()))
      .arguments(x, patches);
}

Launch patches_scatter(const WindowShape& shape, CUdeviceptr patches, CUdeviceptr gradient) {
  const std::int64_t count = elements(shape.items * shape.height, shape.width * shape.channels);
  return windows(Kernel::kPatchesScatter, shape, count).arguments(patches, gradient);
}

Launch max_pool_forward(int items, int height, int width, int channels, int window, CUdeviceptr x,
                        CUdeviceptr out, CUdeviceptr places) {
  assert(window > 0);
  return elementwise(Kernel::kMaxPoolForward,
                     elements(items * (height / window), width / window * channels))
      .arguments(items, height, width, channels, window, x, out, places);
}

Launch max_pool_backward(int count, CUdeviceptr places, CUdeviceptr out_gradient,
                         CUdeviceptr gradient) {
  return elementwise(Kernel::kMaxPoolBackward, count)
      .arguments(count, places, out_gradient, gradient);
}

}  // namespace sluice::kernels
