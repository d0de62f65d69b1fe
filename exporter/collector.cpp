// The order of one scrape, and what it remembers: counts of errors and whether the broker answered
// last time.
#include "exporter/collector.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>

#include "exporter/wall.h"

namespace sluice::exporter {
namespace {

// A scrape goes on without the driver's figures rather than miss its own deadline.
constexpr int kDevicesWait_ms = 500;
constexpr std::uint64_t kWallEvery_ns = 1'000'000'000;

/// Then the driver alone knows how busy they are.
bool has_whole_gpus(const Snapshot& snapshot) {
  return std::ranges::any_of(snapshot.gpus, [](const auto& gpu) { return gpu.exclusive != 0; });
}

}  // namespace

void Collector::change_say(const SnapshotError* error) const {
  const std::string now = error == nullptr ? std::string() : error->text;
  if (now == last_error_) return;
  parts_.say(error == nullptr ? "the broker answers again" : now);
  last_error_ = now;
}

void Collector::gather(Gathered& out) const {
  out.result = parts_.source->snapshot_take();
  out.snapshot = std::get_if<Snapshot>(&out.result);
  change_say(std::get_if<SnapshotError>(&out.result));
  if (parts_.devices != nullptr) out.devices = parts_.devices->look(kDevicesWait_ms);
  if (out.snapshot != nullptr) {
    history_.look(*out.snapshot);
    hour_.look(*out.snapshot, out.devices);
  }
  out.recent = history_.figures();
  if (out.snapshot != nullptr) whole_gpus_join(out.recent, *out.snapshot, out.devices);
  out.watch.enabled = parts_.watch != nullptr;
  out.watch.reason = parts_.watch_reason;
  if (parts_.watch != nullptr) {
    if (out.snapshot != nullptr)
      parts_.watch->watch_set(out.snapshot->processes, out.snapshot->tenants);
    parts_.watch->figures_read(out.watch);
  }
  out.idle.reason = parts_.idle_reason;
  if (parts_.idle != nullptr) {
    if (out.snapshot != nullptr) parts_.idle->tenants_set(*out.snapshot);
    out.idle = parts_.idle->state();
  }
}

std::vector<prometheus::MetricFamily> Collector::Collect() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t begin_ns = parts_.clock_ns();
  Gathered now;
  gather(now);
  if (const auto* error = std::get_if<SnapshotError>(&now.result))
    ++own_.errors[static_cast<std::size_t>(error->kind)];
  own_.scrape_duration_seconds = static_cast<double>(parts_.clock_ns() - begin_ns) / 1e9;
  return metrics_collect(now.snapshot, now.watch, own_, parts_.tenants_max, now.recent, now.devices,
                         now.idle, bypass_figures_read(parts_.bypass_figures, begin_ns));
}

std::string Collector::wall() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t begin_ns = parts_.clock_ns();
  if (!wall_.empty() && begin_ns < wall_made_ns_ + kWallEvery_ns) return wall_;
  Gathered now;
  gather(now);
  WallView view;
  view.snapshot = now.snapshot;
  if (const auto* error = std::get_if<SnapshotError>(&now.result)) view.error = error->text;
  view.watch = std::move(now.watch);
  view.recent = std::move(now.recent);
  view.devices = std::move(now.devices);
  view.idle = std::move(now.idle);
  view.hour = &hour_.points();
  view.tenants_max = parts_.tenants_max;
  view.now_ns = begin_ns;
  wall_ = wall_json(view);
  wall_made_ns_ = begin_ns;
  return wall_;
}

void Collector::refresh() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const SnapshotResult result = parts_.source->snapshot_take();
  const auto* snapshot = std::get_if<Snapshot>(&result);
  if (snapshot == nullptr) return;
  history_.look(*snapshot);
  DeviceFigures devices;
  if (parts_.devices != nullptr && has_whole_gpus(*snapshot))
    devices = parts_.devices->look(kDevicesWait_ms);
  hour_.look(*snapshot, devices);
  if (parts_.watch != nullptr) parts_.watch->watch_set(snapshot->processes, snapshot->tenants);
  if (parts_.idle != nullptr) parts_.idle->tenants_set(*snapshot);
}

std::string metrics_text(const std::vector<prometheus::MetricFamily>& families) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace sluice::exporter
