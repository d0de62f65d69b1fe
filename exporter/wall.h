// /snapshot.json and the wall page that shows it: the same figures as the metrics, for people.
// Pure. Like the metrics it names users, never processes, commands or jobs. The format is described
// in docs/wall.md; fields are only added.
#pragma once

#include <deque>
#include <string>

#include "exporter/collect.h"
#include "exporter/hour.h"
#include "exporter/web/web.h"

namespace sluice::exporter {

struct WallView {
  const Snapshot* snapshot = nullptr;  // null while the broker does not answer
  std::string error;                   // then: why
  WatchFigures watch;
  RecentFigures recent;
  DeviceFigures devices;
  IdleState idle;
  const std::deque<HourPoint>* hour = nullptr;
  std::uint32_t tenants_max = 0;  // so many of the tenants, oldest first; so many of the queue
  std::uint64_t now_ns = 0;       // CLOCK_MONOTONIC
};

std::string wall_json(const WallView& view);

/// The page, its script and its style, by their paths.
void wall_pages_add(WebPages& pages);

}  // namespace sluice::exporter
