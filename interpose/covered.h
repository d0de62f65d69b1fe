// Busy time of a tenant whose processes use a GPU at the same moment. Each sees its own work begin
// and end by its own events, and the slices of the others lie in between: counted by each, a moment
// would be charged as often as there are processes. So they keep a map of wall time in the claims
// page, a bit for each sixteen microseconds of the last quarter of a second: who learns of a busy
// interval sets its bits, and charges the part of which it found no bit set. The sum over the
// processes is then the time during which any of them had work there; which of two is charged for
// a common moment is chance.
//
// A word of the map is half a tag, which says of which time it speaks, and half bits; it changes as
// a whole, so a process may be killed at any instant. A bit stands for its first instant: intervals
// that follow each other neither share one nor leave one out. What lies between two such instants,
// or is older than the map, is charged as it is: rather twice than not at all.
#pragma once

#include "broker/protocol/pages.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// Time per bit of the map, and bits per word.
inline constexpr unsigned kCoveredBitShift = 14;
inline constexpr unsigned kCoveredBitsPerWord = 32;

/// The part of [begin, end] (clock_common_ns()), from 0 to 1, that nobody was charged for; marks it
/// as charged. Pure.
double covered_take(protocol::AtomicU64 (&map)[protocol::kChargedWords], uint64_t begin_ns,
                    uint64_t end_ns);

/// What is to be charged of `grown_ns` of busy time on a device of this process, which ended at
/// `end_ns`. All of it where the process is nobody's tenant.
double covered_charge(int device, double end_ns, double grown_ns);

}  // namespace sluice::interpose
