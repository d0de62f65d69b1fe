// From the figures to JSON. Whatever names are, the library escapes them; what is no UTF-8 was
// replaced by field_text.
#include "exporter/wall.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "exporter/wall_files.h"
#include "exporter/words.h"

namespace sluice::exporter {
namespace {

using nlohmann::ordered_json;
using protocol::SnapshotTenant;
using protocol::TenantState;

constexpr int kFormat = 1;

double in_seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }
double time_since(std::uint64_t then_ns, std::uint64_t now_ns) {
  return now_ns > then_ns ? in_seconds(now_ns - then_ns) : 0.0;
}

// "job 3 (notebook) of user anna" without the job's name. In a text that was cut to its field the
// name may be all that is left of this.
std::string jobs_unnamed(const std::string& text) {
  constexpr std::string_view kJob = "job ", kName = " (", kUser = ") of user ";
  for (std::size_t job = text.find(kJob); job != text.npos; job = text.find(kJob, job + 1)) {
    const std::size_t id = job + kJob.size();
    const std::size_t id_end = text.find_first_not_of("0123456789", id);
    if (id_end == text.npos) return text;
    if (id_end == id || text.compare(id_end, kName.size(), kName) != 0) continue;
    const std::size_t user = text.rfind(kUser);  // a name may hold these words as well
    const bool cut = user == text.npos || user < id_end;
    return text.substr(0, id_end) + (cut ? "" : text.substr(user + 1));
  }
  return text;
}

ordered_json slice_json(const protocol::SnapshotTenantGpu& vgpu, const WallView& view) {
  ordered_json out{{"tenant", vgpu.tenant},
                   {"memory_limit_bytes", vgpu.memory_max_bytes},
                   {"memory_used_bytes", vgpu.held_bytes},
                   {"memory_swapped_bytes", vgpu.swapped_bytes},
                   {"target_share", vgpu.sm_percent / 100.0},
                   {"guaranteed", vgpu.sm_kind == protocol::SmKind::kGuaranteed},
                   {"waiting", vgpu.wants != 0}};
  const VgpuKey key{vgpu.tenant, uuid_text(vgpu.gpu)};
  const auto share = view.recent.shares.find(key);
  if (share != view.recent.shares.end()) out["achieved_share"] = share->second.achieved;
  if (const auto idle = view.idle.table.find(key); idle != view.idle.table.end()) {
    out["busy_s"] = in_seconds(idle->second.busy_ns);
    for (std::size_t i = 0; i < kCauses; ++i)
      out["idle_s"][kCauseNames[i]] = in_seconds(idle->second.idle_ns[i]);
  }
  return out;
}

ordered_json gpu_json(const protocol::SnapshotGpu& gpu, const WallView& view, std::uint64_t shown) {
  const std::string uuid = uuid_text(gpu.uuid);
  ordered_json out{{"index", gpu.index},
                   {"uuid", uuid},
                   {"name", field_text(gpu.name, sizeof gpu.name)},
                   {"software", gpu.software != 0},
                   {"memory_capacity_bytes", gpu.capacity_bytes},
                   {"memory_promised_bytes", gpu.promised_bytes},
                   {"guaranteed_share", gpu.sm_guaranteed / 100.0},
                   {"memory_quota_bytes", gpu.promised_max_bytes},
                   {"memory_held_bytes", gpu.held_bytes},
                   {"allocated", allocated_of(*view.snapshot, gpu.uuid)},
                   {"exclusive", gpu.exclusive != 0},
                   {"draining", gpu.draining != 0},
                   {"drained", protocol::gpu_drained(gpu)},
                   {"lost", gpu.lost != 0}};
  const auto busy = view.recent.gpu_time.find(uuid);
  if (busy != view.recent.gpu_time.end()) out["busy"] = busy->second;
  const auto look = view.devices.gpus.find(uuid);
  if (view.devices.up && look != view.devices.gpus.end()) {
    if (look->second.used_bytes) out["memory_used_bytes"] = *look->second.used_bytes;
    if (look->second.processes)
      out["unmanaged_processes"] = beside_of(*view.snapshot, look->second).strangers;
    std::uint64_t errors = 0;
    for (const auto& [xid, count] : look->second.xids) errors += count;
    out["xid_errors"] = errors;
  }
  if (gpu.drain[0] != 0) out["drain"] = field_text(gpu.drain, sizeof gpu.drain);
  out["slices"] = ordered_json::array();
  for (const auto& vgpu : view.snapshot->tenant_gpus) {
    if (vgpu.gpu == gpu.uuid && vgpu.tenant <= shown)
      out["slices"].push_back(slice_json(vgpu, view));
  }
  return out;
}

// In the order of `sluice status`.
ordered_json gpus_json(const WallView& view, std::uint64_t shown) {
  std::vector<protocol::SnapshotGpu> gpus = view.snapshot->gpus;
  std::stable_sort(gpus.begin(), gpus.end(),
                   [](const auto& a, const auto& b) { return a.index < b.index; });
  ordered_json out = ordered_json::array();
  for (const auto& gpu : gpus) out.push_back(gpu_json(gpu, view, shown));
  return out;
}

ordered_json tenant_json(const SnapshotTenant& tenant, const WallView& view) {
  ordered_json out{{"tenant", tenant.tenant},
                   {"user", user_text(tenant)},
                   {"class", kClassNames[index_of(tenant.tenant_class)]},
                   {"profile", field_text(tenant.profile, sizeof tenant.profile)},
                   {"state", kStateNames[index_of(tenant.state)]},
                   {"age_s", time_since(tenant.admitted_ns, view.snapshot->header.taken_ns)},
                   {"processes", tenant.processes},
                   {"unregistered", tenant.unregistered},
                   {"unhooked", tenant.unhooked},
                   {"runaway", tenant.runaway != 0}};
  if (tenant.why[0] != 0) out["why"] = jobs_unnamed(field_text(tenant.why, sizeof tenant.why));
  if (tenant.steps > 0) {
    out["training"] = {{"steps", tenant.steps},
                       {"samples", tenant.samples},
                       {"tokens", tenant.tokens},
                       {"exposed_communication_s", in_seconds(tenant.exposed_communication_ns)}};
    if (std::isfinite(tenant.straggler_score) && tenant.straggler_score > 0)
      out["training"]["straggler"] = tenant.straggler_score;
  }
  const auto sched = view.watch.tenants.find(tenant.tenant);
  if (view.watch.enabled && sched != view.watch.tenants.end()) {
    out["off_cpu"] = {{"sleeping_s", in_seconds(sched->second.sleeping_ns)},
                      {"runnable_s", in_seconds(sched->second.runnable_ns)},
                      {"switches", sched->second.switches}};
  }
  return out;
}

ordered_json queued_json(const SnapshotTenant& tenant, std::uint64_t taken_ns) {
  ordered_json out{{"position", tenant.queue_position},
                   {"user", user_text(tenant)},
                   {"class", kClassNames[index_of(tenant.tenant_class)]},
                   {"profile", field_text(tenant.profile, sizeof tenant.profile)},
                   {"reason", kReasonNames[index_of(tenant.reason)]},
                   {"waited_s", time_since(tenant.asked_ns, taken_ns)}};
  if (tenant.why[0] != 0) out["why"] = jobs_unnamed(field_text(tenant.why, sizeof tenant.why));
  return out;
}

/// Columns, oldest first; null where a GPU was not known.
ordered_json hour_json(const WallView& view) {
  ordered_json out{{"ago_s", ordered_json::array()},
                   {"queued", ordered_json::array()},
                   {"running", ordered_json::array()},
                   {"gpus", ordered_json::object()}};
  std::size_t at = 0;
  for (const HourPoint& point : *view.hour) {
    out["ago_s"].push_back(std::round(time_since(point.end_ns, view.now_ns)));
    out["queued"].push_back(point.queued);
    out["running"].push_back(point.running);
    for (const auto& [uuid, figures] : point.gpus) {
      ordered_json& gpu = out["gpus"][uuid];
      if (gpu.is_null()) gpu = {{"busy", ordered_json::array()}, {"held", ordered_json::array()}};
      for (const auto& [name, value] : {std::pair{"busy", figures.busy}, {"held", figures.held}}) {
        while (gpu[name].size() < at) gpu[name].push_back(nullptr);
        gpu[name].push_back(std::round(value * 1000) / 1000);
      }
    }
    ++at;
  }
  return out;
}

}  // namespace

