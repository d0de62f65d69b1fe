// Limits that the shim keeps itself: a process without a broker (its pages are the family's), and
// shares of GPU time that are narrower than what a broker or the family gives. Knows the family,
// the pages and the process; the helper drives it.
#pragma once

#include "interpose/family.h"
#include "interpose/process.h"
#include "interpose/share.h"

namespace sluice::interpose {

/// What this process may take by its own variables or the machine's policy.
void limits_set(const Limits& limits);
const Limits& limits_own();

/// Whether a process without a broker has limits: its own, or those of a family it was born into.
bool alone_wanted();
/// Finds or founds the family and puts its pages in place. On false, `fault` is why.
bool alone_enter(const char** fault);
/// The same for a process that had a broker and these GPUs, on the helper's thread. The slot, or
/// -1.
int alone_take(const protocol::GpuUuid* gpus, uint32_t count, const char** fault);

/// A share that is asked for beside the lease word, at every launch: beside a broker's lease, or
/// where a process is to have less than its family.
struct OwnShare {
  uint32_t percent;
  ShareBucket* buckets[protocol::kTenantGpusMax];
  protocol::AtomicU32* gates[protocol::kTenantGpusMax];
};
/// nullptr = there is none.
extern OwnShare* own_share;
SLUICE_NOINLINE void own_share_wait(int gpu);

enum class ShareGate : uint8_t { kLease, kOwn };
/// For a thread at a gate that a share keeps closed, as long as it waits there: true = it may
/// launch once, because what is in flight may be waiting for it (patience.h). As long as that runs
/// it is charged, so that the gate would never open.
bool share_lets_through(ShareGate which, int gpu, uint32_t word);
/// Sets own_share for the pages that are in place. On false, `fault` is why it cannot be kept.
bool shares_begin(const char** fault);
void shares_reset();
/// For the helper: brings the shares of one GPU up to date; after how long to look again.
uint64_t shares_step(int gpu, uint64_t now_ns);

}  // namespace sluice::interpose
