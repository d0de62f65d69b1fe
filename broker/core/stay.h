// Holds and moves: how a tenant's memory gets off its GPUs and back. See stay.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Is there a reason for the tenant's memory to be out, or to go out?
bool stay_out_wanted(const Tenant& tenant);
/// Is it out, with nothing that keeps it there, and wanted back by a process or by the core?
bool stay_back_wanted(const State& state, const Tenant& tenant);
/// On its way out, with so much that its leaving will free on the GPU of this share.
Bytes stay_leaving(const State& state, const Share& share, Nanos now);

/// The host memory that its leaving will take and that it is not charged for yet; 0 = it does not
/// leave.
Bytes stay_host_due(const Tenant& tenant);
/// What its leaving would take there.
Bytes stay_host_cost(const Tenant& tenant);
/// Host memory that the user may still fill beside those of it that leave now.
Bytes stay_host_left(const State& state, std::uint32_t uid);
/// A move that nobody has answered for so long that nobody but its tenant waits for it.
bool stay_stuck(const State& state, const Tenant& tenant, Nanos now);

/// Does everything that is due for the tenants that are not where they are to be. To be called
/// after anything that bears on one of them.
void stays_decide(State& state, Nanos now, Actions& out);
/// When it has something to do if nothing else happens.
Nanos stays_at(const State& state, Nanos now);
/// Tells the caller what to remember of it.
void stay_note(const Tenant& tenant, Actions& out);
/// A reason has come or gone: the tenant is looked after from now on.
void stay_look(State& state, Tenant& tenant);
/// There is room for it on all its GPUs.
void stay_return(State& state, Tenant& tenant, Nanos now, Actions& out);
/// A tenant whose memory is out since a broker before this one: held, and ordered out.
void stay_restore(State& state, Tenant& tenant, const std::vector<GpuUuid>& frozen_on, Nanos now,
                  Actions& out);

void hold_acked(State& state, const HoldAcked& event);
void move_done(State& state, const MoveDone& event);
void checkpoint_done(State& state, const CheckpointDone& event, Nanos now, Actions& out);
/// A process that registers during a hold has to acknowledge it like the others.
void stay_joined(Tenant& tenant, Process& process);
/// The tenant is over: what it was charged is returned.
void stay_forget(State& state, Tenant& tenant);

/// The driver has lost a process of it, which has not ended yet: nothing of it can be moved.
bool stay_lost(const Tenant& tenant);

/// Tried and failed so often that nobody makes it try again but its own user.
inline constexpr std::uint32_t kMoveFailuresMax = 3;

}  // namespace sluice::core
