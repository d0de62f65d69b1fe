// Where the tenant's two pages are mapped: one reserved range of addresses that lives as long as
// the process. New pages are mapped over the old ones in place, so no reader ever holds an address
// that goes away. A fork child has no range: it is another process and needs pages of its own.
#pragma once

#include "broker/protocol/pages.h"
#include "interpose/types.h"

namespace sluice::interpose {

constexpr size_t page_round(size_t bytes) { return (bytes + 4095) & ~size_t{4095}; }
inline constexpr size_t kLeaseBytes = page_round(sizeof(protocol::LeasePage));
inline constexpr size_t kClaimsBytes = page_round(sizeof(protocol::ClaimsPage));

/// Reserves the range, once. False without address space.
bool pages_reserve();
const protocol::LeasePage* pages_lease();
protocol::ClaimsPage* pages_claims();

/// A broker's pages, from their descriptors (closed here). False, and the pages are those of
/// before, where a descriptor is none of a page any more or there is no memory for a mapping.
[[nodiscard]] bool pages_install(int lease_fd, int claims_fd);
/// Pages that are mapped elsewhere in this process, one behind the other and both to be written.
/// False where the system cannot map them a second time by their address, as under valgrind.
[[nodiscard]] bool pages_install_mapped(void* both);
/// The same by the descriptor of the file that they are in. False without address space.
[[nodiscard]] bool pages_install_file(int fd, size_t offset);
/// Puts a private copy in the lease page's place, changed by `change`: nobody will open gates in
/// the old one any more. False, and nothing was done, without memory for it.
[[nodiscard]] bool pages_copy(void (*change)(protocol::LeasePage* copy));

void pages_reset_after_fork();

}  // namespace sluice::interpose
