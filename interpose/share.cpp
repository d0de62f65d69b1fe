// See share.h.
#include "interpose/share.h"

namespace sluice::interpose {

using protocol::AtomicU32;
using protocol::kLeaseOpen;

namespace {

// Busy time that is measured a little outside of the wall time in flight (clocks differ) is kept
// for the next look, up to this much.
constexpr uint64_t kUnpaidKeptNs = 5'000'000;

// Work in flight may turn out to have been busy all the time: what fills the bucket meanwhile must
// not be lost to a kernel that is measured at its end. Up to a kernel of this length.
constexpr int64_t kUnmeasuredMaxNs = 60'000'000'000;

void fill(ShareBucket& bucket, uint32_t percent, uint64_t now_ns) {
  const int64_t unmeasured_ns = load_acquire(bucket.allowance_ns);
  const int64_t full_ns = static_cast<int64_t>(share_quantum_ns(percent) * kShareSavedPeriods) +
                          (unmeasured_ns < kUnmeasuredMaxNs ? unmeasured_ns : kUnmeasuredMaxNs);
  uint64_t before_ns = load_acquire(bucket.filled_ns);
  if (now_ns <= before_ns ||
      !__atomic_compare_exchange_n(&bucket.filled_ns, &before_ns, now_ns, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_RELAXED)) {
    return;  // somebody else fills it up to about now
  }
  const uint64_t since_ns = before_ns == 0 ? kSharePeriodNs : now_ns - before_ns;
  const auto more_ns = static_cast<int64_t>(since_ns / 100 * percent);
  int64_t balance_ns = __atomic_add_fetch(&bucket.balance_ns, more_ns, __ATOMIC_ACQ_REL);
  while (balance_ns > full_ns &&
         !__atomic_compare_exchange_n(&bucket.balance_ns, &balance_ns, full_ns, false,
                                      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
}

// Adds the wall time from `from_ns` to now, as far as no other process has counted it.
void cover(ShareBucket& bucket, uint64_t from_ns, uint64_t now_ns) {
  uint64_t covered_ns = load_acquire(bucket.covered_ns);
  while (now_ns > covered_ns) {
    if (!__atomic_compare_exchange_n(&bucket.covered_ns, &covered_ns, now_ns, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      continue;
    }
    // Nobody had work there in between: what is left of the time before was idle.
    if (from_ns > covered_ns) store_release(bucket.allowance_ns, int64_t{0});
    const uint64_t new_ns = now_ns - (from_ns > covered_ns ? from_ns : covered_ns);
    __atomic_add_fetch(&bucket.allowance_ns, static_cast<int64_t>(new_ns), __ATOMIC_ACQ_REL);
    return;
  }
}

// Takes what busy time may be paid for out of the allowance and the balance.
void pay(ShareBucket& bucket, ShareUse& use) {
  int64_t allowance_ns = load_acquire(bucket.allowance_ns);
  while (allowance_ns > 0 && use.unpaid_ns > 0) {
    const auto unpaid_ns = static_cast<int64_t>(use.unpaid_ns);
    const int64_t paid_ns = unpaid_ns < allowance_ns ? unpaid_ns : allowance_ns;
    if (!__atomic_compare_exchange_n(&bucket.allowance_ns, &allowance_ns, allowance_ns - paid_ns,
                                     false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      continue;
    }
    use.unpaid_ns -= static_cast<uint64_t>(paid_ns);
    __atomic_sub_fetch(&bucket.balance_ns, paid_ns, __ATOMIC_ACQ_REL);
    return;
  }
}

}  // namespace

uint64_t share_step(ShareBucket& bucket, AtomicU32& gate, ShareUse& use, uint32_t percent,
                    uint64_t busy_ns, bool in_flight, uint64_t now_ns) {
  fill(bucket, percent, now_ns);
  if (use.looked_ns == 0) {
    // What was used before is somebody else's affair.
    use.looked_ns = now_ns;
    use.busy_seen_ns = busy_ns;
  }
  const uint64_t used_ns = busy_ns > use.busy_seen_ns ? busy_ns - use.busy_seen_ns : 0;
  use.busy_seen_ns = busy_ns;
  use.unpaid_ns += used_ns;
  const uint64_t interval_ns = now_ns - use.looked_ns;
  // Work that began or ended since the last look was there for as long as it was busy.
  const bool all_of_it = in_flight && use.was_in_flight;
  const uint64_t there_ns = all_of_it || used_ns > interval_ns ? interval_ns : used_ns;
  if (there_ns > 0) cover(bucket, use.looked_ns, use.looked_ns + there_ns);
  pay(bucket, use);
  if (!in_flight && use.unpaid_ns > kUnpaidKeptNs) use.unpaid_ns = kUnpaidKeptNs;
  use.was_in_flight = in_flight;
  use.looked_ns = now_ns;

  const int64_t balance_ns = load_acquire(bucket.balance_ns);
  const auto quantum_ns = static_cast<int64_t>(share_quantum_ns(percent));
  uint32_t word = gate.load();
  const bool open = (word & kLeaseOpen) != 0;
  const bool wanted = open ? balance_ns > 0 : balance_ns >= quantum_ns;
  if (open != wanted) {
    const uint32_t next = protocol::lease_word(
        protocol::lease_epoch_next(protocol::lease_epoch(word)), wanted ? kLeaseOpen : 0);
    // Whoever is first: the others see the new word at their next look.
    if (__atomic_compare_exchange_n(&gate.raw, &word, next, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
      futex_wake_all(&gate.raw, true);
    }
  }
  if (wanted) return UINT64_MAX;
  return static_cast<uint64_t>(quantum_ns - balance_ns) / percent * 100 + 1;
}

}  // namespace sluice::interpose
