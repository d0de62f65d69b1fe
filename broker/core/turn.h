// The turns of gangs: how long they are, when one is urgent, and what interrupts them. See
// turn.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// How long a turn of the gang is that begins now.
Nanos turn_length(const State& state, const Tenant& gang);

/// The last part of the gang's turn, in which it ends with the step.
Nanos turn_step(const Tenant& gang);

/// When a gang goes before everything that has missed too much as of `at`.
Nanos turn_urgent_at(const State& state, const Tenant& gang, Nanos at);

/// How much more of its guaranteed time the gang misses before it is urgent.
double turn_patience(const State& state, const Tenant& gang);

/// It wanted to run or ran for so long. True = its patience is to be looked at again.
bool turn_time_passed(const State& state, Tenant& gang, Nanos passed);
/// A share of a gang was charged so much against its guarantee, or given back.
void turn_charged(Share& share, double ns);
/// Others have waited so long for one of its shares to drain.
void turn_overran(Tenant& gang, Nanos ns);

/// A debt, or a long pause, kept it from its GPUs: nothing of that time is owed to it.
void turn_owed_nothing(Tenant& gang);
/// A new gang begins with `ns` that its user's gangs had beyond their guarantee.
void turn_begins_ahead(Tenant& gang, double ns);

/// How long the holder may be idle while others wait before it gives its GPUs back. Others may use
/// the pauses of a gang where what they have in flight has ended when it wants its GPUs again, and
/// where it is not behind.
Nanos turn_grace(const State& state, const Tenant& tenant);

/// For how long the latency band does not interrupt the turn of an urgent gang.
Nanos turn_protected(const Tenant& gang);

/// The window of an urgent gang's turn.
Nanos turn_window(const Tenant& gang);

/// The single's lease is closed and drained.
void turn_single_drained(State& state, const Tenant& single, Nanos now);

/// The gang is idle within its turn and gives its GPUs back.
void turn_paused(State& state, Tenant& gang, Nanos now);
/// How long a gang pauses on the GPU, as far as is known. 0 = none does.
Nanos turn_pause_left(const Gpu& gpu, Nanos now);

/// The gang's turn has come on all its GPUs, or has not come after all.
void turn_comes(Tenant& gang, bool come, Nanos now);
/// The gang's lease is about to be opened: its turn begins or goes on.
void turn_open(const State& state, Tenant& gang, bool urgent, Nanos now);
/// The last part of the turn begins: it ends with a step now, and is as long as the debt asks.
void turn_ends(const State& state, Tenant& gang, Nanos now);
/// The gang's lease is closed. Unless its turn is `over` the rest of it is kept.
void turn_closed(State& state, Tenant& gang, bool over, Nanos now);
/// The gang asks again: a turn that it left for long is over.
void turn_resumed(State& state, Tenant& gang, Nanos now);

}  // namespace sluice::core
