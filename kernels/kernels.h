// The launch table of dense layers, their loss and SGD: how every kernel's grid follows from the
// shape of the work, and its arguments in order. layers.h and optimizers.h have the others.
#pragma once

#include "kernels/launch.h"
#include "kernels/optimizers.h"

namespace sluice::kernels {

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

/// The product of operands of 16 bits by tensor cores, sums and result fp32. Always in
/// register-sized tiles; plan.rung does not matter.
Launch gemm_half(GemmForm form, HalfFormat format, const GemmPlan& plan, const GemmShape& shape,
                 CUdeviceptr a, CUdeviceptr b, CUdeviceptr c);
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
