// See device_pages.h.
#include "interpose/memory/device_pages.h"

#include "interpose/account.h"
#include "interpose/memory/others.h"
#include "interpose/process.h"
#include "interpose/residual.h"
#include "interpose/threads.h"

namespace sluice::interpose {

PageKind page_kinds[kDevicesMax];

namespace {

constexpr uint64_t kPage = uint64_t{2} << 20;
// Others take and give memory in the moment in which a device is looked at. After so many such
// moments a device without figures is taken for one of pages.
constexpr uint32_t kDoubtsMax = 8;
// Others may take what a reading has found; then another one may find more. About 100 ms.
constexpr uint32_t kRoundsMax = 64;

uint32_t doubts[kDevicesMax];
uint32_t allocations_begun;  // on devices of which it is not known

bool is_paged(int device) { return load_relaxed(page_kinds[device]) == PageKind::kPaged; }

bool is_small(uint64_t bytes) { return bytes <= kPage / 2; }

bool is_whole(uint64_t bytes) { return bytes % kPage == 0; }

uint64_t pages_of(uint64_t bytes) {
  const uint64_t more = bytes + kPage - 1;
  return more < bytes ? bytes : more / kPage * kPage;
}

uint64_t device_free() {
  size_t free_bytes = 0, total_bytes = 0;
  return driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS ? free_bytes : 0;
}

// No other thread of this process is in a call that takes or frees memory.
bool others_idle() {
  for (int i = 0; i < thread_count(); ++i) {
    if (thread_at(i) != this_thread && load_acquire(thread_at(i)->accounting) != 0) return false;
  }
  return true;
}

// `less`: what the device has less for `bytes` that are no whole pages. One of pages never shows
// less by such bytes.
PageKind learn(int device, int gpu, uint64_t bytes, uint64_t less, bool undisturbed) {
  PageKind kind = PageKind::kUnknown;
  if (less == bytes) {
    kind = PageKind::kExact;
  } else if (undisturbed && less == pages_of(bytes)) {
    kind = PageKind::kPaged;
  } else if (less != 0 && !residual_is_measured(gpu) &&
             __atomic_add_fetch(&doubts[device], 1, __ATOMIC_RELAXED) >= kDoubtsMax) {
    kind = PageKind::kPaged;
  }
  if (kind == PageKind::kUnknown) return kind;
  PageKind before = PageKind::kUnknown;
  __atomic_compare_exchange_n(&page_kinds[device], &before, kind, false, __ATOMIC_ACQ_REL,
                              __ATOMIC_ACQUIRE);
  return load_acquire(page_kinds[device]);
}

}  // namespace

PagedAllocation PagedAllocation::begun(int device, uint64_t bytes, Of what) {
  PagedAllocation out;
  out.device_ = device;
  out.gpu_ = device_gpu(device);
  out.asked_ = bytes;
  out.of_ = what;
  if (out.gpu_ < 0) return out;
  if (is_paged(device)) {
    out.asked_ = pages_of(bytes);
    return out;
  }
  // Counted before the look at the others: of two that begin at once each finds the other.
  const uint32_t begun = __atomic_add_fetch(&allocations_begun, 1, __ATOMIC_SEQ_CST);
  if (what == Of::kArray || !is_whole(bytes)) {
    out.begun_ = others_idle() ? begun : 0;
    out.free_before_ = device_free();
  }
  return out;
}

bool PagedAllocation::charge_by_kind(uint64_t bytes, PagesReading& reading) {
  const bool fits = is_paged(device_) ? charge_pages(bytes) : charge_unlearnt(bytes);
  if (fits && due_) reading.follows(device_, bytes);
  return fits;
}

// A device that shows nothing may have had room for a small piece in a page, or does not show it.
bool PagedAllocation::charge_unlearnt(uint64_t bytes) {
  if (free_before_ == 0 || is_whole(bytes)) return charge_settle(device_, asked_, bytes);
  const uint64_t now = device_free();
  const uint64_t less = now < free_before_ ? free_before_ - now : 0;
  const bool undisturbed =
      begun_ != 0 && begun_ == load_relaxed(allocations_begun) && others_idle();
  const PageKind kind = learn(device_, gpu_, bytes, less, undisturbed);
  if (kind == PageKind::kPaged) return charge_pages(bytes);
  if (!charge_settle(device_, asked_, bytes)) return false;
  if (kind != PageKind::kUnknown) return true;
  // Charged until a reading, what it may have taken beside would keep others from what fits.
  rest_charge(0);
  due_ |= less != 0 && residual_is_measured(gpu_);
  return true;
}

bool PagedAllocation::charge_pages(uint64_t bytes) {
  const uint64_t pages = pages_of(bytes);
  if (!is_small(bytes) || !residual_is_measured(gpu_)) {
    charged_ = pages;
    if (!charge_settle(device_, asked_, pages)) return false;
  } else {
    if (!charge_settle(device_, asked_, pages)) return false;
    residual_hold_unread(gpu_, pages - bytes);
  }
  if (of_ == Of::kArray) rest_charge(kPage);
  return true;
}

// What the driver may have taken beside what was asked for: charged until a reading, where the
// quota has room for it.
void PagedAllocation::rest_charge(uint64_t rest) {
  if (!residual_is_measured(gpu_)) return residual_want();
  if (rest != 0 && charge_try_reserve(gpu_, rest, true)) {
    charge_commit(device_, rest);
    residual_hold_unread(gpu_, rest);
  } else {
    residual_hold_unread(gpu_, 0);
    due_ = rest != 0 || !charge_has_room(device_, kPage);
  }
}

void device_pages_release_by_kind(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu < 0 || !residual_is_measured(gpu)) return charge_release(device, bytes);
  if (!is_paged(device)) {
    charge_release(device, bytes);
    return residual_hold_unread(gpu, 0);
  }
  if (bytes <= kPage) return residual_hold_unread(gpu, bytes);
  charge_release(device, bytes);
  if (!is_whole(bytes)) residual_hold_unread(gpu, 0);
}

bool device_pages_others_read(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu < 0 || device_is_exact(device) || process.claims->slots_used.load() < 2) return false;
  const uint64_t quota = process.memory_max(gpu);
  const uint64_t used = tenant_used(gpu);
  return used != 0 && used <= quota && bytes <= quota - used;
}

bool PagesReading::finds_room(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (gpu < 0 || (load_relaxed(residual_unread) >> gpu & 1) == 0 || rounds_ == kRoundsMax ||
      charge_has_room(device, bytes))
    return false;
  before_ = static_cast<int16_t>(device);
  return true;
}

// Other threads may charge pages while this one asks.
bool PagesReading::reserve_or_read(int device, uint64_t bytes) {
  if (finds_room(device, bytes)) return false;
  if (charge_room(device, bytes)) return true;
  (void)finds_room(device, bytes);
  return false;
}

bool PagesReading::again() {
  if (before_ < 0) return false;
  residual_settle_device(before_);
  before_ = -1;
  ++rounds_;
  return true;
}

bool PagesReading::within_read() {
  residual_settle_device(after_);
  if (charge_within(after_)) return true;
  (void)charge_refuse(after_, bytes_);
  return false;
}

void PagesReading::taken_back() const { residual_settle_device(after_); }

}  // namespace sluice::interpose
