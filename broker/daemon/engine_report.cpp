// What the broker is told about jobs and what it tells about itself.
#include <algorithm>
#include <cstring>

#include "broker/daemon/engine.h"
#include "broker/daemon/snapshot.h"
#include "broker/protocol/gpu_index.h"

namespace sluice::daemon {

void Engine::job_report(const Asker& asker, const protocol::JobReport& message) {
  Tenant* tenant = tenant_of(asker, message.tenant, message.key);
  if (tenant == nullptr) return;
  // A smaller run may follow in the same job: ranks that it does not have count no more.
  tenant->ranks.erase(tenant->ranks.lower_bound(message.rank_count), tenant->ranks.end());
  tenant->ranks[message.rank] =
      JobFigures{message.steps, message.samples, message.tokens, message.exposed_communication_ns,
                 message.straggler_score};
}

void Engine::released(Tenant& tenant) {
  log_.line_of(tenant.uid, Level::kInfo, "released",
               {{"tenant", tenant.id}, {"name", tenant.name}});
  tenant.released = true;
  journal_tenant(tenant);
  for (std::uint32_t gpu = 0; gpu < tenant.gpus.size(); ++gpu) feed(memory_seen(tenant, gpu));
  feed(core::JobReleased{tenant.id});
}

void Engine::job_release(const Asker& asker, const protocol::Release& message) {
  Tenant* tenant = tenant_of(asker, message.tenant, message.key);
  if (tenant == nullptr) return;
  if (!tenant->released) released(*tenant);
  protocol::Done done;
  protocol::message_init(done, protocol::MessageType::kDone, asker.request);
  outbox_.send(asker.connection, done);
}

void Engine::snapshot_send(const Asker& asker) {
  std::uint64_t bytes = 0;
  const devices::Fd fd = snapshot_make(&bytes);
  if (!fd) {
    refuse(asker.connection, asker.request, protocol::RefusalCode::kNoRoom,
           "the broker has no memory or descriptors left for a snapshot; try again");
    return;
  }
  protocol::SnapshotReply reply;
  protocol::message_init(reply, protocol::MessageType::kSnapshotReply, asker.request);
  reply.bytes = bytes;
  const int fds[] = {fd.get()};
  outbox_.send_bytes(asker.connection, &reply, sizeof reply, fds, 1);
}

void Engine::activity_send(const Asker& asker, const protocol::ActivityRequest& message) {
  const auto found = tenants_.find(message.tenant);
  if (found == tenants_.end()) {
    refuse(asker.connection, asker.request, protocol::RefusalCode::kUnknownTenant,
           "there is no tenant " + std::to_string(message.tenant) + "; sluice status lists them");
    return;
  }
  const Tenant& tenant = *found->second;
  const uid_t uid = asker.peer.uid;
  const bool own = uid == 0 || uid == geteuid() || uid == tenant.uid;
  if (!own && uid != exporter_uid_) {
    refuse(asker.connection, asker.request, protocol::RefusalCode::kNotAllowed,
           "tenant " + std::to_string(message.tenant) +
               " is another user's; ask as that user, or as root");
    return;
  }
  protocol::ActivityReply reply;
  protocol::message_init(reply, protocol::MessageType::kActivityReply, asker.request);
  reply.tenant = message.tenant;
  // To be read: what tells the program's own user can be written by nobody else.
  const devices::Fd readable = tenant.pages->claims_readable();
  if (!readable) {
    refuse(asker.connection, asker.request, protocol::RefusalCode::kNoRoom,
           "the broker has no descriptors left for a page; try again");
    return;
  }
  const int fds[] = {readable.get()};
  outbox_.send_bytes(asker.connection, &reply, sizeof reply, fds, 1);
}

namespace {

void job_figures_fill(const Tenant& tenant, protocol::SnapshotTenant* out) {
  for (const auto& [rank, figures] : tenant.ranks) {
    out->steps = std::max(out->steps, figures.steps);  // ranks step together
    out->samples += figures.samples;
    out->tokens += figures.tokens;
    out->exposed_communication_ns =
        std::max(out->exposed_communication_ns, figures.exposed_communication_ns);
    out->straggler_score = std::max(out->straggler_score, figures.straggler_score);
  }
}

protocol::PolicyOrder order_tell(core::Order order) {
  switch (order) {
    case core::Order::kFair:
      return protocol::PolicyOrder::kFair;
    case core::Order::kRoundRobin:
      return protocol::PolicyOrder::kRoundRobin;
    case core::Order::kFifo:
      break;
  }
  return protocol::PolicyOrder::kFifo;
}

protocol::ExclusiveRule exclusive_tell(core::ExclusiveRoom room) {
  switch (room) {
    case core::ExclusiveRoom::kWait:
      return protocol::ExclusiveRule::kWait;
    case core::ExclusiveRoom::kSuspend:
      return protocol::ExclusiveRule::kSuspend;
    case core::ExclusiveRoom::kMove:
      break;
  }
  return protocol::ExclusiveRule::kMove;
}

void usage_fill(const Usage& usage, protocol::SnapshotTenantGpu* out) {
  out->held_bytes = usage.held_bytes;
  out->peak_bytes = usage.peak_bytes;
  out->busy_ns = usage.busy_ns;
  out->launches = usage.launches;
  out->graph_launches = usage.graph_launches;
  out->gate_waits = usage.gate_waits;
  out->gate_wait_ns = usage.gate_wait_ns;
  out->refused = usage.refused;
}

std::uint64_t held_by(const Tenant& tenant, const Process& process) {
  std::uint64_t all = 0;
  for (std::uint32_t gpu = 0; gpu < tenant.gpus.size(); ++gpu)
    all += std::min(tenant.pages->slot_held(process.slot, gpu), tenant.quota_most);
  return all;
}

}  // namespace

/// What is known of a request by who asks and where it stands in the line: the core's rows have no
/// number.
void Engine::queued_fill(protocol::SnapshotTenant* row) const {
  text_store(row->profile, sizeof row->profile, profiles_.find({row->uid, {}, {}}).name);
  for (const auto& [id, pending] : pending_) {
    if (pending.uid != row->uid || !pending.place || pending.place->position != row->queue_position)
      continue;
    text_store(row->profile, sizeof row->profile, pending.profile);
    std::memcpy(row->ahead, pending.place->ahead, sizeof row->ahead);
    if (row->why[0] == '\0') std::memcpy(row->why, pending.place->text, sizeof row->why);
  }
}

protocol::SnapshotPolicy Engine::policy_tell() const {
  const core::Policy policy = policy_make(config_, profiles_, capacity_min());
  protocol::SnapshotPolicy out{};
  out.order = order_tell(policy.order);
  out.swap_all = config_.swap == "on";
  out.exclusive = exclusive_tell(policy.exclusive_room);
  out.runaway_ends = policy.runaway == core::RunawayPolicy::kEnd;
  out.oversell_permille = static_cast<std::uint32_t>(policy.oversell_memory * 1000 + 0.5);
  out.quantum_ns = static_cast<std::uint64_t>(policy.quantum_ns);
  out.swap_quantum_ns = static_cast<std::uint64_t>(policy.swap_quantum_ns);
  out.swap_host_max_bytes = policy.swap_host_bytes_per_user;
  return out;
}

/// The core's view, with the claims, names and processes that only the daemon knows.
devices::Fd Engine::snapshot_make(std::uint64_t* bytes) {
  SnapshotParts parts;
  core::View view = core::state_view(*state_, clock_ns());
  for (std::size_t g = 0; g < view.gpus.size(); ++g)
    text_store(view.gpus[g].drain, sizeof view.gpus[g].drain, named_text(view.drains[g]));
  for (std::size_t i = 0; i < view.stops.size(); ++i)
    text_store(view.tenants[i].why, sizeof view.tenants[i].why, named_text(view.stops[i]));
  for (std::size_t i = 0; i < view.waits.size(); ++i) {  // the queue stands behind the admitted
    protocol::SnapshotTenant& row = view.tenants[view.stops.size() + i];
    text_store(row.why, sizeof row.why, named_text(view.waits[i]));
  }
  parts.gpus = std::move(view.gpus);
  parts.tenants = std::move(view.tenants);
  parts.ended.assign(ended_.begin(), ended_.end());
  parts.tenant_gpus = std::move(view.tenant_gpus);
  for (protocol::SnapshotTenantGpu& row : parts.tenant_gpus) {
    Tenant* tenant = tenant_find(row.tenant);
    if (tenant == nullptr) continue;
    const auto at = std::find(tenant->gpus.begin(), tenant->gpus.end(), row.gpu);
    if (at == tenant->gpus.end()) continue;
    const auto gpu = static_cast<std::uint32_t>(at - tenant->gpus.begin());
    usage_fill(tenant->pages->usage(gpu), &row);
    row.busy_ns = std::min(row.busy_ns, lived_ns(*tenant));
    const MemoryClaims memory = memory_of(*tenant, gpu);
    row.movable_bytes = memory.movable_bytes;
    row.context_bytes = std::min(memory.context_bytes,
                                 row.held_bytes - std::min(row.held_bytes, row.movable_bytes));
    row.swapped_bytes = memory.swapped_bytes;
  }
  for (protocol::SnapshotGpu& row : parts.gpus) {
    row.held_bytes = 0;
    row.busy_ns = 0;
    const std::uint32_t g = protocol::gpu_index(gpus_, row.uuid);
    if (g < gpus_.size()) {
      text_store(row.name, sizeof row.name, gpus_[g].name);
      row.software = gpus_[g].software;
      row.busy_ns = retired_busy_ns_[g];
    }
    for (const protocol::SnapshotTenantGpu& used : parts.tenant_gpus) {
      if (!(used.gpu == row.uuid)) continue;
      // A lie is its own tenant's; in the sum it counts for no more than was ever promised to it.
      const Tenant* tenant = tenant_find(used.tenant);
      const std::uint64_t most = tenant == nullptr ? used.memory_max_bytes : tenant->quota_most;
      std::uint64_t held = std::min(used.held_bytes, most);
      if (tenant != nullptr && tenant->stay.frozen)  // the rest is in the host
        held = left_bytes(*tenant, row.uuid);
      row.held_bytes += held - std::min(held, used.swapped_bytes);
      row.busy_ns += used.busy_ns;
    }
  }
  for (protocol::SnapshotTenant& row : parts.tenants) {
    text_store(row.user, sizeof row.user, accounts_.name(row.uid));
    const Tenant* tenant = row.tenant == 0 ? nullptr : tenant_find(row.tenant);
    if (tenant == nullptr) {  // queued: still nameless to the core's side of the table
      queued_fill(&row);
      continue;
    }
    row.admitted_ns = static_cast<std::uint64_t>(tenant->admitted_ns);
    row.asked_ns = static_cast<std::uint64_t>(tenant->asked_ns);
    text_store(row.name, sizeof row.name, tenant->name);
    text_store(row.profile, sizeof row.profile, tenant->profile);
    row.processes = static_cast<std::uint32_t>(std::ranges::count_if(
        tenant->processes,
        [this](core::ProcessId id) { return processes_.at(id)->ending == Ending::kLives; }));
    row.unhooked = tenant->pages->unhooked();
    row.distrust = tenant->distrust;
    constexpr std::int64_t kSecond_ns = 1'000'000'000;
    row.idle_s = static_cast<std::uint32_t>(idle_told_ns(*tenant) / kSecond_ns);
    const WaitUsage waits = tenant->pages->waits();
    std::copy(waits.gate_wait_counts.begin(), waits.gate_wait_counts.end(), row.gate_wait_counts);
    row.refused_full = waits.refused_full;
    job_figures_fill(*tenant, &row);
  }
  std::unordered_map<protocol::TenantId, protocol::SnapshotTenant*> rows;
  for (protocol::SnapshotTenant& row : parts.tenants)
    if (row.tenant != 0) rows.emplace(row.tenant, &row);
  for (const auto& [id, process] : processes_) {
    protocol::SnapshotProcess row{};
    row.tenant = process->tenant;
    row.pid = static_cast<std::uint32_t>(process->pid);
    row.slot = static_cast<std::uint16_t>(process->slot);
    row.lost = process->lost;
    row.ended = process->ending == Ending::kKept;
    text_store(row.command, sizeof row.command, row.ended ? process->keepers : process->command);
    if (process->ending != Ending::kDoubt) parts.processes.push_back(row);
    if (process->ending != Ending::kLives) continue;
    const auto at = rows.find(process->tenant);
    if ((process->connection != 0 && !process->lost) || at == rows.end()) continue;
    protocol::SnapshotTenant& tenant = *at->second;
    tenant.unregistered += process->connection == 0;
    if (process->connection == 0)
      tenant.unregistered_bytes += held_by(*tenants_.at(process->tenant), *process);
    tenant.lost_processes =
        static_cast<std::uint8_t>(std::min(tenant.lost_processes + (process->lost ? 1 : 0), 255));
  }
  parts.header.taken_ns = static_cast<std::uint64_t>(clock_ns());
  parts.header.started_ns = static_cast<std::uint64_t>(started_ns_);
  parts.header.registrations = counters_.registrations;
  parts.header.admissions = counters_.admissions;
  parts.header.refusals = counters_.refusals;
  parts.header.protocol_errors = counters_.protocol_errors;
  std::copy(counters_.refused_by_code.begin(), counters_.refused_by_code.end(),
            parts.header.refused_by_code);
  std::copy(counters_.protocol_errors_by_kind.begin(), counters_.protocol_errors_by_kind.end(),
            parts.header.protocol_errors_by_kind);
  parts.header.reloads_ok = counters_.reloads_ok;
  parts.header.reloads_failed = counters_.reloads_failed;
  const std::uint64_t faults = journal_ == nullptr ? 0 : journal_->faults();
  parts.header.journal_faults = static_cast<std::uint16_t>(std::min<std::uint64_t>(faults, 65535));
  parts.header.slow_turns = loop_.slow_turns();
  parts.header.journal_lost = journal_ == nullptr ? 0 : journal_->lost();
  parts.header.policy = policy_tell();
  text_store(parts.header.config_path, sizeof parts.header.config_path, config_.path);
  return snapshot_seal(parts, bytes);
}

}  // namespace sluice::daemon
