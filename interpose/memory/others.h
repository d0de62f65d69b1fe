// What the other processes of a tenant have on a GPU by NVML's figures, beside what they are
// charged. Memory that a process exported passes to its importers when that process frees it or
// ends, and each of them charges it with its next reading. Until then the tenant has it uncharged.
#pragma once

#include "broker/protocol/pages.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// What the process of a slot is charged for that its figure has: without what is reserved, which
/// the device need not have yet, what is swapped out, and what is kept, which no figure has.
uint64_t charged_on_device(const protocol::ClaimsPage& claims, uint32_t slot, uint32_t gpu);

/// A process may lose its slot this long before the driver has its memory back, and what it
/// exported is then charged to the processes that imported it. Behind that time its pid may be
/// another's.
inline constexpr uint64_t kEndedForgottenNs = 10'000'000'000;

/// Remembers the processes that have slots, besides those that had: their figures count after their
/// end, too.
void others_remember(int gpu);
/// Returns the bytes that the other processes have by their figures and are not charged, or 0
/// without figures. What is allocated or freed meanwhile may count. `forgets`: processes that have
/// ended count no more.
uint64_t others_uncharged(int gpu, bool forgets);
/// Returns what the tenant's processes, this one included, have by their figures and are not
/// charged; 0 without figures.
uint64_t tenant_unread(int gpu);
/// Returns a number that changes when another process of the tenant changes its account, comes or
/// goes.
uint64_t others_changes();
/// Returns the bytes that all processes of the tenant have by their figures, those that have ended
/// included, or 0 without figures.
uint64_t tenant_used(int gpu);
/// Returns the bytes that the tenant's processes have by their figures and are not charged, if a
/// process of the tenant has come or gone since that was nothing; else 0. The tenant has no room
/// for these a second time. Without `own`, less what this process has: the caller asks for bytes
/// that are in its figure already. From within an AccountScope.
uint64_t tenant_uncharged(int gpu, bool own);
void others_reset_after_fork();

}  // namespace sluice::interpose
