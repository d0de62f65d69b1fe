// GELU in the tanh form of GPT-2 (Hendrycks and Gimpel, Gaussian Error Linear Units, 2016), forward
// and backward.
#pragma once

#include "kernels/reduce.cuh"

namespace sluice::kernels::device {

constexpr float kGeluRoot = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;

}  // namespace sluice::kernels::device

/// out = x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2
extern "C" __global__ void __launch_bounds__(256)
    gelu_forward(int count, const float* x, float* out) {
  using namespace sluice::kernels::device;
  const long i = thread_index();
  if (i >= count) return;
  const float value = x[i];
  const float inner = kGeluRoot * fmaf(kGeluCubic * value * value, value, value);
  out[i] = 0.5f * value * (1.0f + tanhf(inner));
}

/// gradient *= d gelu(x) / dx, in place; x is the forward pass's input
extern "C" __global__ void __launch_bounds__(256)
    gelu_backward(int count, const float* x, float* gradient) {
  using namespace sluice::kernels::device;
  const long i = thread_index();
  if (i >= count) return;
  const float value = x[i];
  const float square = value * value;
  const float tanh_inner = tanhf(kGeluRoot * fmaf(kGeluCubic * square, value, value));
  const float slope = kGeluRoot * fmaf(3.0f * kGeluCubic, square, 1.0f);
  gradient[i] *=
      0.5f * (1.0f + tanh_inner) + 0.5f * value * (1.0f - tanh_inner * tanh_inner) * slope;
}
