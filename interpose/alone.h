// Limits that the shim keeps itself: those of a process without a broker (its pages are the
// family's), or whose broker has gone away (its pages are that broker's), and shares of GPU time
// that are narrower than what a broker or the family gives. Knows the family, the pages and the
// process; the helper drives it.
#pragma once

#include "interpose/family.h"
#include "interpose/process.h"
#include "interpose/share.h"

namespace sluice::interpose {

/// What this process may take by its own variables or the machine's policy.
void limits_set(const Limits& limits);
const Limits& limits_own();

/// Whether a process without a broker has limits of its own, or, where nobody announced it, those
/// of a family it was born into.
bool alone_wanted();
/// Finds or founds the family of this process, and tells it what its tenant was admitted with, if
/// that is known. False, with errno: the kernel gives no memfd.
bool alone_family();
/// As alone_family, but a process of a job founds none unless it is the job's first: it must have
/// lost sight of the family that its job has, and a second one would be a second quota. False also
/// where it does not found one, with ENOENT.
bool alone_family_of_job();
/// What to say where the family cannot be founded for EFBIG.
inline constexpr char kFileTooSmall[] =
    "the limit on the size of files is too small for what its limits are kept in; raise it (ulimit "
    "-f unlimited)";
/// Tells the family of an announced process what the broker's lease page says of the tenant, and
/// finds or founds it before. Without effect where it cannot be founded.
void alone_learn();
/// Puts the family's pages in place. On false, `fault` is why.
bool alone_enter(const char** fault);

/// A share that is asked for beside the lease word, at every launch: beside a broker's lease, or
/// where a process is to have less than its family.
struct OwnShare {
  uint32_t percent;
  ShareBucket* buckets[protocol::kTenantGpusMax];
  protocol::AtomicU32* gates[protocol::kTenantGpusMax];
};
/// That of the whole family, and that of this process alone; launches ask for both.
inline constexpr int kOwnShares = 2;
/// The first one that there is; nullptr = there is none.
extern OwnShare* own_share;
SLUICE_NOINLINE void own_share_wait(int gpu);

enum class ShareGate : uint8_t { kLease, kOwn };
/// For a thread at a gate that a share keeps closed, as long as it waits there: true = it may
/// launch once, because what is in flight may be waiting for it (patience.h). As long as that runs
/// it is charged, so that the gate would never open.
bool share_lets_through(ShareGate which, int gpu, uint32_t word);
/// Sets own_share for the pages that are in place. On false, `fault` is why it cannot be kept.
bool shares_begin(const char** fault);
/// Sets it for a process whose broker has gone away: the share that the lease page gives, together
/// with its family where it has one.
void shares_detach();
void shares_reset();
/// For the helper: brings the shares of one GPU up to date; after how long to look again.
uint64_t shares_step(int gpu, uint64_t now_ns);

}  // namespace sluice::interpose
