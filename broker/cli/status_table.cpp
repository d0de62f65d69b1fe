// The table of `sluice status`: columns as wide as their content, GPUs first, then jobs, then the
// queue.
#include <algorithm>

#include "broker/cli/admission.h"
#include "broker/cli/status.h"
#include "broker/cli/text_width.h"
#include "broker/devices/uuid.h"
#include "broker/protocol/gpu_index.h"
#include "config/reader/config.h"

namespace sluice::cli {
namespace {

using Row = std::vector<std::string>;

constexpr std::size_t kColumns = 80;  // of sentences

// Left-aligned, two spaces between columns, nothing after the last.
std::string rows_format(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], text_width(row[i]));
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - text_width(row[i]) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string bytes_of(std::uint64_t part, std::uint64_t whole) {
  return config::size_format(part) + " / " + config::size_format(whole);
}

const protocol::SnapshotTenant* tenant_find(const Snapshot& snapshot, protocol::TenantId id) {
  for (const protocol::SnapshotTenant& tenant : snapshot.tenants) {
    if (tenant.tenant == id && tenant.state != protocol::TenantState::kQueued) return &tenant;
  }
  return nullptr;
}

std::string gpu_number(const Snapshot& snapshot, const protocol::GpuUuid& uuid) {
  const std::uint32_t g = protocol::gpu_index(snapshot.gpus, uuid);
  return g < snapshot.gpus.size() ? std::to_string(g) : "?";
}

/// "idle 10 s"; empty = it uses or wants a GPU, or that is not known.
std::string idle_text(const protocol::SnapshotTenant& tenant) {
  constexpr std::int64_t kSecond_ns = 1'000'000'000;
  if (tenant.idle_s == 0 || tenant.runaway != 0) return "";
  return "idle " + config::duration_format(tenant.idle_s * kSecond_ns);
}

std::string holder_text(const Snapshot& snapshot, const protocol::SnapshotGpu& gpu) {
  if (gpu.lost != 0) return "LOST, takes no jobs";
  const protocol::SnapshotTenant* holder =
      gpu.holder == 0 ? nullptr : tenant_find(snapshot, gpu.holder);
  std::string text = "free";
  if (holder != nullptr) {
    const std::string idle = idle_text(*holder);
    text = field_text(holder->name, sizeof holder->name) + (idle.empty() ? " runs" : " is " + idle);
  }
  if (protocol::gpu_drained(gpu)) return "drained";
  if (gpu.exclusive != 0) text += ", exclusive";
  if (gpu.draining != 0) text += ", draining";
  return text;
}

std::string gpu_lines(const Snapshot& snapshot) {
  std::vector<Row> rows = {{"GPU", "NAME", "HELD / CAPACITY", "PROMISED", "GUARANTEED", "JOBS",
                            "GPU TIME", "NOW", "UUID"}};
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    const protocol::SnapshotGpu& gpu = snapshot.gpus[i];
    rows.push_back(
        {"[" + std::to_string(i) + "]", field_text(gpu.name, sizeof gpu.name),
         bytes_of(gpu.held_bytes, gpu.capacity_bytes), config::size_format(gpu.promised_bytes),
         std::to_string(gpu.sm_guaranteed) + " %", std::to_string(gpu.tenants),
         seconds_text(gpu.busy_ns), holder_text(snapshot, gpu), devices::uuid_format(gpu.uuid)});
  }
  return rows_format(rows);
}

std::string share_text(const protocol::SnapshotTenant& tenant,
                       const protocol::SnapshotTenantGpu& part) {
  if (tenant.tenant_class == protocol::TenantClass::kExclusive) return "whole";
  if (tenant.sm_mode == protocol::SmMode::kEqual) return sm_mode_name(tenant.sm_mode);
  const std::string percent = std::to_string(part.sm_percent);
  std::string text = part.sm_kind == protocol::SmKind::kGuaranteed ? percent + " % guaranteed"
                                                                   : "weight " + percent;
  if (tenant.sm_mode == protocol::SmMode::kFixed)
    text += std::string(", ") + sm_mode_name(tenant.sm_mode);
  return text;
}

