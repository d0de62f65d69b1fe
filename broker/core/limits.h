// What users and groups may have together. See limits.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// The request alone is more than its user, or its group, may ever have: the refusal's text; empty
/// = it is not.
std::string sums_excess(const State& state, const TenantAsked& ask);
/// Would the request take its user or its group beyond what they may have now?
bool sums_full(const State& state, const TenantAsked& ask);

/// Counts an admitted tenant with its user and its group, or no longer.
void sums_add(State& state, const Tenant& tenant);
void sums_remove(State& state, const Tenant& tenant);

}  // namespace sluice::core
