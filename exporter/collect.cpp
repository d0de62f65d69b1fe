// The mapping of each figure to its family.
#include "exporter/collect.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "exporter/families.h"
#include "exporter/words.h"

namespace sluice::exporter {
namespace {

using protocol::SnapshotGpu;
using protocol::SnapshotTenant;
using protocol::SnapshotTenantGpu;
using protocol::TenantClass;
using protocol::TenantState;
using Labels = std::vector<prometheus::ClientMetric::Label>;

constexpr std::array<const char*, 3> kExitNames{"success", "failure", "signal"};

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

/// Families under construction, one per row of the table.
class Families {
 public:
  Families() : rows_(index_of(Family::kCount)) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      rows_[i].name = families()[i].name;
      rows_[i].help = families()[i].help;
      rows_[i].type = families()[i].type;
    }
  }

  void add(Family family, Labels labels, double value) {
    prometheus::MetricFamily& row = rows_[index_of(family)];
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    (row.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        value;
    row.metric.push_back(std::move(metric));
  }
  void add(Family family, Labels labels, std::uint64_t value) {
    add(family, std::move(labels), static_cast<double>(value));
  }

  /// The last of `counts` is of what is beyond all `bounds`.
  void add(Family family, Labels labels, std::span<const std::uint64_t> counts,
           std::span<const double> bounds, double sum) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    metric.histogram.sample_sum = sum;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      metric.histogram.sample_count += counts[i];
      const double bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({metric.histogram.sample_count, bound});
    }
    rows_[index_of(family)].metric.push_back(std::move(metric));
  }

  /// Those that have samples.
  std::vector<prometheus::MetricFamily> take() {
    std::erase_if(rows_, [](const auto& row) { return row.metric.empty(); });
    return std::move(rows_);
  }

 private:
  std::vector<prometheus::MetricFamily> rows_;
};

void broker_add(Families& out, const protocol::SnapshotHeader& header) {
  const std::uint64_t uptime =
      header.taken_ns > header.started_ns ? header.taken_ns - header.started_ns : 0;
  out.add(Family::kBrokerUptime, {}, seconds(uptime));
  out.add(Family::kBrokerRegistrations, {}, header.registrations);
  out.add(Family::kBrokerAdmissions, {}, header.admissions);
  out.add(Family::kBrokerRefusals, {}, header.refusals);
  for (std::size_t code = 1; code < protocol::kRefusalCodes; ++code) {
    out.add(Family::kBrokerRefused, {{"reason", protocol::kRefusalNames[code]}},
            header.refused_by_code[code]);
  }
  out.add(Family::kBrokerProtocolErrors, {}, header.protocol_errors);
  for (std::size_t kind = 0; kind < protocol::kProtocolErrors; ++kind) {
    out.add(Family::kBrokerProtocolErrorKinds, {{"kind", protocol::kProtocolErrorNames[kind]}},
            header.protocol_errors_by_kind[kind]);
  }
  out.add(Family::kBrokerReloads, {{"result", "success"}}, header.reloads_ok);
  out.add(Family::kBrokerReloads, {{"result", "failure"}}, header.reloads_failed);
  out.add(Family::kBrokerJournalFaults, {}, std::uint64_t{header.journal_faults});
  out.add(Family::kBrokerJournalLost, {}, header.journal_lost);
  out.add(Family::kBrokerSlowTurns, {}, header.slow_turns);
}

