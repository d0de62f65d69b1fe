// Device memory comes in pages. A driver takes whole ones for an allocation that is larger than
// half of one, and packs smaller ones into pages that they share; no call tells. Seen on an H100
// (driver 580.159, pages of 2 MiB, by NVML's figure of the process; tests/gpu/memory_ways.py).
//
// So an allocation asks the quota for the pages that it may take: whole ones, and one for a small
// piece. What a small piece may have taken beside its own bytes is charged in the residual until a
// reading of the driver's figure (residual.h) says what it took. The helper reads soon. A thread
// that finds no room while a reading is due reads first. Freed pieces stay charged until then:
// others may keep their page. Where the driver has no figure, a small piece is charged a page for
// as long as it lives.
//
// Whether a device does so is learnt from what it has less after the first allocations. Until then
// a call may take a page that was not asked for; a reading finds it, before the program gets the
// memory where the quota is near. A device that gives memory out to the byte (the software GPU
// without SOFTGPU_PAGE) is charged to the byte.
#pragma once

#include "interpose/account.h"
#include "interpose/residual.h"

namespace sluice::interpose {

enum class PageKind : uint32_t { kUnknown, kExact, kPaged };
extern PageKind page_kinds[kDevicesMax];
/// A device, from 0 on, gives memory out to the byte.
inline bool device_is_exact(int device) {
  return load_relaxed(page_kinds[device]) == PageKind::kExact;
}

/// Readings around the attempts of one allocation. They are made outside of all AccountScopes.
class PagesReading {
 public:
  /// By an attempt: charge_room(), unless a reading may find room that there is none of before it.
  [[nodiscard]] SLUICE_ALWAYS_INLINE bool reserve(int device, uint64_t bytes) {
    if (SLUICE_UNLIKELY(load_relaxed(residual_unread) != 0)) return reserve_or_read(device, bytes);
    return charge_room(device, bytes);
  }
  /// After that was false: the attempt ends with OUT_OF_MEMORY, and is made again after a reading.
  bool comes_first() const { return before_ >= 0; }
  /// By an attempt that was given memory: the figure is to be read before the program gets it.
  void follows(int device, uint64_t bytes) {
    after_ = static_cast<int16_t>(device);
    bytes_ = bytes;
  }
  /// Behind an attempt. True: another one is to be made, after the reading.
  bool again();
  /// Behind the last attempt. False: the tenant is above its quota with what it was given, and the
  /// caller frees that and calls taken_back().
  [[nodiscard]] bool within() { return SLUICE_LIKELY(after_ < 0) || within_read(); }
  void taken_back() const;

 private:
  bool finds_room(int device, uint64_t bytes);
  SLUICE_NOINLINE bool reserve_or_read(int device, uint64_t bytes);
  SLUICE_NOINLINE bool within_read();

  int16_t before_ = -1, after_ = -1;  // devices
  uint32_t rounds_ = 0;
  uint64_t bytes_;  // what the attempt asked for on `after_`
};

/// `attempt()` allocates.
template <class Attempt>
SLUICE_ALWAYS_INLINE CUresult with_readings(PagesReading& reading, Attempt attempt) {
  for (;;) {
    const CUresult result = attempt();
    if (SLUICE_LIKELY(result == CUDA_SUCCESS) || !reading.again()) return result;
  }
}

/// An allocation of `bytes` on a device, begun before the driver is asked. Within an AccountScope,
/// with a current context of that device.
class PagedAllocation {
 public:
  /// The driver says how large an array is when it has made it, and may take more.
  enum class Of : bool { kPointer, kArray };
  SLUICE_ALWAYS_INLINE PagedAllocation(int device, uint64_t bytes, Of what = Of::kPointer)
      : device_(device), asked_(bytes) {
    if (SLUICE_UNLIKELY(!device_is_exact(device))) *this = begun(device, bytes, what);
  }
  /// What is to be reserved of the quota, bytes.
  uint64_t asked() const { return asked_; }
  /// After the driver gave the memory, of which it says that it has so many bytes: charges them for
  /// what was reserved. False: the quota has no room, and nothing is reserved any more; the caller
  /// frees the memory. Says to `reading` when one is due before the program gets the memory.
  [[nodiscard]] SLUICE_ALWAYS_INLINE bool charge(uint64_t bytes, PagesReading& reading) {
    charged_ = bytes;
    if (SLUICE_UNLIKELY(gpu_ >= 0)) {
      // A copy, so that what a device to the byte needs stays in registers.
      PagedAllocation paged = *this;
      const bool fits = paged.charge_by_kind(bytes, reading);
      charged_ = paged.charged_;
      return fits;
    }
    if (SLUICE_UNLIKELY(bytes != asked_)) return charge_settle(device_, asked_, bytes);
    charge_commit(device_, bytes);
    return true;
  }
  /// What the memory's record is to have: its end gives that back.
  uint64_t charged() const { return charged_; }

 private:
  PagedAllocation() = default;
  SLUICE_NOINLINE static PagedAllocation begun(int device, uint64_t bytes, Of what);
  SLUICE_NOINLINE bool charge_by_kind(uint64_t bytes, PagesReading& reading);
  bool charge_unlearnt(uint64_t bytes);
  bool charge_pages(uint64_t bytes);
  void rest_charge(uint64_t rest);

  int device_ = -1;
  int gpu_ = -1;  // of a device that has pages, or may have
  uint64_t asked_ = 0, charged_ = 0, free_before_ = 0;
  uint32_t begun_ = 0;
  Of of_ = Of::kPointer;
  bool due_ = false;
};

/// Takes back the charge of `bytes` of an allocation that was freed just now.
SLUICE_NOINLINE void device_pages_release_by_kind(int device, uint64_t bytes);
SLUICE_ALWAYS_INLINE void device_pages_release(int device, uint64_t bytes) {
  if (SLUICE_UNLIKELY(!device_is_exact(device))) return device_pages_release_by_kind(device, bytes);
  charge_release(device, bytes);
}

/// Before a refusal: other processes of the tenant are charged until their next reading with what
/// the device has room for.
bool device_pages_others_read(int device, uint64_t bytes);

}  // namespace sluice::interpose
