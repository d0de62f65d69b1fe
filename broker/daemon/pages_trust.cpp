// Whether a tenant's claims can be true. No decision depends on the answer, which is for people.
// What a claim may do is bounded where it is used: by the tenant's quota where it is a part of a
// sum over tenants or explains what a device has in use (engine_device.cpp, left_behind.h), by the
// GPU's capacity elsewhere.
//
// Only what no honest shim ever writes counts, so that nobody is accused for a moment's picture:
// the shim changes its figures one after the other, and a look may fall between two stores.
#include "broker/daemon/pages.h"
#include "broker/protocol/snapshot.h"

namespace sluice::daemon {
namespace {

using protocol::ClaimsGpu;

/// A process's memory is bounded by its quota, and that by the GPU; what the driver takes for
/// itself and a capacity that was configured smaller are within this.
constexpr std::uint64_t kCapacitiesMax = 2;
/// Meters estimate what they have not measured yet, and are right in the end.
constexpr std::uint64_t kLivesMax = 2;
constexpr std::uint64_t kLife_ns_min = 10'000'000'000;

}  // namespace

std::uint8_t Pages::memory_lies(std::uint32_t gpu, std::uint64_t capacity_bytes, bool* odd) const {
  std::uint8_t lies = 0;
  for (std::uint32_t slot = 0; slot < slots_end_; ++slot) {
    if (!taken_[slot]) continue;
    const ClaimsGpu& account = claims_->slots[slot].gpus[gpu];
    const std::uint64_t held = account.held_bytes.load();
    if (capacity_bytes != 0 && held / kCapacitiesMax > capacity_bytes)
      lies |= protocol::kDistrustMemory;
    const std::uint64_t movable = account.movable_bytes.load();
    if (movable > held || account.swapped_bytes.load() > movable) *odd = true;
  }
  return lies;
}

std::uint8_t Pages::time_lies(std::uint32_t gpu, std::uint64_t lived_ns) {
  std::uint64_t busy_ns = dead_[gpu].busy_ns;
  for (std::uint32_t slot = 0; slot < slots_end_; ++slot) {
    if (!taken_[slot]) continue;
    if (__builtin_add_overflow(busy_ns, claims_->slots[slot].gpus[gpu].busy_ns.load(), &busy_ns))
      busy_ns = UINT64_MAX;
  }
  const bool backwards = busy_ns < looked_busy_ns_[gpu];
  looked_busy_ns_[gpu] = busy_ns;
  const bool fast = busy_ns > kLife_ns_min && busy_ns / kLivesMax > lived_ns;
  return backwards || fast ? protocol::kDistrustTime : 0;
}

std::uint8_t Pages::lies_look(const std::vector<std::uint64_t>& capacity_bytes,
                              std::uint64_t lived_ns) {
  std::uint8_t lies = 0;
  const protocol::ClaimsPage& page = *claims_;
  if (page.magic != protocol::kClaimsPageMagic || page.version != protocol::kVersion ||
      page.slot_count != protocol::kTenantProcessesMax || page.gpu_count != gpu_count())
    lies |= protocol::kDistrustPage;
  for (std::uint32_t slot = 0; slot < slots_end_; ++slot)
    if (taken_[slot] && page.slots[slot].pid.load() != pids_[slot]) lies |= protocol::kDistrustSlot;
  bool odd = false;
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) {
    const std::uint64_t capacity = gpu < capacity_bytes.size() ? capacity_bytes[gpu] : 0;
    lies |= memory_lies(gpu, capacity, &odd);
    lies |= time_lies(gpu, lived_ns);
  }
  odd_looks_ = odd ? odd_looks_ + 1 : 0;
  if (odd_looks_ >= kOddLooksMax) {
    odd_looks_ = kOddLooksMax;
    lies |= protocol::kDistrustMemory;
  }
  return lies;
}

}  // namespace sluice::daemon
