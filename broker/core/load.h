// How busy the GPUs have been lately, for placement. See load.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Brings Gpu::load of every GPU up to now. To be called at the beginning of a step.
void loads_look(State& state, Nanos now);

}  // namespace sluice::core
