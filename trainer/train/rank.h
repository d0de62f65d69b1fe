// One rank of a training job: one process, one GPU, its share of every batch.
#pragma once

#include "trainer/train/options.h"

namespace sluice::train {

/// Exit code of a rank that ends because it lost the others: the launcher looks for the cause
/// elsewhere.
inline constexpr int kPeerLostExit = 3;

/// Trains as options.place says; throws Failure. The launcher has made the board, the directory and
/// the log.
void rank_run(const TrainOptions& options);

}  // namespace sluice::train
