// Who may enter, and the queue of those who wait for it. See admission.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

void tenant_asked(State& state, const TenantAsked& event, Nanos now, Actions& out);
void request_gone(State& state, const RequestGone& event);

/// A tenant that has vacated its GPUs asks for them again, once (TenantAsked::returns).
void queue_return(State& state, TenantAsked ask, Nanos now);
/// What it asks for is something else now. Nothing to do for one that does not ask.
void queue_return_renew(State& state, TenantAsked ask);
/// Its place in the queue, or null.
const Waiter* queue_return_find(const State& state, TenantId tenant);
void queue_return_gone(State& state, TenantId tenant);

/// Admits whoever fits now, refuses whoever waited too long, announces positions that changed; so
/// much of it as one step may do.
void queue_pump(State& state, Nanos now, Actions& out);
/// At the beginning of a step: it goes on with what the one before has left.
void queue_resume(State& state);
/// Whether something is left for the next step.
bool queue_unfinished(const State& state);

// A decision is to take microseconds, also where the end of one tenant lets a whole line move up.
inline constexpr std::uint32_t kAdmissionsPerStep = 1;
inline constexpr std::uint32_t kNotesPerStep = 4;

}  // namespace sluice::core
