// Many debug jobs, as a lab full of people starts them: a Poisson stream of processes, each of
// which lives its own life (plan.h) and is watched from outside only, by what it prints and how it
// ends.
#pragma once

#include "trainer/debug/options.h"

namespace sluice::train {

/// Starts options.jobs jobs, waits for all, reports. 0, also when jobs failed as they should.
int stream_run(const DebugOptions& options);

}  // namespace sluice::train
