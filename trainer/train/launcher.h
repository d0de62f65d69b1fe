// The launcher of a training job: makes the plan, starts a process per rank, watches them, shows
// how far they are, and ends the job as one: when one rank is lost, all end, with one sentence that
// says which and how.
#pragma once

#include "trainer/train/options.h"

namespace sluice::train {

/// Runs the whole job and returns its exit code; 0 also when asked to stop (SIGTERM, SIGINT).
/// Throws Failure before any rank runs. Never calls the CUDA driver itself: a process that forks
/// must not have.
int launcher_run(const TrainOptions& options, int argc, char** argv);

/// GPUs that this process would see; a child looks.
int gpus_count();

}  // namespace sluice::train
