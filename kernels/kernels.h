// The launch table: what every kernel of lib/sluice_kernels.fatbin is called, how its grid follows
// from the shape of the work, and its arguments in order. Host side only, over the driver API's
// types; loads nothing and calls no driver, so that any program can launch these kernels in its own
// way.
#pragma once

#include <cuda.h>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sluice::kernels {

/// File name of the fat binary in the directory of libraries.
inline constexpr char kFatbinName[] = "sluice_kernels.fatbin";

enum class Kernel : std::uint8_t {
  kGemmNaiveNn,
  kGemmNaiveNt,
  kGemmNaiveTn,
  kGemmTiledNn,
  kGemmTiledNt,
  kGemmTiledTn,
  kGemmRegisterNn,
  kGemmRegisterNt,
  kGemmRegisterTn,
  kBiasForward,
  kBiasReluForward,
  kReluBackward,
  kColumnSum,
  kSplitSum,
  kSgdMomentum,
  kArrayScale,
  kArrayAdd,
  kWordStore,
  kSoftmaxCrossEntropy,
  kCorrectCount,
};
inline constexpr std::size_t kKernelCount = 20;

/// The name in the fat binary.
const char* kernel_name(Kernel kernel);

struct Extent {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

/// One launch, ready for cuLaunchKernel: no dynamic shared memory is used by any kernel here.
class Launch {
 public:
  static constexpr std::size_t kArgumentsMax = 8;

  Launch(Kernel which, Extent grid_extent, Extent block_extent)
      : kernel(which), grid(grid_extent), block(block_extent) {}

  template <class T>
  Launch& argument(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
    assert(count_ < kArgumentsMax);
    std::memcpy(&values_[count_++], &value, sizeof value);
    return *this;
  }
  /// The array that cuLaunchKernel takes; valid as long as this object.
  std::array<void*, kArgumentsMax> pointers() {
    std::array<void*, kArgumentsMax> out{};
    for (std::size_t i = 0; i < count_; ++i) out[i] = &values_[i];
    return out;
  }
  std::size_t argument_count() const { return count_; }

  Kernel kernel;
  Extent grid;
  Extent block;

 private:
  std::array<std::uint64_t, kArgumentsMax> values_{};
  std::size_t count_ = 0;
};

/// Which operand of C = op(A) op(B) is stored transposed: NN, NT (B is [n,k]), TN (A is [k,m]).
/// Row-major throughout.
enum class GemmForm : std::uint8_t { kNn = 0, kNt = 1, kTn = 2 };
enum class GemmRung : std::uint8_t { kNaive = 0, kTiled = 1, kRegister = 2 };

struct GemmShape {
  int m;
  int n;
  int k;
};

/// How a product is computed: on which rung, and in how many parts along k (1 = whole).
struct GemmPlan {
  GemmRung rung;
  int k_chunk;  // a multiple of 16, or k
  int parts;
};

/// The plan for a shape on a device of `multiprocessors`: register tiles unless they would be
/// mostly empty, and as many parts as fill the device. Fixed by the shape alone, so it never
/// changes while a job runs.
GemmPlan gemm_plan(const GemmShape& shape, int multiprocessors);
/// The whole product on one rung.
GemmPlan gemm_whole(GemmRung rung, const GemmShape& shape);

/// With plan.parts > 1, c takes [parts, m, n] partial products, for split_sum to add up.
Launch gemm(GemmForm form, const GemmPlan& plan, const GemmShape& shape, CUdeviceptr a,
            CUdeviceptr b, CUdeviceptr c);
/// out[count] = sum of partials[parts, count]
Launch split_sum(int count, int parts, CUdeviceptr partials, CUdeviceptr out);
/// x[rows, columns] += bias
Launch bias_forward(int rows, int columns, CUdeviceptr bias, CUdeviceptr x);
/// x[rows, columns] = max(0, x + bias)
Launch bias_relu_forward(int rows, int columns, CUdeviceptr bias, CUdeviceptr x);
/// gradient[i] = 0 where output[i] <= 0
Launch relu_backward(int count, CUdeviceptr output, CUdeviceptr gradient);
/// sums[column] = sum of x[., column], in an order fixed by the shape
Launch column_sum(int rows, int columns, CUdeviceptr x, CUdeviceptr sums);
/// velocity = momentum velocity + gradient; weights -= rate velocity
Launch sgd_momentum(int count, float rate, float momentum, CUdeviceptr gradient,
                    CUdeviceptr velocity, CUdeviceptr weights);
Launch array_scale(int count, float factor, CUdeviceptr x);
/// y += x
Launch array_add(int count, CUdeviceptr x, CUdeviceptr y);
/// losses[row]; gradient = (softmax - one hot) factor, or none when `gradient` is 0. Labels are
/// int32 in [0, columns).
Launch softmax_cross_entropy(int rows, int columns, float factor, CUdeviceptr logits,
                             CUdeviceptr labels, CUdeviceptr losses, CUdeviceptr gradient);
/// *count (int32) += rows whose argmax is the label
Launch correct_count(int rows, int columns, CUdeviceptr logits, CUdeviceptr labels,
                     CUdeviceptr count);
/// *(int*)address = value, checked by nobody: a wild pointer to order
Launch word_store(std::uint64_t address, int value);

}  // namespace sluice::kernels