/// The tenant's ended processes that the device still has memory of, and what keeps it there.
std::string kept_text(const Snapshot& snapshot, protocol::TenantId tenant) {
  std::size_t ended = 0;
  std::string keepers;
  for (const protocol::SnapshotProcess& process : snapshot.processes) {
    if (process.tenant != tenant || process.ended == 0) continue;
    if (ended++ == 0) keepers = field_text(process.command, sizeof process.command);
  }
  if (ended == 0) return "";
  return ", memory of " + std::to_string(ended) + " ended process" + (ended == 1 ? "" : "es") +
         " kept by " + (keepers.empty() ? "unknown" : "pid " + keepers);
}

/// What a running job does now. One that owes GPU time waits until that is paid back.
std::string running_text(const protocol::SnapshotTenant& tenant,
                         const protocol::SnapshotTenantGpu& part) {
  constexpr std::uint64_t kOwedLeastNs = 50'000'000;
  const std::string idle = idle_text(tenant);
  if (part.wants == 0) return idle.empty() ? "running" : idle;
  if (part.owed_ns < kOwedLeastNs) return "waits for GPU";
  return "pays back " + seconds_text(part.owed_ns);
}

std::string state_text(const Snapshot& snapshot, const protocol::SnapshotTenant& tenant,
                       const protocol::SnapshotTenantGpu& part) {
  std::string text = tenant.state == protocol::TenantState::kRunning ? running_text(tenant, part)
                                                                     : state_name(tenant.state);
  if (part.swapped_bytes != 0) text += ", " + config::size_format(part.swapped_bytes) + " out";
  if (tenant.distrust != 0) text += ", NOT TRUSTED (" + distrust_text(tenant.distrust) + ")";
  if (tenant.runaway != 0) text += ", RUNAWAY";
  if (tenant.lost_processes != 0) text += ", " + std::to_string(tenant.lost_processes) + " LOST";
  if (tenant.unregistered != 0)
    text += ", " + std::to_string(tenant.unregistered) + " unregistered";
  text += kept_text(snapshot, tenant.tenant);
  return text;
}

std::string job_lines(const Snapshot& snapshot) {
  std::vector<Row> rows = {{"JOB", "NAME", "USER", "CLASS", "GPU", "HELD / LIMIT", "SHARE",
                            "GPU TIME", "PROCS", "STATE"}};
  for (const protocol::SnapshotTenantGpu& part : snapshot.tenant_gpus) {
    const protocol::SnapshotTenant* tenant = tenant_find(snapshot, part.tenant);
    if (tenant == nullptr) continue;
    rows.push_back({std::to_string(tenant->tenant), field_text(tenant->name, sizeof tenant->name),
                    field_text(tenant->user, sizeof tenant->user), class_name(tenant->tenant_class),
                    gpu_number(snapshot, part.gpu),
                    bytes_of(part.held_bytes, part.memory_max_bytes), share_text(*tenant, part),
                    seconds_text(part.busy_ns), std::to_string(tenant->processes),
                    state_text(snapshot, *tenant, part)});
  }
  return rows.size() == 1 ? "no jobs\n" : rows_format(rows);
}

