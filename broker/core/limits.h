// What users and groups may have together. See limits.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// The request alone is more than its user, or its group, may ever have: the refusal's text; empty
/// = it is not.
std::string sums_excess(const State& state, const TenantAsked& ask);
/// A limit that keeps a request waiting: what of it is in use, and how much it is (bytes, or
/// tenants).
struct Limit {
  protocol::QueueLimit which = protocol::QueueLimit::kNone;
  std::uint64_t used = 0;
  std::uint64_t most = 0;
};
/// The limit beyond which the request would take its user or its group now; none = it would not.
Limit limit_reached(const State& state, const TenantAsked& ask);
/// What a refusal says of it.
std::string limit_text(const TenantAsked& ask, const Limit& limit);

/// Counts an admitted tenant with its user and its group, or no longer.
void sums_add(State& state, const Tenant& tenant);
void sums_remove(State& state, const Tenant& tenant);

}  // namespace sluice::core
