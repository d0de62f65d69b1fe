// Holds: the words that stop a tenant's processes and order their memory out or in. See hold.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Somebody has not acknowledged the hold in force, or has not answered the order in force.
bool acks_pending(const Tenant& tenant);
bool moves_pending(const Tenant& tenant);
/// The order in force is this one (protocol::kHoldOut or kHoldIn).
bool hold_ordered(const Tenant& tenant, std::uint32_t flag);

/// Where it is from now on; the time since the last change is put down as suspending or restoring
/// where it was that.
void residence_set(Tenant& tenant, Residence residence, Nanos now);
/// How long it has been on its way out and on its way in, up to now.
struct Ways {
  Nanos suspending_ns = 0;
  Nanos restoring_ns = 0;
};
Ways ways_of(const Tenant& tenant, Nanos now);
/// A new hold, or the one in force with another epoch: everybody has to acknowledge it.
void hold_set(Tenant& tenant, Nanos now, Actions& out);
/// It is over, and so are the answers that were to come; what it had in the host is returned.
void hold_clear(State& state, Tenant& tenant, Nanos now, Actions& out);
/// Everybody has acknowledged: their memory out (kHoldOut) or in (kHoldIn), in this residence.
void hold_order(Tenant& tenant, std::uint32_t flag, Residence residence, Nanos now, Actions& out);

void hold_acked(State& state, const HoldAcked& event);
void move_done(State& state, const MoveDone& event);
/// A process that registers during a hold has to acknowledge it like the others.
void hold_joined(Tenant& tenant, Process& process);

}  // namespace sluice::core
