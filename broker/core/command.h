// What people ask for: suspend, resume, move; a GPU that takes nobody new. See command.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

void command_asked(State& state, const CommandAsked& event, Nanos now, Actions& out);

/// Answers the commands that are done now that the tenant is where it is.
void commands_look(State& state, const Tenant& tenant, Nanos now, Actions& out);
/// They cannot be done.
void commands_fail(State& state, const Tenant& tenant, RefusalCode code, const std::string& text,
                   Nanos now, Actions& out);

/// Why the tenant cannot be moved to this GPU now; code kNone = it can.
TenantRefused move_refusal(const State& state, const Tenant& tenant, std::uint32_t to);
/// Nothing of the tenant is on any GPU: its share is one of another GPU from now on.
void share_switch(State& state, Share& share, std::uint32_t to, Actions& out);

/// The device is gone: nobody is admitted there, and its tenants are told.
void gpu_lost(State& state, const GpuLost& event, Nanos now, Actions& out);

}  // namespace sluice::core
