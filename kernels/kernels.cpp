// Grids and arguments of the launch table; the argument order here is the parameter order in the
// .cuh files.
#include "kernels/kernels.h"

#include <algorithm>

namespace sluice::kernels {
namespace {

constexpr unsigned kThreads = 256;  // of the element-wise kernels
constexpr unsigned kCountThreads = 128;
constexpr unsigned kNaiveX = 32;
constexpr unsigned kNaiveY = 8;
constexpr unsigned kTile = 16;
constexpr unsigned kBlock = 64;
constexpr unsigned kTensorThreads = 128;
constexpr int kHalfBlock = 32;
constexpr int kChunkStep = 16;  // depth of a tile
constexpr int kChunkMin = 32;   // shorter chunks cost more in partial sums than they bring
// Blocks of 256 threads that make a multiprocessor busy (1,024 threads on the smallest that is
// supported).
constexpr int kBlocksPerSm = 4;

#define SLUICE_KERNEL_NAME(value, name) #name,
constexpr std::array<const char*, kKernelCount> kNames = {SLUICE_KERNELS(SLUICE_KERNEL_NAME)};
#undef SLUICE_KERNEL_NAME

}  // namespace

const char* kernel_name(Kernel kernel) {
  const auto index = static_cast<std::size_t>(kernel);
  assert(index < kKernelCount);
  return kNames[index];
}

GemmPlan gemm_whole(GemmRung rung, const GemmShape& shape) { return {rung, shape.k, 1}; }

GemmPlan gemm_plan(const GemmShape& shape, int multiprocessors) {
  assert(multiprocessors > 0);
  const int parts_max = std::max(1, shape.k / kChunkMin);
  const auto blocks_of = [&](unsigned tile) {
    return static_cast<std::int64_t>(ceil_divide(shape.m, tile)) * ceil_divide(shape.n, tile);
  };
  // Half-empty register tiles still pay; emptier ones, or too few of them, do not.
  const bool registers = shape.m >= kHalfBlock && shape.n >= kHalfBlock &&
                         blocks_of(kBlock) * parts_max >= multiprocessors;
  const std::int64_t blocks = blocks_of(registers ? kBlock : kTile);
  const std::int64_t wanted = kBlocksPerSm * multiprocessors;
  const int parts =
      static_cast<int>(std::clamp<std::int64_t>((wanted + blocks - 1) / blocks, 1, parts_max));
  GemmPlan plan{registers ? GemmRung::kRegister : GemmRung::kTiled, shape.k, 1};
  if (parts > 1) {
    const int exact = (shape.k + parts - 1) / parts;
    plan.k_chunk = std::max(kChunkMin, exact / kChunkStep * kChunkStep);
    plan.parts = (shape.k + plan.k_chunk - 1) / plan.k_chunk;
  }
  return plan;
}

Launch gemm(GemmForm form, const GemmPlan& plan, const GemmShape& shape, CUdeviceptr a,
            CUdeviceptr b, CUdeviceptr c) {
  assert(shape.m > 0 && shape.n > 0 && shape.k > 0);
  assert(plan.parts == 1 || plan.k_chunk % kChunkStep == 0);
  assert(static_cast<std::int64_t>(plan.k_chunk) * plan.parts >= shape.k);
  const auto kernel =
      static_cast<Kernel>(static_cast<unsigned>(plan.rung) * 3 + static_cast<unsigned>(form));
  unsigned tile_x = kNaiveX;
  unsigned tile_y = kNaiveY;
  Extent block{kNaiveX, kNaiveY};
  if (plan.rung == GemmRung::kTiled) {
    tile_x = tile_y = kTile;
    block = {kTile, kTile};
  } else if (plan.rung == GemmRung::kRegister) {
    tile_x = tile_y = kBlock;
    block = {kThreads, 1};
  }
  const Extent grid{ceil_divide(shape.n, tile_x), ceil_divide(shape.m, tile_y),
                    static_cast<unsigned>(plan.parts)};
  Launch launch(kernel, grid, block);
  launch.argument(shape.m).argument(shape.n).argument(shape.k).argument(plan.k_chunk);
  launch.argument(a).argument(b).argument(c);
  return launch;
}

Launch gemm_half(GemmForm form, HalfFormat format, const GemmPlan& plan, const GemmShape& shape,
                 CUdeviceptr a, CUdeviceptr b, CUdeviceptr c) {
  assert(shape.m > 0 && shape.n > 0 && shape.k > 0);
  assert(plan.parts == 1 || plan.k_chunk % kChunkStep == 0);
  assert(static_cast<std::int64_t>(plan.k_chunk) * plan.parts >= shape.k);
  const auto kernel =
      static_cast<Kernel>(static_cast<unsigned>(Kernel::kGemmTensorFp16Nn) +
                          static_cast<unsigned>(format) * 3 + static_cast<unsigned>(form));
  const Extent grid{ceil_divide(shape.n, kBlock), ceil_divide(shape.m, kBlock),
                    static_cast<unsigned>(plan.parts)};
  return Launch(kernel, grid, {kTensorThreads})
      .arguments(shape.m, shape.n, shape.k, plan.k_chunk, a, b, c);
}

Launch split_sum(int count, int parts, CUdeviceptr partials, CUdeviceptr out) {
  assert(parts > 0);
  Launch launch = elementwise(Kernel::kSplitSum, count);
  return launch.argument(count).argument(parts).argument(partials).argument(out);
}

Launch bias_forward(int rows, int columns, CUdeviceptr bias, CUdeviceptr x) {
  Launch launch = elementwise(Kernel::kBiasForward, elements(rows, columns));
  return launch.argument(rows).argument(columns).argument(bias).argument(x);
}

Launch bias_relu_forward(int rows, int columns, CUdeviceptr bias, CUdeviceptr x) {
  Launch launch = elementwise(Kernel::kBiasReluForward, elements(rows, columns));
  return launch.argument(rows).argument(columns).argument(bias).argument(x);
}

Launch relu_backward(int count, CUdeviceptr output, CUdeviceptr gradient) {
  Launch launch = elementwise(Kernel::kReluBackward, count);
  return launch.argument(count).argument(output).argument(gradient);
}

Launch column_sum(int rows, int columns, CUdeviceptr x, CUdeviceptr sums) {
  assert(rows > 0);
  Launch launch(Kernel::kColumnSum, {ceil_divide(columns, 32), 1}, {32, 8});
  return launch.argument(rows).argument(columns).argument(x).argument(sums);
}

Launch sgd_momentum(int count, float rate, float momentum, CUdeviceptr gradient,
                    CUdeviceptr velocity, CUdeviceptr weights) {
  Launch launch = elementwise(Kernel::kSgdMomentum, count);
  launch.argument(count).argument(rate).argument(momentum);
  return launch.argument(gradient).argument(velocity).argument(weights);
}

Launch array_scale(int count, float factor, CUdeviceptr x) {
  return elementwise(Kernel::kArrayScale, count).argument(count).argument(factor).argument(x);
}

Launch array_add(int count, CUdeviceptr x, CUdeviceptr y) {
  return elementwise(Kernel::kArrayAdd, count).argument(count).argument(x).argument(y);
}

Launch softmax_cross_entropy(int rows, int columns, float factor, CUdeviceptr logits,
                             CUdeviceptr labels, CUdeviceptr losses, CUdeviceptr gradient) {
  assert(columns > 0);
  Launch launch = rowwise(Kernel::kSoftmaxCrossEntropy, rows);
  launch.argument(rows).argument(columns).argument(factor);
  return launch.argument(logits).argument(labels).argument(losses).argument(gradient);
}

Launch correct_count(int rows, int columns, CUdeviceptr logits, CUdeviceptr labels,
                     CUdeviceptr count) {
  assert(columns > 0);
  Launch launch(Kernel::kCorrectCount, {ceil_divide(rows, kCountThreads), 1}, {kCountThreads, 1});
  return launch.argument(rows).argument(columns).argument(logits).argument(labels).argument(count);
}

Launch word_store(std::uint64_t address, int value) {
  return Launch(Kernel::kWordStore, {1, 1}, {32, 1}).argument(address).argument(value);
}

}  // namespace sluice::kernels
