// Where a move ends: in, out, or given up. See arrive.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// It may run again.
void stay_in(State& state, Tenant& tenant, Nanos now);
/// What can be moved of it is in the host.
void stay_out(State& state, Tenant& tenant, Nanos now);
/// It stays where it is.
void stay_given_up(State& state, Tenant& tenant, RefusalCode code, const std::string& text,
                   Nanos now, Actions& out);

/// One more failure in a row: it is left alone for twice as long as after the one before.
void failure_count(const State& state, Tenant& tenant, const std::string& text, Nanos now,
                   Actions& out);
/// So long is it left alone.
Nanos failure_pause(const State& state, const Tenant& tenant);
/// All reasons to go out are dropped, and those who gave them are told.
void reasons_drop(State& state, Tenant& tenant, RefusalCode code, const std::string& text,
                  Nanos now, Actions& out);

/// Tells the caller what to remember of it.
void stay_note(const Tenant& tenant, Actions& out);

}  // namespace sluice::core