/// `allocated`: the sum of its tenants' shares.
void gpu_add(Families& out, const SnapshotGpu& gpu, double allocated, const RecentFigures& recent) {
  const Labels labels{{"gpu", uuid_text(gpu.uuid)}};
  out.add(Family::kGpuInfo,
          {labels[0],
           {"name", field_text(gpu.name, sizeof gpu.name)},
           {"software", gpu.software != 0 ? "true" : "false"}},
          1.0);
  out.add(Family::kGpuCapacity, labels, gpu.capacity_bytes);
  out.add(Family::kGpuPromised, labels, gpu.promised_bytes);
  out.add(Family::kGpuGuaranteedShare, labels, gpu.sm_guaranteed / 100.0);
  out.add(Family::kGpuQuota, labels, gpu.promised_max_bytes);
  out.add(Family::kGpuHeld, labels, gpu.held_bytes);
  out.add(Family::kGpuContext, labels, gpu.context_bytes);
  out.add(Family::kGpuBusy, labels, seconds(gpu.busy_ns));
  out.add(Family::kGpuUtilization, {labels[0], {"level", "allocated"}}, allocated);
  if (const auto time = recent.gpu_time.find(labels[0].value); time != recent.gpu_time.end())
    out.add(Family::kGpuUtilization, {labels[0], {"level", "time"}}, time->second);
  out.add(Family::kGpuLeasesGranted, labels, gpu.leases_granted);
  out.add(Family::kGpuLeasesRevoked, labels, gpu.leases_revoked);
  out.add(Family::kGpuOverruns, labels, gpu.overruns);
  out.add(Family::kGpuOverrunSeconds, labels, seconds(gpu.lease_overrun_ns));
  out.add(Family::kGpuExclusive, labels, gpu.exclusive != 0 ? 1.0 : 0.0);
  out.add(Family::kGpuDraining, labels, gpu.draining != 0 ? 1.0 : 0.0);
  out.add(Family::kGpuLost, labels, gpu.lost != 0 ? 1.0 : 0.0);
}

/// Tenants with several whole GPUs.
std::uint64_t gangs_of(const Snapshot& snapshot) {
  std::map<protocol::TenantId, std::size_t> gpus;
  for (const SnapshotTenantGpu& vgpu : snapshot.tenant_gpus) ++gpus[vgpu.tenant];
  return static_cast<std::uint64_t>(std::count_if(
      snapshot.tenants.begin(), snapshot.tenants.end(), [&gpus](const SnapshotTenant& tenant) {
        return tenant.state != TenantState::kQueued &&
               tenant.tenant_class == TenantClass::kExclusive && gpus[tenant.tenant] > 1;
      }));
}

/// Tenants of whole GPUs.
std::uint64_t exclusive_of(const Snapshot& snapshot) {
  return static_cast<std::uint64_t>(std::count_if(
      snapshot.tenants.begin(), snapshot.tenants.end(), [](const SnapshotTenant& tenant) {
        return tenant.state != TenantState::kQueued &&
               tenant.tenant_class == TenantClass::kExclusive;
      }));
}

/// What the driver says of a GPU, beside what the broker says of it.
void device_add(Families& out, const SnapshotGpu& gpu, const Snapshot& snapshot,
                const DeviceFigures& devices) {
  const Labels labels{{"gpu", uuid_text(gpu.uuid)}};
  const auto found = devices.gpus.find(labels[0].value);
  if (!devices.up || found == devices.gpus.end()) return;
  const DeviceLook& look = found->second;
  if (look.used_bytes) out.add(Family::kGpuMemoryUsed, labels, *look.used_bytes);
  if (look.sm_ratio) out.add(Family::kGpuUtilization, {labels[0], {"level", "sm"}}, *look.sm_ratio);
  for (const auto& [xid, count] : look.xids) {
    const std::string number = xid == kXidOther ? "other" : std::to_string(xid);
    out.add(Family::kGpuXids, {labels[0], {"xid", number}}, count);
  }
  if (!look.processes) return;
  const Beside beside = beside_of(snapshot, look);
  out.add(Family::kGpuUnmanagedProcesses, labels, beside.strangers);
  if (!beside.all_tell) return;
  out.add(Family::kGpuUnmanagedMemory, labels, beside.strange_bytes);
  out.add(Family::kGpuLedgerDrift, labels,
          static_cast<double>(beside.registered_bytes) - static_cast<double>(gpu.held_bytes));
}

/// Every combination is present, zeros too: a series that comes and goes cannot be alerted on.
void population_add(Families& out, const Snapshot& snapshot, const RecentFigures& recent) {
  std::array<std::array<std::uint64_t, kClassNames.size()>, kStateNames.size()> population{};
  std::array<std::uint64_t, kReasonNames.size()> queue{}, oldest_ns{};
  for (const SnapshotTenant& tenant : snapshot.tenants) {
    ++population[index_of(tenant.state)][index_of(tenant.tenant_class)];
    if (tenant.state != TenantState::kQueued) continue;
    const std::size_t reason = index_of(tenant.reason);
    ++queue[reason];
    if (snapshot.header.taken_ns > tenant.asked_ns)
      oldest_ns[reason] = std::max(oldest_ns[reason], snapshot.header.taken_ns - tenant.asked_ns);
  }
  out.add(Family::kExclusiveGangs, {}, gangs_of(snapshot));
  for (std::size_t s = 0; s < kStateNames.size(); ++s) {
    for (std::size_t c = 0; c < kClassNames.size(); ++c) {
      out.add(Family::kTenants, {{"state", kStateNames[s]}, {"class", kClassNames[c]}},
              population[s][c]);
    }
  }
  for (std::size_t r = 0; r < kReasonNames.size(); ++r) {
    out.add(Family::kQueueLength, {{"reason", kReasonNames[r]}}, queue[r]);
    out.add(Family::kQueueOldest, {{"reason", kReasonNames[r]}}, seconds(oldest_ns[r]));
    out.add(Family::kAdmissionWaits, {{"reason", kReasonNames[r]}}, recent.waits[r].counts,
            kWaitBounds_s, recent.waits[r].sum_s);
  }
}

