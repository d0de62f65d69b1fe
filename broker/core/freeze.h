// The driver's checkpoint: out, to another GPU, and back. See freeze.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// All processes have acknowledged the hold: into the checkpoint with them.
void freeze(const State& state, Tenant& tenant, Nanos now, Actions& out);
/// Out, and to be on another GPU.
void frozen_move(State& state, Tenant& tenant, Nanos now, Actions& out);
/// There is room for it on all its GPUs.
void thaw(Tenant& tenant, Nanos now, Actions& out);

void checkpoint_done(State& state, const CheckpointDone& event, Nanos now, Actions& out);

}  // namespace sluice::core
