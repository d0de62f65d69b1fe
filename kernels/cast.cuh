// Between fp32 and the half formats, rounding to nearest even; out of range becomes infinity in
// fp16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/reduce.cuh"

extern "C" __global__ void __launch_bounds__(256)
    cast_to_fp16(int count, const float* x, __half* out) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count) out[i] = __float2half_rn(x[i]);
}

extern "C" __global__ void __launch_bounds__(256)
    cast_from_fp16(int count, const __half* x, float* out) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count) out[i] = __half2float(x[i]);
}

extern "C" __global__ void __launch_bounds__(256)
    cast_to_bf16(int count, const float* x, __nv_bfloat16* out) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count) out[i] = __float2bfloat16_rn(x[i]);
}

extern "C" __global__ void __launch_bounds__(256)
    cast_from_bf16(int count, const __nv_bfloat16* x, float* out) {
  const long i = sluice::kernels::device::thread_index();
  if (i < count) out[i] = __bfloat162float(x[i]);
}