/// The labels of a tenant: its own, or those of the rest of its class.
class TenantLabels {
 public:
  TenantLabels(const std::vector<SnapshotTenant>& tenants, std::uint32_t tenants_max) {
    std::uint32_t given = 0;
    for (const SnapshotTenant& tenant :
         tenants) {  // by number, so the oldest first: nobody's series changes hands
      if (tenant.state == TenantState::kQueued) continue;
      const bool own = given++ < tenants_max;
      labels_[tenant.tenant] = {
          {"tenant", own ? std::to_string(tenant.tenant) : "other"},
          {"user", own ? user_text(tenant) : "other"},
          {"class", kClassNames[index_of(tenant.tenant_class)]},
          {"profile", own ? field_text(tenant.profile, sizeof tenant.profile) : "other"}};
    }
  }

  /// Null for a tenant that is still queued.
  const Labels* find(protocol::TenantId tenant) const {
    const auto found = labels_.find(tenant);
    return found == labels_.end() ? nullptr : &found->second;
  }

 private:
  std::map<protocol::TenantId, Labels> labels_;
};

/// Sums what has the same labels, so that the rest of a class is one series.
class Sums {
 public:
  void add(Family family, const Labels& labels, double value) {
    auto& [row_labels, sum] = sums_[family][key_of(labels)];
    row_labels = labels;
    sum += value;
  }
  void add(Family family, const Labels& labels, std::uint64_t value) {
    add(family, labels, static_cast<double>(value));
  }
  void flush(Families& out) const {
    for (const auto& [family, rows] : sums_) {
      for (const auto& [key, row] : rows) out.add(family, row.first, row.second);
    }
  }

 private:
  // Tenants in the order of their numbers, "other" last.
  using Key = std::pair<std::uint64_t, std::string>;

 public:
  static Key key_of(const Labels& labels) {
    Key key{UINT64_MAX, {}};
    for (const auto& label : labels) {
      if (label.name == "tenant" && label.value != "other") key.first = std::stoull(label.value);
      key.second += label.value + '\0';
    }
    return key;
  }

 private:
  std::map<Family, std::map<Key, std::pair<Labels, double>>> sums_;
};

/// The same for histograms of the gate.
class TurnWaits {
 public:
  void add(const Labels& labels, const SnapshotTenant& tenant, std::uint64_t waited_ns) {
    Row& row = rows_[Sums::key_of(labels)];
    row.labels = labels;
    row.sum_s += seconds(waited_ns);
    for (std::size_t i = 0; i < row.counts.size(); ++i) row.counts[i] += tenant.gate_wait_counts[i];
  }
  void flush(Families& out) const {
    std::array<double, protocol::kGateWaitCounts - 1> bounds_s{};
    for (std::size_t i = 0; i < bounds_s.size(); ++i)
      bounds_s[i] = seconds(protocol::kGateWaitBounds_ns[i]);
    for (const auto& [key, row] : rows_)
      out.add(Family::kTenantTurnWaits, row.labels, row.counts, bounds_s, row.sum_s);
  }

 private:
  struct Row {
    Labels labels;
    std::array<std::uint64_t, protocol::kGateWaitCounts> counts{};
    double sum_s = 0;
  };
  std::map<std::pair<std::uint64_t, std::string>, Row> rows_;
};

