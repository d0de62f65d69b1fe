// A broker that comes after another: who the journal says may still live is taken in before anybody
// can connect, and its processes come back one by one. And what the journal is told.
//
// The dead are recognised by their start time. Who lives and has not come back stays a member,
// unregistered: it may hold memory. A tenant of whom nobody is known to live gets a grace time, in
// case the journal missed one of its processes.
//
// A process that comes back leaves the claims page that it shared with the rest of its job for a
// new one, where the others' bytes are missing until they come too. So the first ones are answered
// only when all that live have asked (or the patience for it is over): until then the old page,
// which they all still use, keeps the quota.
#include <fcntl.h>

#include <algorithm>
#include <cassert>

#include "broker/daemon/engine.h"
#include "broker/daemon/journal_event.h"
#include "broker/devices/uuid.h"
#include "broker/protocol/gpu_index.h"

namespace sluice::daemon {
namespace {

using protocol::RefusalCode;

// A shim looks for a broker every 5 s at the latest.
constexpr std::int64_t kGrace_ns = 10'000'000'000;

std::uint32_t number(pid_t pid) { return static_cast<std::uint32_t>(pid); }

}  // namespace

void Engine::restore() {
  if (journal_ == nullptr) return;
  const JournalState before = journal_->state();  // the journal changes on the way
  feed(core::TenantsNumbered{before.next_tenant});
  for (const protocol::GpuUuid& gpu : before.closed_gpus) {
    log_.line(Level::kInfo, "restored_drain", {{"gpu", devices::uuid_format(gpu)}});
    core::GpuDrain drain;
    for (const JournalDrain& known : before.drains)
      if (known.gpu == gpu)
        drain = {known.uid, known.reason, known.until_s, config::time_format(known.until_s)};
    closed_gpu_note(gpu, true, drain);
    feed(core::GpuClosed{gpu, drain});
  }
  for (const auto& [id, known] : before.tenants) tenant_restore(known);
  if (tenants_.empty()) return;
  for (const auto& [id, tenant] : tenants_) account_ask(tenant->uid);
  grace_.at(clock_ns() + kGrace_ns);
  limits_renew();  // the configuration may be another
}

void Engine::tenant_restore(const JournalTenant& known) {
  auto made = std::make_unique<Tenant>();
  made->id = known.id;
  made->key = known.key;
  made->uid = known.uid;
  made->charge = DescriptorCharge(charges_, made->uid, kTenantDescriptors);
  made->tenant_class = known.tenant_class;
  made->grant.tenant = known.id;
  made->grant.gpus = made->gpus = known.gpus;
  made->grant.memory_max = made->quota_most = known.memory_max_bytes;
  made->grant.memory_min = known.memory_min_bytes;
  made->grant.sm_percent = known.sm_percent;
  made->grant.sm_mode = known.sm_mode;
  made->grant.sm_kind = known.sm_kind;
  made->asked = known.asked;
  made->window_ns = known.window_ns;
  made->asked_ns = known.asked_ns;
  made->admitted_ns = std::min(known.admitted_ns, clock_ns());
  made->released = known.released;
  made->grant.swap = known.swap;
  made->stay = known.stay;
  if (known.stay.by_other) account_ask(geteuid());
  made->comes_back = true;
  made->is_default = known.is_default;
  made->name = known.name;
  made->profile = known.profile;
  made->founder_pid = static_cast<pid_t>(known.founder.pid);
  made->founder_start_ticks = known.founder.start_ticks;
  made->in_grace =
      !process_open(made->founder_pid, known.founder.start_ticks, &made->founder_pidfd);
  // A job that is not taken in now is forgotten, though it lives.
  constexpr int kTries = 3;
  for (int i = 0; i < kTries && made->pages == nullptr; ++i) made->pages = pages_make(*made);
  if (made->pages == nullptr) {
    log_.message(Level::kError, "not_restored",
                 "there is no memory or no descriptor left for job " + known.name +
                     " of the broker before; it goes on without a broker",
                 {{"tenant", known.id}});
    journal_->tenant_end(known.id);
    return;
  }
  tenant_add(std::move(made));
  feed(tenant_restored(known));
  Tenant* tenant = tenant_find(known.id);
  if (tenant == nullptr) {
    log_.message(
        Level::kError, "not_restored",
        "job " + known.name +
            " of the broker before cannot be taken in: its GPUs are not what they were; it "
            "goes on without a broker",
        {{"tenant", known.id}});
    return;
  }
  for (const JournalProcess& process : known.processes) process_restore(*tenant, process);
  log_.line(Level::kInfo, "restored",
            {{"tenant", tenant->id},
             {"name", tenant->name},
             {"uid", tenant->uid},
             {"pid", tenant->founder_pid},
             {"founder", tenant->founder_pidfd ? "lives" : "gone"},
             {"processes", tenant->processes.size()},
             {"memory_max_bytes", tenant->grant.memory_max},
             {"memory_min_bytes", tenant->grant.memory_min}});
}

void Engine::process_restore(Tenant& tenant, const JournalProcess& known) {
  devices::Fd pidfd;
  const auto pid = static_cast<pid_t>(known.name.pid);
  const devices::ProcessFound found = devices::process_find(pid, known.name.start_ticks, &pidfd);
  const bool lives = found == devices::ProcessFound::kLives;
  const auto slot = lives ? tenant.pages->slot_take(pid) : std::nullopt;
  if (!slot) {  // of whom it cannot be told the journal keeps what it has
    if (found != devices::ProcessFound::kUnknown) journal_->process_end(tenant.id, known.name);
    return;
  }
  auto process = std::make_unique<Process>();
  process->id = next_process_++;
  process->tenant = tenant.id;
  process->charge = DescriptorCharge(charges_, tenant.uid, kProcessDescriptors);
  process->pid = pid;
  process->start_ticks = known.name.start_ticks;
  process->program = known.program;
  process->restored = true;
  process->slot = *slot;
  process->command = known.command;
  process->pidfd = std::move(pidfd);
  const core::ProcessId id = process->id;
  process->key = loop_.add(
      process->pidfd.get(), [this, id] { process_end_seen(id, End::kExited); }, "process's end");
  tenant.processes.insert(id);
  processes_.emplace(id, std::move(process));
  feed(core::ProcessJoined{tenant.id, id});
}

/// Who has not come now is not waited for any more.
void Engine::grace_over() {
  std::vector<protocol::TenantId> over;
  for (const auto& [id, tenant] : tenants_) {
    tenant->gather_over = true;
    tenant->comes_back = false;
    over.push_back(id);
  }
  for (const protocol::TenantId id : over) {
    knocks_answer(id);
    Tenant* tenant = tenant_find(id);
    if (tenant == nullptr || !tenant->in_grace) continue;
    tenant->in_grace = false;
    founder_gone(*tenant);
  }
}

bool Engine::gathering(const Tenant& tenant) const {
  return !tenant.gather_over && std::ranges::any_of(tenant.processes, [this](core::ProcessId id) {
    return processes_.at(id)->restored;
  });
}

void Engine::join_or_knock(Tenant& tenant, const Asker& asker, const std::string& command) {
  if (!gathering(tenant)) {
    join_tenant(tenant, asker.connection, asker.request, asker.peer, command);
    return;
  }
  Knock knock;
  if (!knock_make(asker, command, &knock)) return;
  if (tenant.knocks.empty()) tenant.knocked_ns = clock_ns();
  tenant.knocks.push_back(std::move(knock));
  knocking_[asker.connection] = tenant.id;
  knocks_answer_if_due(tenant.id);
}

/// Registers those that knock once all that live are there, or have been waited for long enough. To
/// be called last in what an event or a beat does: it can end processes and the tenant.
void Engine::knocks_answer_if_due(protocol::TenantId id) {
  Tenant* tenant = tenant_find(id);
  if (tenant == nullptr || tenant->knocks.empty()) return;
  const auto knocks = [&](core::ProcessId process) {
    return std::ranges::any_of(tenant->knocks, [&](const Knock& knock) {
      return knock.peer.pid == processes_.at(process)->pid;
    });
  };
  const bool all = std::ranges::all_of(tenant->processes, [&](core::ProcessId process) {
    return !processes_.at(process)->restored || knocks(process);
  });
  if (!all && clock_ns() - tenant->knocked_ns < gather_patience_ns_) return;
  tenant->gather_over = true;
  knocks_answer(id);
}

void Engine::knocks_answer(protocol::TenantId id) {
  Tenant* tenant = tenant_find(id);
  if (tenant == nullptr) return;
  const std::vector<Knock> knocks = std::move(tenant->knocks);
  tenant->knocks.clear();
  for (const Knock& knock : knocks) knocking_.erase(knock.connection);
  for (const Knock& knock : knocks) {
    tenant = tenant_find(id);
    if (tenant == nullptr)
      refuse(knock.connection, knock.request, RefusalCode::kUnknownTenant,
             "the job has ended; start the program with sluice run");
    else
      join_tenant(*tenant, knock.connection, knock.request, knock.peer, knock.command);
  }
}

void Engine::knock_withdraw(ConnectionId connection) {
  const auto found = knocking_.find(connection);
  if (found == knocking_.end()) return;
  if (Tenant* tenant = tenant_find(found->second))
    std::erase_if(tenant->knocks,
                  [connection](const Knock& knock) { return knock.connection == connection; });
  knocking_.erase(found);
}

void Engine::carry_out(const core::GpuNoted& action) {
  closed_gpu_note(action.gpu, action.closed, action.drain);
  if (journal_ == nullptr) return;
  journal_->gpu_put(action.gpu, action.closed);
  if (action.closed)
    journal_->drain_put({action.gpu, action.drain.uid, action.drain.until_s, action.drain.reason});
}

/// When the GPU is to be opened again, and that its user has a name.
void Engine::closed_gpu_note(const protocol::GpuUuid& gpu, bool closed,
                             const core::GpuDrain& drain) {
  if (closed) account_ask(drain.uid);
  const std::uint32_t g = protocol::gpu_index(gpus_, gpu);
  if (g == gpus_.size()) return;
  closed_gpus_until_.erase(g);
  if (closed && drain.until_s != 0) closed_gpus_until_[g] = drain.until_s;
}

void Engine::journal_tenant(const Tenant& tenant) {
  if (journal_ == nullptr) return;
  JournalTenant record;
  record.id = tenant.id;
  record.key = tenant.key;
  record.uid = tenant.uid;
  record.tenant_class = tenant.tenant_class;
  record.sm_mode = tenant.grant.sm_mode;
  record.sm_kind = tenant.grant.sm_kind;
  record.is_default = tenant.is_default;
  record.released = tenant.released;
  record.swap = tenant.grant.swap;
  record.stay = tenant.stay;
  record.sm_percent = tenant.grant.sm_percent;
  record.memory_max_bytes = tenant.grant.memory_max;
  record.memory_min_bytes = tenant.grant.memory_min;
  record.window_ns = tenant.window_ns;
  record.asked = tenant.asked;
  record.asked_ns = tenant.asked_ns;
  record.admitted_ns = tenant.admitted_ns;
  if (tenant.founder_pidfd)
    record.founder = {number(tenant.founder_pid), tenant.founder_start_ticks};
  record.gpus = tenant.gpus;
  record.name = tenant.name;
  record.profile = tenant.profile;
  journal_->tenant_put(record);
}

void Engine::journal_process(const Process& process) {
  if (journal_ == nullptr) return;
  journal_->process_put(
      process.tenant,
      {{number(process.pid), process.start_ticks}, process.program, process.command});
}

}  // namespace sluice::daemon
