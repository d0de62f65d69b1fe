// What the broker says beside what the driver says. Pure.
#pragma once

#include <cstdint>

#include "exporter/devices.h"
#include "exporter/history.h"
#include "exporter/snapshot.h"

namespace sluice::exporter {

/// GPUs that a tenant owns as a whole are not metered: how busy they are, and so their owner's
/// share, becomes what the driver says, or is not known.
void whole_gpus_join(RecentFigures& recent, const Snapshot& snapshot, const DeviceFigures& devices);

/// The processes that the driver lists, told apart by whether a tenant owns them.
struct Beside {
  std::uint64_t strangers = 0;
  std::uint64_t strange_bytes = 0;
  std::uint64_t registered_bytes = 0;
  bool all_tell = true;  // the driver told the memory of each
};
Beside beside_of(const Snapshot& snapshot, const DeviceLook& look);

}  // namespace sluice::exporter
