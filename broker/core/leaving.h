// Whether a tenant is to be out, and what its leaving takes and frees: questions only. See
// leaving.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// Is there a reason for the tenant's memory to be out, or to go out?
bool stay_out_wanted(const Tenant& tenant);
/// Once it is out it stays so, and its promises leave the books (vacate.cpp): suspended by command,
/// idle, or released.
bool stays_away(const Tenant& tenant);
/// Does a thread of it wait for its GPUs, or for memory of them?
bool stay_wants(const State& state, const Tenant& tenant);
/// Is it out, with nothing that keeps it there, and wanted back by a process or by the core?
bool stay_back_wanted(const State& state, const Tenant& tenant);
/// By the driver's checkpoint, not by swap.
bool stay_freezes(const Tenant& tenant);
/// On its way out, with so much that its leaving will free on the GPU of this share.
Bytes stay_leaving(const State& state, const Share& share, Nanos now);

/// The host memory that its leaving will take and that it is not charged for yet; 0 = it does not
/// leave.
Bytes stay_host_due(const Tenant& tenant);
/// What its leaving would take there.
Bytes stay_host_cost(const Tenant& tenant);
/// Host memory that the user may still fill beside those of it that leave now.
Bytes stay_host_left(const State& state, std::uint32_t uid);
/// Host memory that its user may still fill when those are out that are held already.
Bytes stay_host_beside_held(const State& state, const Tenant& tenant);

/// A move that nobody has answered for so long that nobody but its tenant waits for it.
bool stay_stuck(const State& state, const Tenant& tenant, Nanos now);
/// The driver has lost a process of it, which has not ended yet: nothing of it can be moved.
bool stay_lost(const Tenant& tenant);

/// Tried and failed so often that nobody makes it try again but its own user.
inline constexpr std::uint32_t kMoveFailuresMax = 3;

}  // namespace sluice::core
