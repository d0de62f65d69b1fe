// Where a tenant's memory is: the way off its GPUs and back, step by step. See stay.cpp; the
// questions about it are in leaving.h.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Does everything that is due for the tenants that are not where they are to be. To be called
/// after anything that bears on one of them.
void stays_decide(State& state, Nanos now, Actions& out);
/// When it has something to do if nothing else happens.
Nanos stays_at(const State& state, Nanos now);
/// A reason has come or gone: the tenant is looked after from now on.
void stay_look(State& state, Tenant& tenant);
/// There is room for it on all its GPUs.
void stay_return(State& state, Tenant& tenant, Nanos now, Actions& out);
/// What is swapped out of it is ordered in.
void stay_swap_in(State& state, Tenant& tenant, Nanos now, Actions& out);
/// A tenant whose memory is out since a broker before this one: held, and ordered out.
void stay_restore(State& state, Tenant& tenant, const std::vector<GpuUuid>& frozen_on, Nanos now,
                  Actions& out);
/// The tenant is over: what it was charged is returned.
void stay_forget(State& state, Tenant& tenant);

}  // namespace sluice::core