void moves_add(Sums& out, const SnapshotTenantGpu& vgpu, const Labels& labels) {
  out.add(Family::kTenantMemoryMovable, labels, vgpu.movable_bytes);
  out.add(Family::kTenantMemorySwapped, labels, vgpu.swapped_bytes);
  // The parts are read one after the other while the tenant works: they may not quite fit.
  const std::uint64_t fixed = vgpu.held_bytes - std::min(vgpu.held_bytes, vgpu.movable_bytes);
  const std::uint64_t contexts = std::min(vgpu.context_bytes, fixed);
  for (const auto& [kind, bytes] : {std::pair{"contexts", contexts}, {"other", fixed - contexts}}) {
    Labels kinds = labels;
    kinds.push_back({"kind", kind});
    out.add(Family::kTenantMemoryNotMovable, kinds, bytes);
  }
  for (const auto& [direction, bytes] :
       {std::pair{"out", vgpu.moved_out_bytes}, {"in", vgpu.moved_in_bytes}}) {
    Labels directed = labels;
    directed.push_back({"direction", direction});
    out.add(Family::kTenantMovedBytes, directed, bytes);
  }
  for (const auto& [direction, ns] :
       {std::pair{"out", vgpu.suspending_ns}, {"in", vgpu.restoring_ns}}) {
    Labels directed = labels;
    directed.push_back({"direction", direction});
    out.add(Family::kTenantWaySeconds, directed, seconds(ns));
  }
  out.add(Family::kTenantMoves, labels, vgpu.moves);
  out.add(Family::kTenantMovesFailed, labels, std::uint64_t{vgpu.moves_failed});
  out.add(Family::kTenantMovingSeconds, labels, seconds(vgpu.moving_ns));
}

void vgpu_add(Sums& out, const SnapshotTenantGpu& vgpu, const Labels& tenant,
              const RecentFigures& recent) {
  Labels labels{{"gpu", uuid_text(vgpu.gpu)}};
  const auto share = recent.shares.find({vgpu.tenant, labels[0].value});
  labels.insert(labels.end(), tenant.begin(), tenant.end());
  out.add(Family::kTenantMemoryLimit, labels, vgpu.memory_max_bytes);
  out.add(Family::kTenantMemoryGuaranteed, labels, vgpu.memory_min_bytes);
  out.add(Family::kTenantMemoryUsed, labels, vgpu.held_bytes);
  out.add(Family::kTenantMemoryPeak, labels, vgpu.peak_bytes);
  moves_add(out, vgpu, labels);
  out.add(Family::kTenantGpuSeconds, labels, seconds(vgpu.busy_ns));
  out.add(Family::kTenantLeaseSeconds, labels, seconds(vgpu.lease_held_ns));
  const bool guaranteed = vgpu.sm_kind == protocol::SmKind::kGuaranteed;
  const double promised = guaranteed ? vgpu.sm_percent / 100.0 : 0;
  out.add(Family::kTenantGuaranteedShare, labels, promised);
  out.add(Family::kTenantShareWeight, labels, guaranteed ? 0.0 : vgpu.sm_percent);
  if (share != recent.shares.end()) {
    out.add(Family::kTenantAchievedShare, labels, share->second.achieved);
    // A sum of errors would mean nothing.
    if (guaranteed && share->second.waited && labels[1].value != "other")
      out.add(Family::kTenantShareError, labels, share->second.achieved - promised);
  }
  out.add(Family::kTenantGateWaits, labels, vgpu.gate_waits);
  out.add(Family::kTenantGateWaitSeconds, labels, seconds(vgpu.gate_wait_ns));
  out.add(Family::kTenantLaunches, labels, vgpu.launches);
  out.add(Family::kTenantGraphLaunches, labels, vgpu.graph_launches);
  out.add(Family::kTenantRefused, labels, vgpu.refused);
  out.add(Family::kTenantOverruns, labels, vgpu.overruns);
  out.add(Family::kTenantWaiting, labels, vgpu.wants != 0 ? 1.0 : 0.0);
}

/// What of a tenant's GPUs is told of all of them together.
struct WholeTenant {
  std::uint64_t gate_wait_ns = 0, refused = 0;
  bool over_quota = false;
};

