// A fixed share of a GPU's time, kept without a broker: a bucket of GPU time that fills at the
// share's rate and is emptied by what was measured. The gate is open while there is something in
// it. Processes keep one bucket together in a shared page. Nobody is in charge of it: whoever looks
// brings it up to date, in steps of one word each, so that a process may be killed or stopped at
// any instant and the others go on. Pure: no clock, no system call but the wake-up.
//
// Two processes whose work is on the GPU at the same moment both measure that moment. So busy time
// is paid for only up to the wall time during which anybody had work there (the allowance).
#pragma once

#include "broker/protocol/pages.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// One GPU's bucket. All zero is a new one.
struct ShareBucket {
  uint64_t filled_ns;    // up to when it has been filled; 0 = never
  int64_t balance_ns;    // below 0: more was used than there was
  uint64_t covered_ns;   // up to when wall time with work in flight has been counted
  int64_t allowance_ns;  // of that time, what no busy time has been set against yet
};

/// What one process remembers of a bucket.
struct ShareUse {
  uint64_t busy_seen_ns;
  uint64_t unpaid_ns;
  uint64_t looked_ns;
  bool was_in_flight;
};

/// Closed for about this long at a time, whatever the share.
inline constexpr uint64_t kSharePeriodNs = 20'000'000;
/// What is saved up while nothing runs: this many periods' share.
inline constexpr uint64_t kShareSavedPeriods = 5;

inline constexpr uint64_t share_quantum_ns(uint32_t percent) {
  return kSharePeriodNs / 100 * percent;
}
/// The in-flight window under a share: about a quantum, so that the debt of one opening is small.
inline constexpr uint64_t share_window_ns(uint32_t percent) {
  const uint64_t quantum_ns = share_quantum_ns(percent);
  return quantum_ns < 2'000'000 ? 2'000'000 : quantum_ns > 10'000'000 ? 10'000'000 : quantum_ns;
}

/// Brings the bucket up to now and opens or closes the gate (a lease word). `busy_ns` only grows.
/// Returns after how long to look again; UINT64_MAX = when something happens.
uint64_t share_step(ShareBucket& bucket, protocol::AtomicU32& gate, ShareUse& use, uint32_t percent,
                    uint64_t busy_ns, bool in_flight, uint64_t now_ns);

}  // namespace sluice::interpose
