// A tenant enters the books and leaves them. See tenancy.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// The request gets these GPUs; a dry run is answered and changes nothing.
void tenant_admit(State& state, const TenantAsked& ask, Nanos asked_at,
                  const std::vector<std::uint32_t>& gpus, Nanos now, Actions& out);
/// The tenant is over: leases, promises and counts are returned and the caller is told.
void tenant_end(State& state, Tenant& tenant, Nanos now, Actions& out);
/// A released exclusive tenant gives its GPUs back though its processes live on.
void tenant_hand_back(State& state, Tenant& tenant, Nanos now, Actions& out);

}  // namespace sluice::core
