// See device_pages.h.
#include "interpose/memory/device_pages.h"

#include <string.h>

#include "interpose/account.h"
#include "interpose/residual.h"

namespace sluice::interpose {
namespace {

constexpr uint64_t kPage = uint64_t{2} << 20;
// So much may have been taken and freed without a look: a reading takes less than a millisecond, and
// this much in small pieces several.
constexpr uint64_t kUnreadMax = 8 * kPage;
// Others take and give memory in the moment in which a device is looked at. After so many such
// moments one whose figures nobody has is taken for one of pages.
constexpr uint32_t kDoubtsMax = 8;

enum Kind : uint32_t { kUnknown, kExact, kPaged };

uint32_t kinds[protocol::kTenantGpusMax];
uint32_t doubts[protocol::kTenantGpusMax];
uint64_t unread[protocol::kTenantGpusMax];  // bytes that small pieces may have taken or kept

constexpr uint64_t pages_round(uint64_t bytes) {
  const uint64_t more = bytes + kPage - 1;
  return more < bytes ? bytes : more / kPage * kPage;
}

bool is_whole(uint64_t bytes) { return bytes % kPage == 0; }

uint64_t device_free() {
  size_t free_bytes = 0, total_bytes = 0;
  return driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS ? free_bytes : 0;
}

// A device that shows nothing may have had room for a small piece in a page, or does not show it.
void learn(int gpu, uint64_t bytes, uint64_t less) {
  uint32_t kind = kUnknown;
  if (less == bytes) {
    kind = kExact;
  } else if (less == pages_round(bytes)) {
    kind = kPaged;
  } else if (less != 0 && !residual_is_measured(gpu) &&
             __atomic_add_fetch(&doubts[gpu], 1, __ATOMIC_RELAXED) >= kDoubtsMax) {
    kind = kPaged;
  }
  if (kind != kUnknown) store_release(kinds[gpu], kind);
}

void unread_add(int gpu, uint64_t bytes) {
  if (__atomic_fetch_add(&unread[gpu], bytes, __ATOMIC_RELAXED) == 0) residual_want();
}

uint64_t asked_of(uint32_t kind, uint64_t bytes) {
  return kind == kPaged && bytes > kPage / 2 ? pages_round(bytes) : bytes;
}

}  // namespace

PagedAllocation::PagedAllocation(int device, uint64_t bytes, Of what)
    : device_(device), gpu_(device_gpu(device)), bytes_(bytes), asked_(bytes) {
  if (gpu_ < 0) return;
  const uint32_t kind = load_acquire(kinds[gpu_]);
  if (SLUICE_LIKELY(kind == kExact)) return;
  asked_ = asked_of(kind, bytes);
  if (kind == kUnknown && (what == Of::kArray || !is_whole(bytes))) free_before_ = device_free();
}

PagedAllocation PagedAllocation::resized(uint64_t bytes) const {
  PagedAllocation other = *this;
  other.bytes_ = bytes;
  other.asked_ = asked_of(gpu_ < 0 ? kUnknown : load_relaxed(kinds[gpu_]), bytes);
  return other;
}

uint64_t PagedAllocation::taken_of(uint64_t bytes) {
  if (free_before_ != 0 && !is_whole(bytes)) {
    const uint64_t now = device_free();
    learn(gpu_, bytes, now < free_before_ ? free_before_ - now : 0);
  }
  return asked_of(load_acquire(kinds[gpu_]), bytes);
}

uint64_t PagedAllocation::taken() {
  if (gpu_ < 0 || SLUICE_LIKELY(load_relaxed(kinds[gpu_]) == kExact)) return asked_;
  const uint64_t bytes = taken_of(bytes_);
  if (load_relaxed(kinds[gpu_]) != kExact && !is_whole(bytes)) unread_add(gpu_, kPage);
  return bytes;
}

uint64_t PagedAllocation::taken_by_array(uint64_t needed) {
  if (gpu_ < 0 || SLUICE_LIKELY(load_relaxed(kinds[gpu_]) == kExact)) return needed;
  const uint64_t bytes = taken_of(needed);
  if (load_relaxed(kinds[gpu_]) != kExact) unread_add(gpu_, kPage);
  return bytes;
}

bool PagedAllocation::reading_is_due() const {
  if (gpu_ < 0 || SLUICE_LIKELY(load_relaxed(kinds[gpu_]) == kExact)) return false;
  const uint64_t bytes = load_relaxed(unread[gpu_]);
  return bytes != 0 && (bytes >= kUnreadMax || !charge_has_room(device_, bytes + kPage));
}

bool device_pages_settle(int device) {
  const int gpu = device_gpu(device);
  if (gpu >= 0) store_relaxed(unread[gpu], uint64_t{0});
  residual_settle_device(device);
  return charge_within(device);
}

void device_pages_freed(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu < 0 || SLUICE_LIKELY(load_relaxed(kinds[gpu]) == kExact) || is_whole(bytes)) return;
  unread_add(gpu, bytes);
}

void device_pages_reset_after_fork() { memset(unread, 0, sizeof unread); }

}  // namespace sluice::interpose