/// Of jobs whose memory may be moved: what of it may not, and why.
std::string stay_lines(const Snapshot& snapshot) {
  std::string out;
  for (const protocol::SnapshotTenantGpu& part : snapshot.tenant_gpus) {
    const protocol::SnapshotTenant* tenant = tenant_find(snapshot, part.tenant);
    if (tenant == nullptr || tenant->stays == protocol::StayReason::kNotSwappable ||
        tenant->stays == protocol::StayReason::kExclusive)
      continue;
    const std::uint64_t fixed = part.held_bytes - std::min(part.held_bytes, part.movable_bytes);
    const std::uint64_t contexts = std::min(part.context_bytes, fixed);
    const std::string job = "job " + std::to_string(tenant->tenant) + " " +
                            field_text(tenant->name, sizeof tenant->name) + " on GPU " +
                            gpu_number(snapshot, part.gpu) + ": ";
    if (tenant->stays != protocol::StayReason::kGoes) {
      out += job + "all of its " + config::size_format(part.held_bytes) + " stays (" +
             protocol::stay_reason_name(tenant->stays) + ")\n";
    } else if (fixed > contexts) {  // every job has contexts
      out += job + config::size_format(fixed) + " of " + config::size_format(part.held_bytes) +
             " cannot be moved: " + config::size_format(contexts) + " contexts and code, " +
             config::size_format(fixed - contexts) +
             " in pools, arrays, managed memory, graphs or mappings of its own\n";
    }
  }
  return out.empty() ? out : "\n" + out;
}

/// Whom the driver has lost: nothing but their end helps.
std::string lost_lines(const Snapshot& snapshot) {
  std::string out;
  for (const protocol::SnapshotProcess& process : snapshot.processes) {
    const protocol::SnapshotTenant* tenant = tenant_find(snapshot, process.tenant);
    if (process.lost == 0 || tenant == nullptr) continue;
    out += "job " + std::to_string(tenant->tenant) + " " +
           field_text(tenant->name, sizeof tenant->name) +
           ": the driver's checkpoint has lost process " + std::to_string(process.pid) + " (" +
           field_text(process.command, sizeof process.command) + "); it can only be ended: kill " +
           std::to_string(process.pid) + "\n";
  }
  return out.empty() ? out : "\n" + out;
}

std::string why_line(const std::string& head, const protocol::SnapshotTenant& tenant) {
  const std::string why = field_text(tenant.why, sizeof tenant.why);
  if (why.empty()) return "";
  return text_wrapped(head + " " + field_text(tenant.name, sizeof tenant.name) + ": " + why,
                      kColumns) +
         "\n";
}

/// Of jobs that do not run by the broker's doing: why.
std::string stopped_lines(const Snapshot& snapshot) {
  std::string out;
  for (const protocol::SnapshotTenant& tenant : snapshot.tenants)
    if (tenant.state != protocol::TenantState::kQueued)
      out += why_line("job " + std::to_string(tenant.tenant), tenant);
  return out.empty() ? out : "\n" + out;
}

/// What is left on a GPU that takes no new jobs.
std::string left_text(const protocol::SnapshotGpu& gpu) {
  if (protocol::gpu_drained(gpu)) return "nothing is left on it";
  if (gpu.tenants == 0)
    return "no job runs on it, but suspended ones hold " + config::size_format(gpu.held_bytes) +
           " of it (contexts): a reset ends them";
  return std::to_string(gpu.tenants) +
         (gpu.tenants == 1 ? " job is still on it" : " jobs are still on it");
}

/// Of GPUs that take no new jobs by command: whose command it was, and why.
std::string drain_lines(const Snapshot& snapshot) {
  std::string out;
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    const protocol::SnapshotGpu& gpu = snapshot.gpus[i];
    if (gpu.closed == 0) continue;
    out += text_wrapped("GPU " + std::to_string(i) + ": " +
                            field_text(gpu.drain, sizeof gpu.drain) + "; " + left_text(gpu),
                        kColumns) +
           "\n";
  }
  return out.empty() ? out : "\n" + out;
}

/// "1st train" of one, "1st to 3rd, 5th" of several; `places` in order.
std::string places_text(const std::vector<const protocol::SnapshotTenant*>& places) {
  const protocol::SnapshotTenant& first = *places.front();
  std::string text = ordinal(first.queue_position);
  if (places.size() == 1) return text + " " + field_text(first.name, sizeof first.name);
  for (std::size_t i = 1; i < places.size(); ++i) {
    std::size_t end = i;
    const auto next = [&](std::size_t at) {
      return at < places.size() && places[at]->queue_position == places[at - 1]->queue_position + 1;
    };
    while (next(end)) ++end;
    const bool run = end > i;
    if (run) i = end - 1;
    text += (run ? " to " : ", ") + ordinal(places[i]->queue_position);
  }
  return text;
}

