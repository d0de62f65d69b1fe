// See pages.h.
#include "interpose/pages.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace sluice::interpose {
namespace {

unsigned char* range;

// A fork child's shim must not find the parent's slot here. The lease it may read until it notices
// that it is one (process_fork_notice): a launch looks at nothing else.
void keep_from_children() { madvise(range + kLeaseBytes, kClaimsBytes, MADV_DONTFORK); }

}  // namespace

bool pages_reserve() {
  if (range != nullptr) return true;
  void* found =
      mmap(nullptr, kLeaseBytes + kClaimsBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return false;
  range = static_cast<unsigned char*>(found);
  return true;
}

const protocol::LeasePage* pages_lease() {
  return reinterpret_cast<const protocol::LeasePage*>(range);
}

protocol::ClaimsPage* pages_claims() {
  return reinterpret_cast<protocol::ClaimsPage*>(range + kLeaseBytes);
}

// The lease page, which is small, is mapped elsewhere first: with it there, both can be put in
// place.
bool pages_install(int lease_fd, int claims_fd) {
  void* lease = mmap(nullptr, kLeaseBytes, PROT_READ, MAP_SHARED, lease_fd, 0);
  bool installed =
      lease != MAP_FAILED && mmap(range + kLeaseBytes, kClaimsBytes, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_FIXED, claims_fd, 0) != MAP_FAILED;
  installed = installed && mremap(lease, kLeaseBytes, kLeaseBytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                                  range) != MAP_FAILED;
  if (installed) {
    keep_from_children();
  } else if (lease != MAP_FAILED) {
    munmap(lease, kLeaseBytes);
  }
  close(lease_fd);
  close(claims_fd);
  return installed;
}

bool pages_install_mapped(void* both) {
  // mremap(2): with an old size of 0, a shared mapping is mapped a second time.
  if (mremap(both, 0, kLeaseBytes + kClaimsBytes, MREMAP_MAYMOVE | MREMAP_FIXED, range) ==
      MAP_FAILED)
    return false;
  keep_from_children();
  return true;
}

bool pages_install_file(int fd, size_t offset) {
  if (mmap(range, kLeaseBytes + kClaimsBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
           static_cast<off_t>(offset)) == MAP_FAILED)
    return false;
  keep_from_children();
  return true;
}

bool pages_copy(void (*change)(protocol::LeasePage* copy)) {
  void* copy =
      mmap(nullptr, kLeaseBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  memcpy(copy, range, sizeof(protocol::LeasePage));
  change(static_cast<protocol::LeasePage*>(copy));
  if (mremap(copy, kLeaseBytes, kLeaseBytes, MREMAP_MAYMOVE | MREMAP_FIXED, range) == MAP_FAILED) {
    munmap(copy, kLeaseBytes);
    return false;
  }
  keep_from_children();
  return true;
}

void pages_reset_after_fork() {
  if (range != nullptr) munmap(range, kLeaseBytes);
  range = nullptr;
}

}  // namespace sluice::interpose
