// Differences of counters between looks.
#include "exporter/history.h"

#include <algorithm>

namespace sluice::exporter {
namespace {

double seconds_of(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

/// Counters of a broker never fall; one that does is somebody else's.
std::uint64_t grown(std::uint64_t before, std::uint64_t now) {
  return now > before ? now - before : 0;
}

void observe(WaitHistogram& histogram, double wait_s) {
  const auto bound = std::lower_bound(kWaitBounds_s.begin(), kWaitBounds_s.end(), wait_s);
  ++histogram.counts[static_cast<std::size_t>(bound - kWaitBounds_s.begin())];
  histogram.sum_s += wait_s;
}

}  // namespace

void History::look(const Snapshot& snapshot) {
  const std::uint64_t taken_ns = snapshot.header.taken_ns;
  if (snapshot.header.started_ns != broker_started_ns_) looks_.clear();
  broker_started_ns_ = snapshot.header.started_ns;
  waits_look(snapshot);
  if (!looks_.empty() && taken_ns < looks_.back().taken_ns + kLookEvery_ns) return;
  Look& look = looks_.emplace_back();
  look.taken_ns = taken_ns;
  for (const auto& gpu : snapshot.gpus) look.gpu_busy_ns[uuid_text(gpu.uuid)] = gpu.busy_ns;
  for (const auto& vgpu : snapshot.tenant_gpus)
    look.vgpus[{vgpu.tenant, uuid_text(vgpu.gpu)}] = {vgpu.busy_ns, vgpu.gate_wait_ns};
  while (looks_.size() > 2 && looks_[1].taken_ns + kShareWindow_ns <= taken_ns) looks_.pop_front();
}

void History::waits_look(const Snapshot& snapshot) {
  std::map<Asker, std::size_t> queued;
  std::set<protocol::TenantId> present;
  for (const auto& tenant : snapshot.tenants) {
    const Asker asker{tenant.uid, tenant.asked_ns};
    if (tenant.state == protocol::TenantState::kQueued) {
      queued[asker] = static_cast<std::size_t>(tenant.reason);
      continue;
    }
    present.insert(tenant.tenant);
    // Who was there at the first look came in before anybody looked.
    if (!known_ || known_->contains(tenant.tenant)) continue;
    const auto reason = queued_.find(asker);
    observe(waits_[reason == queued_.end() ? 0 : std::min(reason->second, kReasons - 1)],
            seconds_of(grown(tenant.asked_ns, tenant.admitted_ns)));
  }
  queued_ = std::move(queued);
  known_ = std::move(present);
}

RecentFigures History::figures() const {
  RecentFigures out;
  out.waits = waits_;
  if (looks_.size() < 2) return out;
  const Look& now = looks_.back();
  const double window_s = seconds_of(now.taken_ns - looks_.front().taken_ns);
  for (const auto& [gpu, busy_ns] : now.gpu_busy_ns) {
    const auto before = looks_.front().gpu_busy_ns.find(gpu);
    if (before != looks_.front().gpu_busy_ns.end())
      out.gpu_time[gpu] = std::min(1.0, seconds_of(grown(before->second, busy_ns)) / window_s);
  }
  for (const auto& [key, counters] : now.vgpus) {
    // Since it was first seen, where that is less than the window.
    const auto first = std::find_if(looks_.begin(), looks_.end(), [&key = key](const Look& look) {
      return look.vgpus.contains(key);
    });
    if (first->taken_ns == now.taken_ns) continue;
    const Counters& before = first->vgpus.at(key);
    const double seen_s = seconds_of(now.taken_ns - first->taken_ns);
    out.shares[key] = {std::min(1.0, seconds_of(grown(before.busy_ns, counters.busy_ns)) / seen_s),
                       counters.gate_wait_ns > before.gate_wait_ns};
  }
  return out;
}

}  // namespace sluice::exporter
