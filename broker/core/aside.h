// Shared tenants step aside for whole-GPU use, and come back. See aside.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// On its way to another GPU, to make room for an exclusive request.
inline bool aside_goes(const Tenant& tenant) { return tenant.yields && tenant.move_to != kNoGpu; }
/// It may run again. If an exclusive request kept it from that, it is not asked again for as long.
void aside_rest(Tenant& tenant, Nanos now);
/// Has everybody on the GPU stepped aside?
bool aside_clear(const Gpu& gpu);
/// Who keeps an exclusive request from its GPUs is asked to step aside; whose request is gone comes
/// back.
void aside_decide(State& state, Nanos now);
/// The tenant takes its GPUs whole: the promises of those who stepped aside rest until its end.
void aside_take(State& state, Tenant& exclusive, Actions& out);
/// Its GPUs are free again: the promises are in force, and their tenants come back.
void aside_return(State& state, const Tenant& exclusive, Actions& out);

}  // namespace sluice::core
