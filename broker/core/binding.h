// What a request waits for, and what keeps a job from its GPU: the sum that binds, its numbers, and
// which job has most of it. Sentences for people, made from the state; nothing here decides.
//
// A text may hold "{idle N}". The caller, which sees the meters, puts there whether job N uses its
// GPU.
#pragma once

#include <string>

#include "broker/core/state.h"

namespace sluice::core {

/// Why a request with that reason waits: "the quotas on GPU 0 add up to 3.5 GiB of 3.5 GiB ...".
std::string wait_text(const State& state, const TenantAsked& ask, QueueReason reason);

/// What could be asked for instead of that wait: ", or ask for less"; empty = nothing is known.
std::string instead_text(const State& state, const TenantAsked& ask, QueueReason reason);

/// Why the job does not run, where the reason is the broker's: it is suspended, put aside, swapped,
/// a runaway, or pays an overrun back. Empty = nothing keeps it.
std::string stopped_text(const State& state, const Tenant& tenant, Nanos now);

/// "drained by user 0 (new fans), until 18:00".
std::string drained_text(const GpuDrain& drain);

}  // namespace sluice::core
