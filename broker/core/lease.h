// The life of a lease: opened, contended, closed, drained - or not drained. See lease.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Opens the tenant's lease on all its GPUs; each must be free. `contended` = others wait already.
void lease_open(State& state, Tenant& tenant, bool contended, Nanos now, Actions& out);

/// Closes it on all its GPUs and waits for the drains; without processes it is drained at once.
void lease_close(State& state, Tenant& tenant, Nanos now, Actions& out);

/// Tells the holder that others wait, or that nobody does any more.
void lease_contend(const State& state, Tenant& tenant, bool contended, Actions& out);

/// Announces windows that an open lease had for a part of it only: the latency band may interrupt a
/// gang from now on, or the pause of a gang is over that a single filled.
void lease_windows_usual(const State& state, Tenant& tenant, Actions& out);
/// The gang's turn is nearly used up: its next idle moment ends it.
void lease_turn_ends(const State& state, Tenant& gang, Nanos now, Actions& out);

/// Drain timeouts and gang let-through of a closing tenant.
void lease_timers(State& state, Tenant& tenant, Nanos now, Actions& out);
/// When lease_timers has something to do next for a closing tenant.
Nanos lease_timer_at(const State& state, const Tenant& tenant);

/// True when every process that uses the open lease has said that it is idle.
bool lease_idle(const Tenant& tenant);

void gate_wanted(State& state, const GateWanted& event, Nanos now, Actions& out);
void gate_idle(State& state, const GateIdle& event);
void gate_drained(State& state, const Drained& event, Nanos now, Actions& out);

void process_joined(State& state, const ProcessJoined& event);
/// Takes the lease of its tenant back; the drain is awaited.
void process_detached(State& state, const ProcessDetached& event, Nanos now, Actions& out);
/// Also ends the tenant if this was the last.
void process_gone(State& state, const ProcessGone& event, Nanos now, Actions& out);
void founder_gone(State& state, const FounderGone& event, Nanos now, Actions& out);
void founder_adopted(State& state, const FounderAdopted& event);
void job_released(State& state, const JobReleased& event, Nanos now, Actions& out);

/// Announces windows that changed on a GPU (an inference tenant came or went); `all` = announce in
/// any case (new policy).
void windows_refresh(State& state, Gpu& gpu, bool all, Actions& out);
/// How much may be in flight under the share's lease; 0 = any amount.
Nanos lease_window(const State& state, const Share& share);
/// The same for a share that comes to its GPU, or comes back to it: it was not told meanwhile.
void lease_window_renew(State& state, Share& share, Actions& out);
/// The first word of a new tenant: closed, epoch 1, with window and grace.
void lease_introduce(State& state, Tenant& tenant, Actions& out);

}  // namespace sluice::core
