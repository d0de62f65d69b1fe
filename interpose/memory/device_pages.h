// Device memory comes in pages. A driver takes whole ones for an allocation that is larger than half
// of one, and packs smaller ones into pages that they share; no call tells. Seen on an H100 (driver
// 580.159, pages of 2 MiB, by NVML's figure of the process; tests/gpu/memory_ways.py). So an
// allocation is asked of the quota in whole pages. What small ones take together is found by
// readings of the driver's figure (residual.h): soon after, at once where the quota is near or much
// has not been looked for.
//
// Whether a device does so is learnt from what it has less after the first allocations. One that
// gives memory out to the byte (the software GPU without SOFTGPU_PAGE) is charged to the byte.
#pragma once

#include "interpose/process.h"

namespace sluice::interpose {

/// How a device gives memory out.
enum class Grain : uint32_t { kUnknown, kByte, kPage };
extern Grain device_grains[protocol::kTenantGpusMax];
inline bool device_counts_bytes(int gpu) {
  return gpu < 0 || SLUICE_LIKELY(__atomic_load_n(&device_grains[gpu], __ATOMIC_ACQUIRE) ==
                                  Grain::kByte);
}

/// An allocation of so many bytes on a device, begun before the driver is asked. Within an
/// AccountScope, with a current context of that device.
class PagedAllocation {
 public:
  /// Of an array the driver says how large it is when it has made it.
  enum class Of : bool { kPointer, kArray };
  PagedAllocation(int device, uint64_t bytes, Of what = Of::kPointer)
      : device_(device), gpu_(device_gpu(device)), bytes_(bytes), asked_(bytes) {
    if (!device_counts_bytes(gpu_)) begin(what);
  }
  /// What is to be asked of the quota, bytes.
  uint64_t asked() const { return asked_; }
  /// The driver has made it, and says that it is so large.
  void resize(uint64_t bytes) { bytes_ = bytes; }
  /// After the driver has given the memory: what it takes, bytes.
  uint64_t taken() { return device_counts_bytes(gpu_) ? bytes_ : taken_in_pages(Of::kPointer); }
  /// The same of an array, which may take more than its size in pages; a reading finds that.
  uint64_t taken_by_array() { return device_counts_bytes(gpu_) ? bytes_ : taken_in_pages(Of::kArray); }
  /// After it was charged: whether a reading is due before the program gets it
  /// (device_pages_settle).
  bool reading_is_due() const { return !device_counts_bytes(gpu_) && unread_is_much(); }

 private:
  SLUICE_NOINLINE void begin(Of what);
  SLUICE_NOINLINE uint64_t taken_in_pages(Of what);
  SLUICE_NOINLINE bool unread_is_much() const;

  int device_, gpu_;
  uint64_t bytes_, asked_, free_before_ = 0;
};

/// Reads what the process has, outside of all AccountScopes. False: the tenant is above its quota
/// with it, and the caller takes back what it just got.
[[nodiscard]] bool device_pages_settle(int device);
/// Memory that was charged with so many bytes has been freed: its page may stay.
void device_pages_keep(int gpu, uint64_t bytes);
inline void device_pages_freed(int device, uint64_t bytes) {
  const int gpu = device_gpu(device);
  if (!device_counts_bytes(gpu)) device_pages_keep(gpu, bytes);
}
void device_pages_reset_after_fork();

}  // namespace sluice::interpose
