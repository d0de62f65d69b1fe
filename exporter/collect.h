// From a snapshot to metric families: pure, so that a golden file can pin every byte. Knows nothing
// of sockets, HTTP or BPF.
#pragma once

#include <prometheus/metric_family.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "exporter/beside.h"
#include "exporter/bypass/figures.h"
#include "exporter/devices.h"
#include "exporter/history.h"
#include "exporter/idle/figures.h"
#include "exporter/snapshot.h"

namespace sluice::exporter {

/// What the kernel observers saw of one tenant's processes, since they were watched.
struct SchedFigures {
  std::uint64_t switches = 0;
  std::uint64_t sleeping_ns = 0;
  std::uint64_t runnable_ns = 0;
  bool operator==(const SchedFigures&) const = default;
};

struct WatchFigures {
  bool enabled = false;
  std::string reason;                    // "loaded", or why not
  std::array<std::uint64_t, 3> exits{};  // success, failure, signal
  std::map<protocol::TenantId, SchedFigures> tenants;
};

/// The exporter's figures about itself.
struct OwnFigures {
  double scrape_duration_seconds = 0;
  std::array<std::uint64_t, 3> errors{};  // by SnapshotError::Kind
};

/// The name of the tenant's owner, or the number where it has none.
std::string user_text(const protocol::SnapshotTenant& tenant);

/// Sum of the shares that the tenants of a GPU are promised, at most 1.
double allocated_of(const Snapshot& snapshot, const protocol::GpuUuid& gpu);

/// `snapshot` is null while the broker does not answer. The `tenants_max` oldest tenants have
/// series of their own.
std::vector<prometheus::MetricFamily> metrics_collect(
    const Snapshot* snapshot, const WatchFigures& watch, const OwnFigures& own,
    std::uint32_t tenants_max, const RecentFigures& recent = {}, const DeviceFigures& devices = {},
    const IdleState& idle = {}, const std::optional<BypassFigures>& bypass = {});

}  // namespace sluice::exporter
