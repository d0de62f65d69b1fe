// Charging GPU time: from lease time to measured time. See usage.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Charges the lease time since the last account, in full, until a measure says otherwise.
void share_account(State& state, Share& share, Nanos now);

/// The share's lease is about to be opened: what was charged so far is of the one before.
void share_episode_begin(Share& share);

/// The meter's word: replaces what was charged provisionally.
void share_settle(State& state, Share& share, Nanos busy_ns, Nanos now);

/// Accounts everything that is on any GPU, and lets the policies see the time pass.
void usage_time_passed(State& state, Nanos now);

void usage_seen(State& state, const UsageSeen& event, Nanos now);

/// Asks for the measure of every metered share of the tenant.
void usage_ask(State& state, Tenant& tenant, Nanos now, Actions& out);

}  // namespace sluice::core
