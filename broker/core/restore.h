// Tenants that were admitted already: taken over from a broker that died, and given other limits
// while they run. See restore.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

void tenant_restored(State& state, const TenantRestored& event, Nanos now, Actions& out);
void tenants_numbered(State& state, const TenantsNumbered& event);
void limits_changed(State& state, const LimitsChanged& event, Nanos now, Actions& out);

}  // namespace sluice::core
