// A request is checked once: what no waiting could mend is refused at once. See request.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Fills in what was not asked for, and refuses (true, answered) what no state of the machine could
/// serve, or what it cannot wait for here.
bool request_refused(const State& state, TenantAsked& ask, Actions& out);

}  // namespace sluice::core