/// What those in line wait for; `waiting` in its order. Who waits for the same is named together.
std::string wait_lines(const std::vector<const protocol::SnapshotTenant*>& waiting) {
  std::vector<std::pair<std::string, std::vector<const protocol::SnapshotTenant*>>> whys;
  for (const protocol::SnapshotTenant* tenant : waiting) {
    const std::string why = field_text(tenant->why, sizeof tenant->why);
    if (why.empty()) continue;
    const auto same = std::ranges::find(whys, why, [](const auto& entry) { return entry.first; });
    if (same == whys.end())
      whys.push_back({why, {tenant}});
    else
      same->second.push_back(tenant);
  }
  std::string out;
  for (const auto& [why, places] : whys)
    out += text_wrapped(places_text(places) + ": " + why, kColumns) + "\n";
  return out;
}

std::string queue_lines(const Snapshot& snapshot) {
  std::vector<const protocol::SnapshotTenant*> waiting;
  for (const protocol::SnapshotTenant& tenant : snapshot.tenants) {
    if (tenant.state == protocol::TenantState::kQueued) waiting.push_back(&tenant);
  }
  if (waiting.empty()) return "";
  std::sort(waiting.begin(), waiting.end(),
            [](const auto* a, const auto* b) { return a->queue_position < b->queue_position; });
  std::vector<Row> rows = {{"LINE", "NAME", "USER", "CLASS", "WAITED", "REASON", "BEHIND"}};
  for (const protocol::SnapshotTenant* tenant : waiting) {
    const std::uint64_t now = snapshot.header.taken_ns;
    rows.push_back({ordinal(tenant->queue_position), field_text(tenant->name, sizeof tenant->name),
                    field_text(tenant->user, sizeof tenant->user), class_name(tenant->tenant_class),
                    seconds_text(now > tenant->asked_ns ? now - tenant->asked_ns : 0),
                    protocol::queue_reason_name(tenant->reason),
                    tenant->ahead[0] == 0 ? "-" : field_text(tenant->ahead, sizeof tenant->ahead)});
  }
  const std::string whys = wait_lines(waiting);
  return "\n" + rows_format(rows) + (whys.empty() ? "" : "\n" + whys);
}

std::string ratio_text(std::uint32_t permille) {
  std::string text =
      std::to_string(permille / 1000) + "." + std::to_string(permille % 1000 + 1000).substr(1);
  while (text.back() == '0' && text[text.size() - 2] != '.') text.pop_back();
  return text;
}

/// The rules in force, in the words of the configuration.
std::string policy_lines(const protocol::SnapshotPolicy& policy) {
  if (policy.quantum_ns == 0) return "";
  const auto duration = [](std::uint64_t ns) {
    return config::duration_format(static_cast<std::int64_t>(ns));
  };
  return std::string("\npolicy ") + protocol::policy_order_name(policy.order) + ", quantum " +
         duration(policy.quantum_ns) + "; exclusive " +
         protocol::exclusive_rule_name(policy.exclusive) + "; oversell " +
         ratio_text(policy.oversell_permille) + "; swap " +
         (policy.swap_all != 0 ? "on" : "off (on request)") + ", quantum " +
         duration(policy.swap_quantum_ns) + ", host memory " +
         config::size_format(policy.swap_host_max_bytes) + " per user; runaway " +
         (policy.runaway_ends != 0 ? "end" : "report") + "\n";
}

}  // namespace

std::string status_table(const Snapshot& snapshot) {
  return gpu_lines(snapshot) + drain_lines(snapshot) + "\n" + job_lines(snapshot) +
         stopped_lines(snapshot) + lost_lines(snapshot) + stay_lines(snapshot) +
         queue_lines(snapshot) + policy_lines(snapshot.header.policy);
}

}  // namespace sluice::cli
