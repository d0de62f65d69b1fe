// What a job that is out for long leaves to others, and how it gets it back. See vacate.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// A tenant has used its GPUs for none of the time after which its class has it leave them. It goes
/// out, if it can be moved by swap, until it wants its GPUs.
void tenant_idle(State& state, const TenantIdle& event, Nanos now);

/// It wants its GPUs again: its rest is over, whatever has become of it.
void rest_look(const State& state, Tenant& tenant);

/// For a tenant that is out: gives its promises free where it is to stay out, and asks for them
/// again where it is to come back.
void vacate_look(State& state, Tenant& tenant, Nanos now, Actions& out);

/// Its turn in the queue has come, and its GPUs have room: they are promised to it as before.
void vacated_return(State& state, Tenant& tenant, Nanos now, Actions& out);

/// What it asks for to come back. Precondition: it is vacated.
TenantAsked vacated_ask(const State& state, const Tenant& tenant);

/// Takes it out of the queue, if it is there.
void vacated_stays(State& state, const Tenant& tenant);

}  // namespace sluice::core
