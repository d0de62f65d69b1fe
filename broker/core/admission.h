// Who may enter: checks of a request, placement, the queue, and the end of a tenant. See
// admission.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

void tenant_asked(State& state, const TenantAsked& event, Nanos now, Actions& out);
void request_gone(State& state, const RequestGone& event);

/// The tenant is over: leases, promises and counts are returned and the caller is told.
void tenant_end(State& state, Tenant& tenant, Nanos now, Actions& out);
/// A released exclusive tenant gives its GPUs back though its processes live on.
void tenant_hand_back(State& state, Tenant& tenant, Nanos now, Actions& out);

/// Admits whoever fits now, refuses whoever waited too long, announces positions that changed.
void queue_pump(State& state, Nanos now, Actions& out);

}  // namespace sluice::core
