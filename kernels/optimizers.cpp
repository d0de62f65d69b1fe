// Grids and arguments of the optimizers' kernels; the argument order here is the parameter order in
// the .cuh files.
#include "kernels/optimizers.h"

#include <algorithm>
#include <cmath>

namespace sluice::kernels {
namespace {

constexpr int kPartsMax = 256;     // blocks of a reduction: one warp can finish it
constexpr int kPartValues = 4096;  // below which another block is not worth it
constexpr int kTopkChunk = 4096;   // values of a block, a multiple of its 256 threads
constexpr unsigned kTopkThreads = 256;

}  // namespace

Launch adamw(int count, const AdamwSettings& settings, int step, CUdeviceptr gradient,
             CUdeviceptr means, CUdeviceptr squares, CUdeviceptr weights) {
  assert(step >= 1);
  const auto correction = [step](float decay) {
    return static_cast<float>(1.0 - std::pow(static_cast<double>(decay), step));
  };
  Launch launch = elementwise(Kernel::kAdamw, count);
  launch.arguments(count, settings.rate, settings.first, settings.second, settings.epsilon);
  launch.arguments(settings.decay, correction(settings.first), correction(settings.second));
  return launch.arguments(gradient, means, squares, weights);
}

Launch rmsprop(int count, const RmspropSettings& settings, CUdeviceptr gradient,
               CUdeviceptr squares, CUdeviceptr velocity, CUdeviceptr weights) {
  Launch launch = elementwise(Kernel::kRmsprop, count);
  launch.arguments(count, settings.rate, settings.smoothing, settings.epsilon, settings.momentum);
  return launch.arguments(gradient, squares, velocity, weights);
}

int square_sum_parts(int count) { return std::clamp(count / kPartValues, 1, kPartsMax); }

Launch square_sum(int count, CUdeviceptr x, CUdeviceptr partials) {
  assert(count > 0);
  const auto parts = static_cast<unsigned>(square_sum_parts(count));
  return Launch(Kernel::kSquareSum, {parts}, {256}).arguments(count, x, partials);
}

Launch norm_finish(int parts, CUdeviceptr partials, CUdeviceptr norm) {
  assert(parts > 0);
  return Launch(Kernel::kNormFinish, {1}, {32}).arguments(parts, partials, norm);
}

Launch norm_clip(int count, float limit, CUdeviceptr norm, CUdeviceptr x) {
  return elementwise(Kernel::kNormClip, count).arguments(count, limit, norm, x);
}

Launch not_finite(int count, CUdeviceptr x, CUdeviceptr found) {
  return elementwise(Kernel::kNotFinite, count).arguments(count, x, found);
}

Launch cast_to_half(HalfFormat format, int count, CUdeviceptr x, CUdeviceptr out) {
  const Kernel kernel = format == HalfFormat::kFp16 ? Kernel::kCastToFp16 : Kernel::kCastToBf16;
  return elementwise(kernel, count).arguments(count, x, out);
}

Launch cast_from_half(HalfFormat format, int count, CUdeviceptr x, CUdeviceptr out) {
  const Kernel kernel = format == HalfFormat::kFp16 ? Kernel::kCastFromFp16 : Kernel::kCastFromBf16;
  return elementwise(kernel, count).arguments(count, x, out);
}

int topk_blocks(int count) { return static_cast<int>(ceil_divide(count, kTopkChunk)); }

Launch topk_histogram(int count, int shift, CUdeviceptr search, CUdeviceptr x,
                      CUdeviceptr histogram) {
  assert(shift >= 0 && shift <= 24 && shift % 8 == 0);
  const auto blocks = static_cast<unsigned>(topk_blocks(count));
  return Launch(Kernel::kTopkHistogram, {blocks}, {kTopkThreads})
      .arguments(count, shift, search, x, histogram);
}

Launch topk_pick(int shift, CUdeviceptr search, CUdeviceptr histogram) {
  return Launch(Kernel::kTopkPick, {1}, {kTopkThreads}).arguments(shift, search, histogram);
}

Launch topk_count(int count, CUdeviceptr search, CUdeviceptr x, CUdeviceptr above,
                  CUdeviceptr equal) {
  const auto blocks = static_cast<unsigned>(topk_blocks(count));
  return Launch(Kernel::kTopkCount, {blocks}, {kTopkThreads})
      .arguments(count, kTopkChunk, search, x, above, equal);
}

Launch topk_offsets(int count, CUdeviceptr above, CUdeviceptr equal) {
  return Launch(Kernel::kTopkOffsets, {1}, {32}).arguments(topk_blocks(count), above, equal);
}

Launch topk_take(int count, CUdeviceptr search, CUdeviceptr above, CUdeviceptr equal, CUdeviceptr x,
                 CUdeviceptr indices, CUdeviceptr values) {
  const auto blocks = static_cast<unsigned>(topk_blocks(count));
  Launch launch(Kernel::kTopkTake, {blocks}, {kTopkThreads});
  return launch.arguments(count, kTopkChunk, search, above, equal, x, indices, values);
}

Launch topk_add(int k, CUdeviceptr indices, CUdeviceptr values, CUdeviceptr x) {
  return elementwise(Kernel::kTopkAdd, k).arguments(k, indices, values, x);
}

Launch gram_schmidt(int rows, int columns, CUdeviceptr x) {
  assert(rows > 0 && columns > 0 && columns <= kGramSchmidtColumns);
  return Launch(Kernel::kGramSchmidt, {1}, {256}).arguments(rows, columns, x);
}

Launch array_add_scaled(int count, float factor, CUdeviceptr x, CUdeviceptr y) {
  return elementwise(Kernel::kArrayAddScaled, count).arguments(count, factor, x, y);
}

}  // namespace sluice::kernels
