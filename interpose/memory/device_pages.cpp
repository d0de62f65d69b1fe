// See device_pages.h.
#include "interpose/memory/device_pages.h"

#include <string.h>

#include "interpose/account.h"
#include "interpose/residual.h"

namespace sluice::interpose {

Grain device_grains[protocol::kTenantGpusMax];

namespace {

constexpr uint64_t kPage = uint64_t{2} << 20;
// So much may have been taken and freed without a look: a reading takes less than a millisecond, and
// this much in small pieces several.
constexpr uint64_t kUnreadMax = 8 * kPage;
// Others take and give memory in the moment in which a device is looked at. After so many such
// moments one whose figures nobody has is taken for one of pages.
constexpr uint32_t kDoubtsMax = 8;

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

Grain grain_of(int gpu) { return __atomic_load_n(&device_grains[gpu], __ATOMIC_ACQUIRE); }

// A device that shows nothing may have had room for a small piece in a page, or does not show it.
void learn(int gpu, uint64_t bytes, uint64_t less) {
  Grain grain = Grain::kUnknown;
  if (less == bytes) {
    grain = Grain::kByte;
  } else if (less == pages_round(bytes)) {
    grain = Grain::kPage;
  } else if (less != 0 && !residual_is_measured(gpu) &&
             __atomic_add_fetch(&doubts[gpu], 1, __ATOMIC_RELAXED) >= kDoubtsMax) {
    grain = Grain::kPage;
  }
  if (grain != Grain::kUnknown) __atomic_store_n(&device_grains[gpu], grain, __ATOMIC_RELEASE);
}

void unread_add(int gpu, uint64_t bytes) {
  if (__atomic_fetch_add(&unread[gpu], bytes, __ATOMIC_RELAXED) == 0) residual_want();
}

uint64_t asked_of(Grain grain, uint64_t bytes) {
  return grain == Grain::kPage && bytes > kPage / 2 ? pages_round(bytes) : bytes;
}

}  // namespace

void PagedAllocation::begin(Of what) {
  const Grain grain = grain_of(gpu_);
  asked_ = asked_of(grain, bytes_);
  if (grain == Grain::kUnknown && (what == Of::kArray || !is_whole(bytes_)))
    free_before_ = device_free();
}

uint64_t PagedAllocation::taken_in_pages(Of what) {
  if (free_before_ != 0 && !is_whole(bytes_)) {
    const uint64_t now = device_free();
    learn(gpu_, bytes_, now < free_before_ ? free_before_ - now : 0);
  }
  const Grain grain = grain_of(gpu_);
  const uint64_t bytes = asked_of(grain, bytes_);
  if (grain != Grain::kByte && (what == Of::kArray || !is_whole(bytes))) unread_add(gpu_, kPage);
  return bytes;
}

bool PagedAllocation::unread_is_much() const {
  const uint64_t bytes = load_relaxed(unread[gpu_]);
  return bytes != 0 && (bytes >= kUnreadMax || !charge_has_room(device_, bytes + kPage));
}

bool device_pages_settle(int device) {
  const int gpu = device_gpu(device);
  if (gpu >= 0) store_relaxed(unread[gpu], uint64_t{0});
  residual_settle_device(device);
  return charge_within(device);
}

void device_pages_keep(int gpu, uint64_t bytes) {
  if (!is_whole(bytes)) unread_add(gpu, bytes);
}

void device_pages_reset_after_fork() { memset(unread, 0, sizeof unread); }

}  // namespace sluice::interpose
