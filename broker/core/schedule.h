// Whose turn it is: the lease decisions of every GPU and of the gangs across them. See schedule.cpp
// and gang.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Makes every decision that is due at `now`.
void schedule(State& state, Nanos now, Actions& out);
/// When schedule has something to do again if nothing else happens.
Nanos schedule_at(State& state, Nanos now);

/// Enters or removes the tenant in the waiting lists of its GPUs, after anything that bears on it.
void tenant_waiting_update(State& state, Tenant& tenant, Nanos now);

/// May this waiting tenant be opened at all (no cap in force on any of its GPUs)?
bool tenant_may_run(const Tenant& tenant);
Share& share_on(Tenant& tenant, std::uint32_t gpu);

// gang.cpp
/// To be called before a gang begins or ends to wait or to hold its GPUs.
void gang_changes(State& state, Tenant& gang, Nanos now);
/// Enters or removes a gang in the line of the gangs by whether it waits.
void gang_waits(State& state, Tenant& gang);
/// The gang's lease is closed.
void gang_closed(State& state, Tenant& gang, Nanos now);
/// Of a gang's share so much was charged, or given back.
void gang_charged(State& state, Share& share, double ns);
/// No debt keeps the waiting gang from its GPUs any more.
void gang_released(State& state, Tenant& gang, Nanos now);
/// Before and after weights of any GPU's shares change. What the gangs weigh is taken anew once a
/// step at most, or before somebody asks: a step may admit many.
void gangs_settle(State& state, Nanos now);
inline void gangs_reweigh(State& state) { state.gangs_stale = true; }
/// Opens the gangs whose turn has come on all their GPUs, after closing who holds them. True =
/// something changed.
bool gangs_decide(State& state, Nanos now, Actions& out);
/// The holder's slice is over: notes for every waiting gang whether its turn has come on the
/// holder's GPUs.
void gangs_take_turns(State& state, Tenant& holder, Nanos now);
/// Has it been kept from its guaranteed share for too long? Then it goes before the latency band.
bool gang_urgent(const Tenant& gang, Nanos now);

}  // namespace sluice::core