std::string wall_json(const WallView& view) {
  ordered_json out{{"format", kFormat}, {"up", view.snapshot != nullptr}};
  if (view.snapshot == nullptr) out["error"] = view.error;
  for (const char* list : {"gpus", "tenants", "queue"}) out[list] = ordered_json::array();
  if (view.snapshot != nullptr) {
    const auto& header = view.snapshot->header;
    out["taken_s"] = in_seconds(header.taken_ns);
    out["broker_uptime_s"] = time_since(header.started_ns, header.taken_ns);
    std::uint64_t shown = 0, running = 0;  // `shown`: the newest tenant with a row
    std::vector<const SnapshotTenant*> queue;
    for (const SnapshotTenant& tenant : view.snapshot->tenants) {
      if (tenant.state == TenantState::kQueued) {
        queue.push_back(&tenant);
      } else if (running++ < view.tenants_max) {
        shown = tenant.tenant;
        out["tenants"].push_back(tenant_json(tenant, view));
      }
    }
    std::stable_sort(queue.begin(), queue.end(), [](const auto* a, const auto* b) {
      return a->queue_position < b->queue_position;
    });
    for (const SnapshotTenant* tenant : queue) {
      if (out["queue"].size() < view.tenants_max)
        out["queue"].push_back(queued_json(*tenant, header.taken_ns));
    }
    out["tenants_in_all"] = running;
    out["queue_in_all"] = queue.size();
    out["gpus"] = gpus_json(view, shown);
  }
  out["idle_observer"] = {
      {"kind", view.idle.kind}, {"reason", view.idle.reason}, {"unseen_tenants", view.idle.unseen}};
  out["hour"] = hour_json(view);
  return out.dump();
}

void wall_pages_add(WebPages& pages) {
  pages["/"] = [] { return WebPage{"text/html; charset=utf-8", kWallHtml}; };
  pages["/wall.css"] = [] { return WebPage{"text/css; charset=utf-8", kWallCss}; };
  pages["/wall.js"] = [] { return WebPage{"text/javascript; charset=utf-8", kWallJs}; };
}

}  // namespace sluice::exporter
