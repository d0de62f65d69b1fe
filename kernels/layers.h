// The launch table of the layers beyond dense ones: layer norm, softmax, GELU, embedding,
// attention, convolution and pooling. Arrays are fp32 and row-major; every pointer is a device
// address.
#pragma once

#include "kernels/launch.h"

namespace sluice::kernels {

/// out = layer norm of each row of x[rows, columns]; means[rows] and scales[rows] for the way back
Launch layer_norm_forward(int rows, int columns, float epsilon, CUdeviceptr x, CUdeviceptr gain,
                          CUdeviceptr bias, CUdeviceptr out, CUdeviceptr means, CUdeviceptr scales);
/// input_gradient[rows, columns]; not in place
Launch layer_norm_backward(int rows, int columns, CUdeviceptr x, CUdeviceptr gain,
                           CUdeviceptr means, CUdeviceptr scales, CUdeviceptr gradient,
                           CUdeviceptr input_gradient);
/// gain_gradient[columns] and bias_gradient[columns], written, not added to
Launch layer_norm_weights_backward(int rows, int columns, CUdeviceptr x, CUdeviceptr means,
                                   CUdeviceptr scales, CUdeviceptr gradient,
                                   CUdeviceptr gain_gradient, CUdeviceptr bias_gradient);
/// out may be x
Launch softmax_forward(int rows, int columns, CUdeviceptr x, CUdeviceptr out);
/// gradient in place, from the forward pass's output
Launch softmax_backward(int rows, int columns, CUdeviceptr output, CUdeviceptr gradient);
Launch gelu_forward(int count, CUdeviceptr x, CUdeviceptr out);
/// gradient in place, from the forward pass's input
Launch gelu_backward(int count, CUdeviceptr x, CUdeviceptr gradient);

/// out[rows, columns] = tokens_table[tokens[row]] + positions_table[row % length]; tokens are int32
Launch embedding_forward(int rows, int columns, int length, CUdeviceptr tokens,
                         CUdeviceptr tokens_table, CUdeviceptr positions_table, CUdeviceptr out);
/// table_gradient += gradient by token. order[rows] (int32): row numbers by token, stable;
/// starts[distinct + 1] (int32): where each token that occurs begins in it, and its end.
Launch embedding_backward(int distinct, int columns, CUdeviceptr starts, CUdeviceptr order,
                          CUdeviceptr tokens, CUdeviceptr gradient, CUdeviceptr table_gradient);
/// table_gradient[length, columns] += sum over the batch of gradient[batch, length, columns]
Launch position_backward(int batch, int length, int columns, CUdeviceptr gradient,
                         CUdeviceptr table_gradient);

/// Causal attention of `heads` heads of `size` <= 64 values over `length` times. qkv[items, length,
/// 3, heads, size]; out and its gradient [items, length, heads, size]; sums and products [items,
/// heads, length].
struct AttentionShape {
  int items;
  int heads;
  int length;
  int size;
};
inline constexpr int kAttentionSizeMax = 64;
enum class AttentionRung : std::uint8_t { kNaive, kTiled };

Launch attention_forward(AttentionRung rung, const AttentionShape& shape, CUdeviceptr qkv,
                         CUdeviceptr out, CUdeviceptr sums);
/// Backward, in this order: products, then queries and keys in any order.
Launch attention_products(const AttentionShape& shape, CUdeviceptr out, CUdeviceptr gradient,
                          CUdeviceptr products);
Launch attention_backward_queries(const AttentionShape& shape, CUdeviceptr qkv, CUdeviceptr sums,
                                  CUdeviceptr products, CUdeviceptr gradient,
                                  CUdeviceptr qkv_gradient);
Launch attention_backward_keys(const AttentionShape& shape, CUdeviceptr qkv, CUdeviceptr sums,
                               CUdeviceptr products, CUdeviceptr gradient,
                               CUdeviceptr qkv_gradient);

/// A square window of `kernel` going in steps of `stride` over images [items, height, width,
/// channels] with `padding` zeros around.
struct WindowShape {
  int items;
  int height;
  int width;
  int channels;
  int kernel;
  int stride;
  int padding;

  int out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  /// Rows and columns of the matrix of patches.
  int patches() const { return items * out_height() * out_width(); }
  int patch() const { return kernel * kernel * channels; }
};

/// out[items, out_height, out_width, filters]; weights[kernel, kernel, channels, filters]. The rung
/// by patches is patches_gather and a gemm of {patches(), filters, patch()}.
Launch convolution_naive(const WindowShape& shape, int filters, CUdeviceptr x, CUdeviceptr weights,
                         CUdeviceptr out);
/// patches[patches(), patch()] from x
Launch patches_gather(const WindowShape& shape, CUdeviceptr x, CUdeviceptr patches);
/// gradient of x, written, from that of the patches
Launch patches_scatter(const WindowShape& shape, CUdeviceptr patches, CUdeviceptr gradient);
/// out and places (int32) [items, height / window, width / window, channels]
Launch max_pool_forward(int items, int height, int width, int channels, int window, CUdeviceptr x,
                        CUdeviceptr out, CUdeviceptr places);
/// gradient[places[i]] = out_gradient[i] for `count` outputs; gradient is zero before
Launch max_pool_backward(int count, CUdeviceptr places, CUdeviceptr out_gradient,
                         CUdeviceptr gradient);

}  // namespace sluice::kernels
