// What programs have told about managed memory: advice and prefetches, by range of pages. Memory of
// the software GPU is where host and device both reach it, so this moves nothing; it is kept
// because programs ask for it (cuMemRangeGetAttribute). Thread-safe.
#pragma once

#include <functional>
#include <set>

#include "softgpu/driver/state.h"

namespace softgpu::driver {

inline constexpr CUmemLocation kNowhere{CU_MEM_LOCATION_TYPE_INVALID, CU_DEVICE_INVALID};

struct ManagedState {
  bool read_mostly = false;
  CUmemLocation preferred = kNowhere;
  CUmemLocation prefetched = kNowhere;
  std::set<int> accessed_by;  // device ordinals and CU_DEVICE_CPU
};

class ManagedRanges {
 public:
  static ManagedRanges& get();
  /// Changes every page that [at, at + bytes) touches.
  void change(std::uintptr_t at, std::size_t bytes, const std::function<void(ManagedState&)>& how);
  /// The states of those pages, neighbours that were changed together as one.
  std::vector<ManagedState> states(std::uintptr_t at, std::size_t bytes);
  /// The memory is gone; what comes to its place starts anew.
  void forget(std::uintptr_t at, std::size_t bytes);

 private:
  struct Span {
    std::uintptr_t end = 0;
    ManagedState state;
  };
  using Spans = std::map<std::uintptr_t, Span>;
  void split_locked(std::uintptr_t at);
  std::pair<Spans::iterator, Spans::iterator> cover_locked(std::uintptr_t at, std::size_t bytes);
  std::mutex mutex_;
  Spans spans_;
};

/// INVALID_VALUE unless all of it is managed memory.
CUresult managed_check(CUdeviceptr address, std::size_t bytes);
/// A location as the driver keeps it: of an existing device or host node, "the current node"
/// replaced by its number.
CUresult location_resolve(CUmemLocation& location);
/// The number that stands for a location where only one number is asked for.
int location_number(const CUmemLocation& location);

}  // namespace softgpu::driver
