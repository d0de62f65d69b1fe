// A step ends with the first look after ten seconds, so it may last a little longer.
#include "exporter/hour.h"

#include <algorithm>

namespace sluice::exporter {

void Hour::look(const Snapshot& snapshot, const DeviceFigures& devices) {
  for (const auto& gpu : snapshot.gpus) {
    const auto look = devices.gpus.find(uuid_text(gpu.uuid));
    if (gpu.exclusive == 0 || look == devices.gpus.end() || !look->second.busy_ratio) continue;
    Told& told = told_[look->first];
    told.sum += *look->second.busy_ratio;
    ++told.looks;
  }
  const std::uint64_t now_ns = snapshot.header.taken_ns;
  // Counters of another broker, or of before a silence, say nothing about this step.
  const bool anew = snapshot.header.started_ns != broker_started_ns_ || now_ns < last_ns_ ||
                    now_ns - last_ns_ > 2 * kHourStep_ns;
  if (!anew && now_ns < begin_ns_ + kHourStep_ns) {
    last_ns_ = now_ns;
    return;
  }
  if (!anew) {
    HourPoint& point = points_.emplace_back();
    point.end_ns = now_ns;
    const auto step_ns = static_cast<double>(now_ns - begin_ns_);
    for (const auto& gpu : snapshot.gpus) {
      const auto before = begin_busy_ns_.find(uuid_text(gpu.uuid));
      if (before == begin_busy_ns_.end()) continue;
      const std::uint64_t worked_ns = gpu.busy_ns - std::min(gpu.busy_ns, before->second);
      HourPoint::Gpu& out = point.gpus[before->first];
      out.busy = std::min(1.0, static_cast<double>(worked_ns) / step_ns);
      const auto told = told_.find(before->first);
      if (gpu.exclusive != 0 && told != told_.end())
        out.busy = told->second.sum / told->second.looks;
      if (gpu.capacity_bytes > 0)
        out.held = static_cast<double>(gpu.held_bytes) / static_cast<double>(gpu.capacity_bytes);
    }
    for (const auto& tenant : snapshot.tenants)
      ++(tenant.state == protocol::TenantState::kQueued ? point.queued : point.running);
    if (points_.size() > kHourSteps) points_.pop_front();
  }
  broker_started_ns_ = snapshot.header.started_ns;
  begin_ns_ = last_ns_ = now_ns;
  told_.clear();
  begin_busy_ns_.clear();
  for (const auto& gpu : snapshot.gpus) begin_busy_ns_[uuid_text(gpu.uuid)] = gpu.busy_ns;
}

}  // namespace sluice::exporter
