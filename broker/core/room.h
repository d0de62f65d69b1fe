// Making room: the queue of wants for memory on the GPUs, and who goes out for them. See room.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

void memory_wanted(State& state, const MemoryWanted& event, Nanos now);

/// Serves the queue as far as room and time allow; chooses victims.
void room_decide(State& state, Nanos now, Actions& out);

/// Does the tenant wait in this queue?
bool wants_room(const State& state, const Tenant& tenant);

/// The process, or the tenant, wants nothing any more.
void wants_forget_process(State& state, const Tenant& tenant, ProcessId process);
void wants_forget(State& state, const Tenant& tenant);

}  // namespace sluice::core