void tenant_add(Sums& out, const SnapshotTenant& tenant, const WholeTenant& whole,
                const Labels& labels) {
  for (const auto& [reason, count] :
       {std::pair{"quota", whole.refused}, {"gpu_full", tenant.refused_full}}) {
    Labels reasons = labels;
    reasons.push_back({"reason", reason});
    out.add(Family::kTenantRefusals, reasons, count);
  }
  for (const auto& [reason, is_so] : {std::pair{"unhooked", tenant.unhooked > 0},
                                      {"unregistered", tenant.unregistered > 0},
                                      {"over_quota", whole.over_quota}}) {
    Labels reasons = labels;
    reasons.push_back({"reason", reason});
    out.add(Family::kTenantNotEnforced, reasons, is_so ? 1.0 : 0.0);
  }
  out.add(Family::kTenantProcesses, labels, std::uint64_t{tenant.processes});
  out.add(Family::kTenantUnregistered, labels, std::uint64_t{tenant.unregistered});
  out.add(Family::kTenantUnregisteredBytes, labels, tenant.unregistered_bytes);
  out.add(Family::kTenantRunaway, labels, tenant.runaway != 0 ? 1.0 : 0.0);
  out.add(Family::kTenantUnhooked, labels, tenant.unhooked);
  for (const TenantState state :
       {TenantState::kRunning, TenantState::kSwapped, TenantState::kSuspended}) {
    Labels stated = labels;
    stated.push_back({"state", kStateNames[index_of(state)]});
    out.add(Family::kTenantState, stated, tenant.state == state ? 1.0 : 0.0);
  }
  Labels stays = labels;
  stays.push_back({"reason", kStayNames[index_of(tenant.stays)]});
  out.add(Family::kTenantStays, stays, 1.0);
  if (tenant.steps == 0) return;  // no training job, or none that reports
  out.add(Family::kTrainingSteps, labels, tenant.steps);
  out.add(Family::kTrainingSamples, labels, tenant.samples);
  out.add(Family::kTrainingTokens, labels, tenant.tokens);
  out.add(Family::kTrainingExposed, labels, seconds(tenant.exposed_communication_ns));
  // The score is the job's own word, and a sum of scores would mean nothing.
  const bool sane = std::isfinite(tenant.straggler_score) && tenant.straggler_score > 0;
  if (sane && labels[0].value != "other") {
    out.add(Family::kTrainingStraggler, labels, tenant.straggler_score);
  }
}

void sched_add(Sums& out, const SchedFigures& figures, const Labels& tenant) {
  out.add(Family::kSchedSwitches, tenant, figures.switches);
  for (const auto& [state, ns] :
       {std::pair{"runnable", figures.runnable_ns}, {"sleeping", figures.sleeping_ns}}) {
    Labels labels = tenant;
    labels.push_back({"state", state});
    out.add(Family::kOffCpu, labels, seconds(ns));
  }
}

void idle_add(Sums& out, const std::string& gpu, const IdleFigures& figures, const Labels& tenant) {
  Labels labels{{"gpu", gpu}};
  labels.insert(labels.end(), tenant.begin(), tenant.end());
  for (std::size_t i = 0; i < kCauses; ++i) {
    Labels caused = labels;
    caused.push_back({"cause", kCauseNames[i]});
    out.add(Family::kTenantIdle, caused, seconds(figures.idle_ns[i]));
  }
  out.add(Family::kTenantIdleUnseen, labels, seconds(figures.unseen_ns));
}

void tenants_add(Families& out, const Snapshot& snapshot, const WatchFigures& watch,
                 std::uint32_t tenants_max, const RecentFigures& recent, const IdleState& idle) {
  const TenantLabels labels(snapshot.tenants, tenants_max);
  Sums sums;
  TurnWaits turn_waits;
  std::map<protocol::TenantId, WholeTenant> wholes;
  for (const SnapshotTenantGpu& vgpu : snapshot.tenant_gpus) {
    if (const Labels* tenant = labels.find(vgpu.tenant)) vgpu_add(sums, vgpu, *tenant, recent);
    WholeTenant& whole = wholes[vgpu.tenant];
    whole.gate_wait_ns += vgpu.gate_wait_ns;
    whole.refused += vgpu.refused;
    whole.over_quota |= vgpu.memory_max_bytes > 0 && vgpu.held_bytes > vgpu.memory_max_bytes;
  }
  for (const auto& [key, figures] : idle.table)
    if (const Labels* tenant = labels.find(key.first)) idle_add(sums, key.second, figures, *tenant);
  for (const SnapshotTenant& row : snapshot.tenants) {
    const Labels* tenant = labels.find(row.tenant);
    if (tenant == nullptr) continue;
    const WholeTenant& whole = wholes[row.tenant];
    tenant_add(sums, row, whole, *tenant);
    turn_waits.add(*tenant, row, whole.gate_wait_ns);
    const auto sched = watch.tenants.find(row.tenant);
    if (watch.enabled && sched != watch.tenants.end()) sched_add(sums, sched->second, *tenant);
  }
  sums.flush(out);
  turn_waits.flush(out);
}

