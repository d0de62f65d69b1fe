// Ends of processes, founders and connections, and the heartbeat, which also looks for what no
// message tells: an exec, drains and holds of unregistered processes, GPUs whose drain is over.
//
// A process is dead only when its pidfd says so. A closed socket makes a living process
// unregistered (its charges stay, its lease is revoked, its drains are read from its claims); exec
// keeps the pid but throws the shim and its contexts away.
#include <fcntl.h>

#include <bit>
#include <cassert>

#include "broker/daemon/engine.h"
#include "broker/devices/uuid.h"

namespace sluice::daemon {
namespace {

// A process on its way out loses its mappings before its pidfd speaks; a second tells it from one
// that called exec.
constexpr int kBeatsBeforeExec = 4;
// A look costs some 20 us: a millisecond a beat, and ever less often at a process that stays as it
// is.
constexpr int kExecLooksPerBeat = 50;
constexpr int kExecLookEveryBeats = 256;

bool exec_look_due(int beats) {
  if (beats < kBeatsBeforeExec) return false;
  return std::has_single_bit(static_cast<unsigned>(beats)) || beats % kExecLookEveryBeats == 0;
}

}  // namespace

/// The founder has ended, or nothing can come of it any more (grant_lost).
void Engine::founder_drop(protocol::TenantId id) {
  Tenant* tenant = tenant_find(id);
  assert(tenant != nullptr);
  loop_.remove(tenant->founder_key);
  tenant->founder_key = 0;
  tenant->founder_pidfd.reset();
  log_.line(Level::kDebug, "founder_ended", {{"tenant", id}, {"pid", tenant->founder_pid}});
  journal_tenant(*tenant);
  founder_gone(*tenant);
}

/// It can do nothing any more. Begins a doubt if it had memory on a device that can be asked
/// whether it has returned it (engine_kept.cpp); otherwise the process is over.
void Engine::process_end_seen(core::ProcessId id, End end) {
  Process& process = *processes_.at(id);
  Tenant& tenant = *tenants_.at(process.tenant);
  loop_.remove(process.key);
  process.key = 0;
  if (process.connection != 0) {
    shims_.erase(process.connection);
    outbox_.drop(process.connection);
    process.connection = 0;
  }
  process.unclean = end == End::kExited && !tenant.pages->leaving(process.slot);
  log_.line_of(tenant.uid, Level::kInfo, "process_ended",
               {{"tenant", tenant.id},
                {"pid", process.pid},
                {"how", end == End::kExec ? "exec"
                        : process.unclean ? "crashed"
                                          : "exited"}});
  if (process.unclean) {
    ++tenant.crashes;
    tenant.crashed = "process " + std::to_string(process.pid) + " (" + process.command + ")";
  }
  if (journal_ != nullptr)
    journal_->process_end(tenant.id,
                          {static_cast<std::uint32_t>(process.pid), process.start_ticks});
  process.on_device = device_bytes_of(tenant, process.slot);
  if (!process.on_device.empty()) doubt_begin(process, tenant);
  // Perhaps it was the one that others wait for. An answer registers, and can end processes, this
  // one among them: not before this is over.
  if (process.restored) loop_.defer([this, id = tenant.id] { knocks_answer_if_due(id); });
  process.restored = false;
  if (process.on_device.empty()) process_over(id);
}

/// exec: the same process, another program. Its account is closed; if it was all that was left of
/// the job it stands in for the founder, so that the job lasts until it ends or registers again.
void Engine::process_replaced(core::ProcessId id) {
  const Process& process = *processes_.at(id);
  Tenant& tenant = *tenants_.at(process.tenant);
  if (!tenant.founder_pidfd) {
    tenant.founder_pidfd = devices::Fd(fcntl(process.pidfd.get(), F_DUPFD_CLOEXEC, 0));
    if (tenant.founder_pidfd) {
      tenant.founder_pid = process.pid;
      tenant.founder_start_ticks = process.start_ticks;
      tenant.in_grace = false;
      journal_tenant(tenant);
      tenant.founder_key = loop_.add(
          tenant.founder_pidfd.get(), [this, tenant_id = tenant.id] { founder_drop(tenant_id); },
          "founder's end");
      feed(core::FounderAdopted{tenant.id});
    }
  }
  process_end_seen(id, End::kExec);
}

/// Whoever asked gave up before the answer reached it, and nobody else knows the key: nobody could
/// ever use or end the job.
void Engine::grant_lost(ConnectionId connection) {
  std::vector<protocol::TenantId> lost;
  for (const auto& [id, tenant] : tenants_) {
    if (tenant->granted_on == connection && tenant->founder_pidfd) lost.push_back(id);
  }
  for (const protocol::TenantId id : lost) founder_drop(id);
}

void Engine::connection_closed(ConnectionId connection, bool unread) {
  if (unread) grant_lost(connection);
  knock_withdraw(connection);
  questions_.erase(connection);
  for (auto* askers : {&reload_askers_, &reload_next_askers_, &reload_lookers_})
    std::erase_if(
        *askers, [connection](const ReloadAsker& asker) { return asker.connection == connection; });
  std::erase_if(commands_,
                [&](const auto& entry) { return entry.second.connection == connection; });
  const core::RequestId request = request_on(connection);
  if (request != 0 && !asker_left(pending_.at(request), connection)) {
    log_.line_of(pending_.at(request).uid, Level::kInfo, "request_cancelled",
                 {{"request", request}, {"name", pending_.at(request).name}});
    pending_.erase(request);
    feed(core::RequestGone{request});
  }
  const auto shim = shims_.find(connection);
  if (shim == shims_.end()) return;
  Process& process = *processes_.at(shim->second);
  shims_.erase(shim);
  process.connection = 0;
  process.beats_detached = 0;
  log_.line(Level::kDebug, "detached", {{"tenant", process.tenant}, {"pid", process.pid}});
  feed(core::ProcessDetached{process.id});
}

void Engine::tenant_kill(const Tenant& tenant) {
  for (const core::ProcessId id : tenant.processes) pidfd_kill(processes_.at(id)->pidfd.get());
  if (tenant.founder_pidfd) pidfd_kill(tenant.founder_pidfd.get());
  keepers_end(tenant);
}

/// Whether it runs the program that it registered with, as far as that can be told: where one of
/// the two is not known it keeps what it has.
bool Engine::process_same(const Process& process, std::uint64_t program) {
  return process.program == 0 || program == 0 || program == process.program;
}

// Unregistered processes cannot send Drained, but their shim still writes it into the claims slot.
// One that has not come back since this broker started has never seen this lease.
void Engine::drains_poll() {
  std::vector<core::Drained> seen;
  for (const auto& [id, process] : processes_) {
    if (process->connection != 0 || process->left_leases) continue;
    const Tenant& tenant = *tenants_.at(process->tenant);
    for (std::uint32_t gpu = 0; gpu < tenant.gpus.size(); ++gpu) {
      const std::uint32_t word = tenant.pages->lease_load(gpu);
      const std::uint32_t epoch = protocol::lease_epoch(word);
      if ((word & protocol::kLeaseOpen) == 0 &&
          (process->restored || tenant.pages->drained_epoch(process->slot, gpu) == epoch)) {
        seen.push_back({id, gpu, epoch});
      }
    }
  }
  for (const core::Drained& drained : seen) feed(drained);
}

/// Opens GPUs that were drained until now.
void Engine::closed_gpus_open() {
  if (closed_gpus_until_.empty()) return;
  const auto now = static_cast<std::int64_t>(time(nullptr));
  std::vector<std::uint32_t> over;
  for (const auto& [g, until] : closed_gpus_until_)
    if (until <= now) over.push_back(g);
  for (const std::uint32_t g : over) {
    log_.line(Level::kInfo, "drain_over", {{"gpu", devices::uuid_format(gpus_[g].uuid)}});
    core::CommandAsked event;
    event.request = next_request_++;
    event.verb = protocol::CommandVerb::kUndrain;
    event.gpu = gpus_[g].uuid;
    event.root = true;
    feed(std::move(event));
  }
}

void Engine::heartbeat() {
  const auto now = static_cast<std::uint64_t>(clock_ns());
  for (auto& [id, tenant] : tenants_) tenant->pages->heartbeat_store(now);
  std::vector<core::ProcessId> replaced;
  int looks = 0;
  for (auto& [id, process] : processes_) {
    if (process->connection != 0 || process->ending != Ending::kLives) continue;
    const bool due = exec_look_due(process->beats_detached + 1);
    if (due && looks == kExecLooksPerBeat) continue;  // its beat comes again
    ++process->beats_detached;
    if (!due) continue;
    ++looks;
    if (!process_same(*process, process_look(process->pid).program)) replaced.push_back(id);
  }
  // One of them may end while the core deals with another.
  for (const core::ProcessId id : replaced) {
    const auto found = processes_.find(id);
    if (found != processes_.end() && found->second->ending == Ending::kLives) process_replaced(id);
  }
  drains_poll();
  holds_poll();
  returned_look();
  lies_look();
  devices_beat();
  who_over();
  reload_over();
  idle_look();
  closed_gpus_open();
  if (!knocking_.empty()) {
    std::set<protocol::TenantId> waiting;
    for (const auto& [connection, tenant] : knocking_) waiting.insert(tenant);
    for (const protocol::TenantId tenant : waiting) knocks_answer_if_due(tenant);
  }
  if (journal_ != nullptr) journal_->tend(clock_ns());
}

}  // namespace sluice::daemon
