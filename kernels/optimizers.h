// The launch table of what happens to gradients and weights: AdamW, RMSProp, norm and clipping, the
// search for overflow, casts, and top-k. SGD with momentum is in kernels.h.
#pragma once

#include "kernels/launch.h"

namespace sluice::kernels {

struct AdamwSettings {
  float rate;
  float first = 0.9f;     // beta 1
  float second = 0.999f;  // beta 2
  float epsilon = 1e-8f;
  float decay = 0.0f;  // decoupled; 0 is Adam
};
/// The update of step `step` (the first is 1): means, squares and weights [count]
Launch adamw(int count, const AdamwSettings& settings, int step, CUdeviceptr gradient,
             CUdeviceptr means, CUdeviceptr squares, CUdeviceptr weights);

struct RmspropSettings {
  float rate;
  float smoothing = 0.99f;
  float epsilon = 1e-8f;
  float momentum = 0.0f;
};
Launch rmsprop(int count, const RmspropSettings& settings, CUdeviceptr gradient,
               CUdeviceptr squares, CUdeviceptr velocity, CUdeviceptr weights);

/// Blocks of square_sum, and floats in its `partials`: fixed by `count`.
int square_sum_parts(int count);
/// partials[square_sum_parts(count)] of the sum of squares. Several arrays add up when each is
/// given its own stretch of one array of partials.
Launch square_sum(int count, CUdeviceptr x, CUdeviceptr partials);
/// *norm = sqrt(sum of partials[parts])
Launch norm_finish(int parts, CUdeviceptr partials, CUdeviceptr norm);
/// x *= limit / *norm where *norm > limit
Launch norm_clip(int count, float limit, CUdeviceptr norm, CUdeviceptr x);
/// *found (int32) = 1 where a value is infinite or not a number
Launch not_finite(int count, CUdeviceptr x, CUdeviceptr found);

enum class HalfFormat : std::uint8_t { kFp16 = 0, kBf16 = 1 };
/// fp32 to 16 bits, to nearest even; fp16 overflows to infinity
Launch cast_to_half(HalfFormat format, int count, CUdeviceptr x, CUdeviceptr out);
Launch cast_from_half(HalfFormat format, int count, CUdeviceptr x, CUdeviceptr out);

/// Top-k takes the `k` values of largest magnitude out of x[count], ascending by index; of equals
/// the first. Its memory: a search (2 words: {0, k} before each use), a histogram of 256 words
/// (zero before the first use, and after each), and two arrays of topk_blocks(count) words. The
/// launches in order: for shift in 24, 16, 8, 0: histogram and pick; then count, offsets, take.
int topk_blocks(int count);
Launch topk_histogram(int count, int shift, CUdeviceptr search, CUdeviceptr x,
                      CUdeviceptr histogram);
Launch topk_pick(int shift, CUdeviceptr search, CUdeviceptr histogram);
Launch topk_count(int count, CUdeviceptr search, CUdeviceptr x, CUdeviceptr above,
                  CUdeviceptr equal);
Launch topk_offsets(int count, CUdeviceptr above, CUdeviceptr equal);
/// indices[k] (int32) and values[k]; x is zero where they were
Launch topk_take(int count, CUdeviceptr search, CUdeviceptr above, CUdeviceptr equal, CUdeviceptr x,
                 CUdeviceptr indices, CUdeviceptr values);
/// x[indices[i]] += values[i]
Launch topk_add(int k, CUdeviceptr indices, CUdeviceptr values, CUdeviceptr x);

inline constexpr int kGramSchmidtColumns = 32;
/// The columns of x[rows, columns] become orthonormal, or zero where they depend on those before
/// them; at most kGramSchmidtColumns
Launch gram_schmidt(int rows, int columns, CUdeviceptr x);
/// y += factor x
Launch array_add_scaled(int count, float factor, CUdeviceptr x, CUdeviceptr y);

}  // namespace sluice::kernels
