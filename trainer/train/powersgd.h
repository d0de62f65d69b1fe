// `--compress powersgd:RANK` (Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient
// Compression for Distributed Optimization", 2019). The gradient M [n, m] of a matrix, with what an
// earlier step has kept back, travels as two thin matrices:
//
//   P = M Q          all-reduced: r n floats; its columns are made orthonormal (modified
//                    Gram-Schmidt), on every rank with the same bits
//   Q = M^T P        all-reduced: r m floats; kept, as where the next step begins (warm start)
//   sum = P Q^T      what every rank takes for the sum of all ranks' M
//   M - sum / N      kept back by each of the N ranks for its next gradient (error feedback)
//
// So r (n + m) floats go through an all-reduce instead of n m, and every step is one round of power
// iteration towards the best approximation of rank r. Vectors, and matrices that would not become
// smaller, travel as they are; so do the extras. A bucket is one matrix, or what is between two.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trainer/model/network.h"
#include "trainer/train/reduction.h"

namespace sluice::train {

/// Rows and columns of a gradient that is compressed.
struct ThinMatrix {
  int rows = 0;
  int columns = 0;

  /// Of P and of Q.
  std::size_t left(int rank) const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(rank);
  }
  std::size_t right(int rank) const {
    return static_cast<std::size_t>(columns) * static_cast<std::size_t>(rank);
  }
};

/// None where the range travels as it is.
std::optional<ThinMatrix> powersgd_matrix(const ParameterRange& range, int rank);
/// That of a bucket of powersgd_buckets().
std::optional<ThinMatrix> powersgd_matrix(std::span<const ParameterRange> ranges,
                                          const Bucket& bucket, int rank);
/// All parameters, the highest first.
std::vector<Bucket> powersgd_buckets(std::span<const ParameterRange> ranges, int rank);

/// Of gradients [parameter_count + extras], in powersgd_buckets() and buckets of extras.
std::unique_ptr<BucketReduction> powersgd_reduction(int rank, Communicator& comm, int rank_count,
                                                    Stream& stream, CUdeviceptr gradients,
                                                    std::span<const ParameterRange> ranges);

}  // namespace sluice::train
