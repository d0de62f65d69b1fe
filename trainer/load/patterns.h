// The patterns in which sluice-load launches its kernels.
#pragma once

#include "trainer/load/options.h"

namespace sluice::train {

/// Runs the pattern until standard input is closed; once and calibrate end by themselves. Throws
/// Failure.
void load_run(const LoadOptions& options);

/// The pattern gang: a rank on each of the first GPUs, which end together.
void load_gang_run(const LoadOptions& options);

/// Returns true once standard input is closed.
bool load_is_over();

}  // namespace sluice::train
