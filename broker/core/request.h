// A request is checked once: what no waiting could mend is refused at once. See request.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// What a percentage is under this policy. `by_default`: the request named none. `weight`: it wants
/// no guarantee.
SmKind sm_kind_of(const ClassPolicy& policy, SmMode mode, bool by_default, bool weight);

/// Fills in what was not asked for, and refuses (true, answered) what no state of the machine could
/// serve, or what it cannot wait for here.
bool request_refused(const State& state, TenantAsked& ask, Actions& out);

}  // namespace sluice::core
