// The one clock that processes of a tenant have in common. CLOCK_MONOTONIC is not: a time namespace
// adds an offset of its own, so that what one process writes into a shared page as "now" may be
// hours ahead for the others. What is shared is told without the offset.
#pragma once

#include "interpose/types.h"

namespace sluice::interpose {

/// What the time namespace of this process adds to CLOCK_MONOTONIC; read once. 0 where the kernel
/// has no such namespaces or shows none (no /proc).
int64_t clock_offset_ns();
/// A moment of CLOCK_MONOTONIC as every process knows it.
inline uint64_t clock_common_ns(uint64_t own_ns) {
  return own_ns - static_cast<uint64_t>(clock_offset_ns());
}
/// A child may be in another namespace.
void clock_reset_after_fork();

/// The offset that a timens_offsets file of /proc tells. Pure.
int64_t clock_offset_read(const char* text);

}  // namespace sluice::interpose
