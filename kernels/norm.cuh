// Layer normalisation over the columns of each row, forward and backward, and softmax over rows.
// One warp per row; the gradients of gain and bias are sums over rows in the order of column_sum.
#pragma once

#include "kernels/reduce.cuh"

/// out = (x - mean) scale gain + bias with scale = 1 / sqrt(variance + epsilon), per row (Ba et
/// al., Layer Normalization, 2016; variance with divisor `columns`). Means and scales are kept for
/// the way back. The variance is summed over differences from the mean, so that large means lose
/// nothing.
extern "C" __global__ void __launch_bounds__(128)
    layer_norm_forward(int rows, int columns, float epsilon, const float* x, const float* gain,
                       const float* bias, float* out, float* means, float* scales) {
  using namespace sluice::kernels::device;
  const int row = static_cast<int>(blockIdx.x * 4 + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= rows) return;
  const float* from = x + static_cast<long>(row) * columns;
  float sum = 0.0f;
  for (int i = lane; i < columns; i += 32) sum += from[i];
  const float mean = warp_sum(sum) / static_cast<float>(columns);
  float squares = 0.0f;
  for (int i = lane; i < columns; i += 32) {
    const float difference = from[i] - mean;
    squares = fmaf(difference, difference, squares);
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(columns) + epsilon);
  float* to = out + static_cast<long>(row) * columns;
  for (int i = lane; i < columns; i += 32) to[i] = fmaf((from[i] - mean) * scale, gain[i], bias[i]);
  if (lane == 0) {
    means[row] = mean;
    scales[row] = scale;
  }
}

/// input_gradient = scale (g - mean(g) - n mean(g n)), where n = (x - mean) scale and g = gradient
/// gain; the means are over the row.
extern "C" __global__ void __launch_bounds__(128)
    layer_norm_backward(int rows, int columns, const float* x, const float* gain,
                        const float* means, const float* scales, const float* gradient,
                        float* input_gradient) {
  using namespace sluice::kernels::device;
  const int row = static_cast<int>(blockIdx.x * 4 + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= rows) return;
  const long base = static_cast<long>(row) * columns;
  const float mean = means[row];
  const float scale = scales[row];
  float sum = 0.0f;
  float product = 0.0f;
  for (int i = lane; i < columns; i += 32) {
    const float g = gradient[base + i] * gain[i];
    sum += g;
    product = fmaf(g, (x[base + i] - mean) * scale, product);
  }
  sum = warp_sum(sum) / static_cast<float>(columns);
  product = warp_sum(product) / static_cast<float>(columns);
  for (int i = lane; i < columns; i += 32) {
    const float n = (x[base + i] - mean) * scale;
    input_gradient[base + i] = scale * (gradient[base + i] * gain[i] - sum - n * product);
  }
}

/// gain_gradient = sum over rows of gradient n, bias_gradient = sum over rows of gradient; blocks
/// of 32 columns by 8 rows, in the order of column_sum.
extern "C" __global__ void __launch_bounds__(256)
    layer_norm_weights_backward(int rows, int columns, const float* x, const float* means,
                                const float* scales, const float* gradient, float* gain_gradient,
                                float* bias_gradient) {
  __shared__ float gains[8][33];
  __shared__ float biases[8][33];
  const int column = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  const int lane = static_cast<int>(threadIdx.y);
  float gain = 0.0f;
  float bias = 0.0f;
  if (column < columns) {
    for (int row = lane; row < rows; row += 8) {
      const long i = static_cast<long>(row) * columns + column;
      gain = fmaf(gradient[i], (x[i] - means[row]) * scales[row], gain);
      bias += gradient[i];
    }
  }
  gains[lane][threadIdx.x] = gain;
  biases[lane][threadIdx.x] = bias;
  __syncthreads();
  for (int half = 4; half > 0; half /= 2) {
    if (lane < half) {
      gains[lane][threadIdx.x] += gains[lane + half][threadIdx.x];
      biases[lane][threadIdx.x] += biases[lane + half][threadIdx.x];
    }
    __syncthreads();
  }
  if (lane == 0 && column < columns) {
    gain_gradient[column] = gains[0][threadIdx.x];
    bias_gradient[column] = biases[0][threadIdx.x];
  }
}

/// out[row] = softmax(x[row]); may be in place
extern "C" __global__ void __launch_bounds__(128)
    softmax_forward(int rows, int columns, const float* x, float* out) {
  using namespace sluice::kernels::device;
  const int row = static_cast<int>(blockIdx.x * 4 + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= rows) return;
  const float* from = x + static_cast<long>(row) * columns;
  float* to = out + static_cast<long>(row) * columns;
  const auto [highest, sum] = row_shares(from, columns, lane);
  for (int i = lane; i < columns; i += 32) to[i] = expf(from[i] - highest) / sum;
}

/// gradient = output (gradient - sum over the row of gradient output), in place
extern "C" __global__ void __launch_bounds__(128)
    softmax_backward(int rows, int columns, const float* output, float* gradient) {
  using namespace sluice::kernels::device;
  const int row = static_cast<int>(blockIdx.x * 4 + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= rows) return;
  const long base = static_cast<long>(row) * columns;
  float sum = 0.0f;
  for (int i = lane; i < columns; i += 32) sum = fmaf(gradient[base + i], output[base + i], sum);
  sum = warp_sum(sum);
  for (int i = lane; i < columns; i += 32) {
    gradient[base + i] = output[base + i] * (gradient[base + i] - sum);
  }
}
