// Two-dimensional convolution and max pooling over images stored [items, height, width, channels].
// Two rungs of the convolution: naive (a thread per output value) and by patches: each output
// position's inputs are laid out as a row, and the convolution is a matrix product with the weights
// [kernel, kernel, channels, filters]; so are its gradients. Patches are added back by gathering,
// so that nothing is added across threads.
#pragma once

#include "kernels/reduce.cuh"

namespace sluice::kernels::device {

/// A position of an image of `columns` x `rows` x `depth` values, from its flat index.
struct Place {
  int item;
  int row;
  int column;
  int depth;

  __device__ Place(long flat, int rows, int columns, int depths)
      : item(static_cast<int>(flat / (static_cast<long>(rows) * columns * depths))),
        row(static_cast<int>(flat / (static_cast<long>(columns) * depths) % rows)),
        column(static_cast<int>(flat / depths % columns)),
        depth(static_cast<int>(flat % depths)) {}
};

}  // namespace sluice::kernels::device

/// out[item, y, x, filter] = sum over the window of x weights; zeros beyond the edge
extern "C" __global__ void __launch_bounds__(256)
    convolution_naive(int items, int height, int width, int channels, int kernel, int stride,
                      int padding, int out_height, int out_width, int filters, const float* x,
                      const float* weights, float* out) {
  using namespace sluice::kernels::device;
  const long i = thread_index();
  if (i >= static_cast<long>(items) * out_height * out_width * filters) return;
  const Place at(i, out_height, out_width, filters);
  float sum = 0.0f;
  for (int ky = 0; ky < kernel; ++ky) {
    const int row = at.row * stride + ky - padding;
    if (row < 0 || row >= height) continue;
    for (int kx = 0; kx < kernel; ++kx) {
      const int column = at.column * stride + kx - padding;
      if (column < 0 || column >= width) continue;
      const float* from =
          x + ((static_cast<long>(at.item) * height + row) * width + column) * channels;
      const float* weight = weights + static_cast<long>(ky * kernel + kx) * channels * filters;
      for (int channel = 0; channel < channels; ++channel) {
        sum = fmaf(from[channel], weight[static_cast<long>(channel) * filters + at.depth], sum);
      }
    }
  }
  out[i] = sum;
}

/// patches[item, y, x][ky, kx, channel] = the input under the window, zeros beyond the edge
extern "C" __global__ void __launch_bounds__(256)
    patches_gather(int items, int height, int width, int channels, int kernel, int stride,
                   int padding, int out_height, int out_width, const float* x, float* patches) {
  using namespace sluice::kernels::device;
  const long i = thread_index();
  const int patch = kernel * kernel * channels;
  if (i >= static_cast<long>(items) * out_height * out_width * patch) return;
  const Place at(i, out_height, out_width, patch);
  const int channel = at.depth % channels;
  const int row = at.row * stride + at.depth / channels / kernel - padding;
  const int column = at.column * stride + at.depth / channels % kernel - padding;
  const bool inside = row >= 0 && row < height && column >= 0 && column < width;
  patches[i] =
      inside
          ? x[((static_cast<long>(at.item) * height + row) * width + column) * channels + channel]
          : 0.0f;
}

/// gradient[item, row, column, channel] = sum over the windows that cover it of its place in their
/// patches: what goes back through patches_gather
extern "C" __global__ void __launch_bounds__(256)
    patches_scatter(int items, int height, int width, int channels, int kernel, int stride,
                    int padding, int out_height, int out_width, const float* patches,
                    float* gradient) {
  using namespace sluice::kernels::device;
  const long i = thread_index();
  if (i >= static_cast<long>(items) * height * width * channels) return;
  const Place at(i, height, width, channels);
  float sum = 0.0f;
  for (int ky = 0; ky < kernel; ++ky) {
    const int y = at.row + padding - ky;
    if (y < 0 || y % stride != 0 || y / stride >= out_height) continue;
    for (int kx = 0; kx < kernel; ++kx) {
      const int x = at.column + padding - kx;
      if (x < 0 || x % stride != 0 || x / stride >= out_width) continue;
      const long window =
          (static_cast<long>(at.item) * out_height + y / stride) * out_width + x / stride;
      sum += patches[(window * kernel * kernel + ky * kernel + kx) * channels + at.depth];
    }
  }
  gradient[i] = sum;
}

/// The largest of each window (the first of equals), windows side by side; `places` keeps where in
/// the input it was. What is left over at the edges is left out.
extern "C" __global__ void __launch_bounds__(256)
    max_pool_forward(int items, int height, int width, int channels, int window, const float* x,
                     float* out, int* places) {
  using namespace sluice::kernels::device;
  const int out_height = height / window;
  const int out_width = width / window;
  const long i = thread_index();
  if (i >= static_cast<long>(items) * out_height * out_width * channels) return;
  const Place at(i, out_height, out_width, channels);
  long best =
      ((static_cast<long>(at.item) * height + at.row * window) * width + at.column * window) *
          channels +
      at.depth;
  const long corner = best;
  for (int y = 0; y < window; ++y) {
    for (int x_step = 0; x_step < window; ++x_step) {
      const long from = corner + (static_cast<long>(y) * width + x_step) * channels;
      if (x[from] > x[best]) best = from;
    }
  }
  out[i] = x[best];
  places[i] = static_cast<int>(best);
}

/// gradient[places[i]] = out_gradient[i]; `gradient` is zero before. Windows do not overlap, so no
/// place is written twice.
extern "C" __global__ void __launch_bounds__(256)
    max_pool_backward(int count, const int* places, const float* out_gradient, float* gradient) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count) gradient[places[i]] = out_gradient[i];
}
