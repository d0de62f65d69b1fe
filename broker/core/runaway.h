// Tenants that do not drain: how long others wait for them, when they are ended, what they leave to
// pay. See runaway.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Adds the time since the last step to what a tenant that does not drain has delayed others.
/// Precondition: nothing has changed since runaways_judge().
void runaway_time_passed(Tenant& tenant, Nanos now);
/// Warns and ends the runaways whose time is over.
void runaways_decide(State& state, Nanos now, Actions& out);
/// Notes which tenants delay others from now on. To be called when the leases are decided.
void runaways_judge(State& state);
/// Takes back the warning of a tenant that has drained, if there is one.
void runaway_drained(State& state, Tenant& tenant, Nanos now, Actions& out);
/// Begins the time of a runaway gang anew, once: it is opened again. A warning is taken back.
void runaway_turn_came(State& state, Tenant& tenant, Nanos now, Actions& out);
/// Others wait for it so long before it is warned (RunawayPolicy::kEnd).
Nanos runaway_limit(const State& state, const Tenant& tenant);
/// When runaways_decide() has something to do next, if nothing happens until then.
Nanos runaways_at(const State& state);
/// True if a runaway is on the GPU.
bool runaway_on(const Gpu& gpu);
/// Processes of the tenant that have not drained this share.
std::uint32_t share_undrained(const Share& share);

/// The share leaves its GPU: what it owes there stays with its user.
void debt_leave(State& state, Share& share, Nanos now);
/// Another order is chosen. Under it, users owe budgets and nothing else.
void debts_reordered(State& state);
/// The share comes to its GPU: it owes at least what its user's have left there.
void debt_take(State& state, Share& share, Nanos now);

}  // namespace sluice::core
