// The order of one scrape, and what it remembers: counts of errors and whether the broker answered
// last time.
#include "exporter/collector.h"

#include <prometheus/text_serializer.h>

#include <sstream>

namespace sluice::exporter {
namespace {

// A scrape goes on without the driver's figures rather than miss its own deadline.
constexpr int kDevicesWait_ms = 500;

}  // namespace

void Collector::change_say(const SnapshotError* error) const {
  const std::string now = error == nullptr ? std::string() : error->text;
  if (now == last_error_) return;
  parts_.say(error == nullptr ? "the broker answers again" : now);
  last_error_ = now;
}

std::vector<prometheus::MetricFamily> Collector::Collect() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t begin_ns = parts_.clock_ns();
  const SnapshotResult result = parts_.source->snapshot_take();
  const auto* snapshot = std::get_if<Snapshot>(&result);
  const auto* error = std::get_if<SnapshotError>(&result);
  if (error != nullptr) ++own_.errors[static_cast<std::size_t>(error->kind)];
  change_say(error);
  if (snapshot != nullptr) history_.look(*snapshot);

  WatchFigures watch;
  watch.enabled = parts_.watch != nullptr;
  watch.reason = parts_.watch_reason;
  if (parts_.watch != nullptr) {
    if (snapshot != nullptr) parts_.watch->watch_set(snapshot->processes, snapshot->tenants);
    parts_.watch->figures_read(watch);
  }
  DeviceFigures devices;
  if (parts_.devices != nullptr) devices = parts_.devices->look(kDevicesWait_ms);
  own_.scrape_duration_seconds = static_cast<double>(parts_.clock_ns() - begin_ns) / 1e9;
  return metrics_collect(snapshot, watch, own_, parts_.tenants_max, history_.figures(), devices);
}

void Collector::refresh() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const SnapshotResult result = parts_.source->snapshot_take();
  const auto* snapshot = std::get_if<Snapshot>(&result);
  if (snapshot == nullptr) return;
  history_.look(*snapshot);
  if (parts_.watch != nullptr) parts_.watch->watch_set(snapshot->processes, snapshot->tenants);
}

std::string metrics_text(const std::vector<prometheus::MetricFamily>& families) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace sluice::exporter
