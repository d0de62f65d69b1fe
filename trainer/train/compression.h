// Fewer bytes on the wire for the same gradients: `--compress`.
//
//   fp16, bf16   every gradient in 16 bits, summed in 16 bits on its way. Half the bytes. fp16
//   keeps
//                three digits and loses what is below 6e-8; bf16 keeps two and loses nothing small.
//   topk:RATIO   of each bucket and rank only the RATIO of the gradients that are largest, as pairs
//                of index and value (8 bytes); every rank gets all ranks' pairs. What is not sent
//                stays on the rank and is added to its next gradient (error feedback; Stich et al.,
//                "Sparsified SGD with Memory", 2018), so that it arrives later instead of never.
//   powersgd:RANK  matrices as products of thin ones: powersgd.h.
//
// The sum of losses and the wish to stop travel apart, exactly.
#pragma once

#include <memory>

#include "trainer/train/reduction.h"

namespace sluice::train {

inline constexpr std::size_t kPairBytes = 8;  // of top-k: int32 index, float value

/// Of one bucket of `count`: at least one.
std::size_t topk_of(double ratio, std::size_t count);

/// A reduction of gradients [parameter_count + extras] where buckets from parameter_count on are
/// extras; not for kPowersgd. Every rank must use the same settings and buckets;
/// `bucket_floats_max` is the largest.
std::unique_ptr<BucketReduction> compressed_reduction(const CompressionSettings& settings,
                                                      Communicator& comm, int rank_count,
                                                      Stream& stream, CUdeviceptr gradients,
                                                      std::size_t parameter_count,
                                                      std::size_t bucket_floats_max);

}  // namespace sluice::train