/// Without a watcher nothing is counted, which is another thing than zero.
void bypass_add(Families& out, const std::optional<BypassFigures>& bypass) {
  out.add(Family::kBypassUp, {}, bypass ? 1.0 : 0.0);
  if (!bypass) return;
  for (std::size_t i = 0; i < kFoundBy; ++i) {
    const Labels source{{"source", kFoundByNames[i]}};
    out.add(Family::kBypassSource, source, bypass->sources[i] ? 1.0 : 0.0);
    out.add(Family::kUnmanagedFound, source, bypass->counts.found[i]);
  }
  out.add(Family::kUnmanagedProcesses, {{"exempt", "false"}}, bypass->counts.processes);
  out.add(Family::kUnmanagedProcesses, {{"exempt", "true"}}, bypass->counts.exempt);
  out.add(Family::kUnmanagedMemory, {}, bypass->counts.bytes);
  out.add(Family::kUnmanagedStopped, {}, bypass->counts.stopped);
}

void own_add(Families& out, const WatchFigures& watch, const OwnFigures& own) {
  out.add(Family::kBpfEnabled, {}, watch.enabled ? 1.0 : 0.0);
  out.add(Family::kBpfInfo, {{"reason", watch.reason}}, 1.0);
  for (std::size_t i = 0; watch.enabled && i < kExitNames.size(); ++i) {
    out.add(Family::kProcessExits, {{"result", kExitNames[i]}}, watch.exits[i]);
  }
  out.add(Family::kScrapeDuration, {}, own.scrape_duration_seconds);
  for (std::size_t i = 0; i < own.errors.size(); ++i) {
    const char* reason = kind_name(static_cast<SnapshotError::Kind>(i));
    out.add(Family::kScrapeErrors, {{"reason", reason}}, own.errors[i]);
  }
}

}  // namespace

std::string user_text(const protocol::SnapshotTenant& tenant) {
  const std::string name = field_text(tenant.user, sizeof tenant.user);
  return name.empty() ? std::to_string(tenant.uid) : name;
}

double allocated_of(const Snapshot& snapshot, const protocol::GpuUuid& gpu) {
  std::uint64_t percent = 0;
  for (const SnapshotTenantGpu& vgpu : snapshot.tenant_gpus)
    percent += vgpu.gpu == gpu ? vgpu.sm_percent : 0;
  return std::min(1.0, static_cast<double>(percent) / 100.0);
}

std::vector<prometheus::MetricFamily> metrics_collect(
    const Snapshot* snapshot, const WatchFigures& watch, const OwnFigures& own,
    std::uint32_t tenants_max, const RecentFigures& recent, const DeviceFigures& devices,
    const IdleState& idle, const std::optional<BypassFigures>& bypass) {
  Families out;
  out.add(Family::kUp, {}, snapshot != nullptr ? 1.0 : 0.0);
  if (snapshot != nullptr) {
    broker_add(out, snapshot->header);
    for (const SnapshotGpu& gpu : snapshot->gpus) {
      gpu_add(out, gpu, allocated_of(*snapshot, gpu.uuid), recent);
      device_add(out, gpu, *snapshot, devices);
    }
    population_add(out, *snapshot, recent);
    tenants_add(out, *snapshot, watch, tenants_max, recent, idle);
  }
  bypass_add(out, bypass);
  out.add(Family::kNvmlUp, {}, devices.up ? 1.0 : 0.0);
  own_add(out, watch, own);
  out.add(Family::kIdleObserver, {{"kind", idle.kind}, {"reason", idle.reason}}, 1.0);
  out.add(Family::kIdleUnseenTenants, {{"reason", "not_observed"}}, idle.unseen);
  out.add(Family::kIdleUnseenTenants, {{"reason", "exclusive"}},
          snapshot != nullptr ? exclusive_of(*snapshot) : 0);
  out.add(Family::kIdleLost, {}, idle.lost);
  return out.take();
}

}  // namespace sluice::exporter
