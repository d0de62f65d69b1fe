// What a device still has of processes that have ended.
//
// A process that another one shares its address space or its device descriptors with can die and
// leave its memory, and its kernels, on the device (clone with CLONE_VM, vfork, inherited
// descriptors). So a process counts as there until the device has returned what it held: its slot
// stays charged to its tenant, its tenant stays in the books of its GPUs, and work of it that the
// device shows is waited for like that of a living one: the runaway rule applies.
//
// An exporter counts, too, while another process has a descriptor that holds its memory.
//
// What shows it is the device's own account: memory in use, less what the driver lists for
// processes that live, beside what nothing accounted for while no process had ended
// (left_behind.h). In the ordinary case the first answer, a millisecond after the death, shows
// everything returned. Where the driver lists no processes nothing can be told, and a process is
// over when it has ended.
//
//   kDoubt  until kDoubt_ns: siblings whose allocation does not fit wait for the slot
//   kKept   afterwards: the slot is a plain charge; the keepers are named in the log and the status
#include <sys/stat.h>

#include <algorithm>
#include <cassert>

#include "broker/daemon/engine.h"
#include "broker/daemon/keepers.h"
#include "broker/daemon/left_behind.h"
#include "broker/devices/uuid.h"

namespace sluice::daemon {
namespace {

constexpr std::int64_t kDoubt_ns = 500'000'000;
constexpr std::int64_t kDoubtLook_ns = 5'000'000;
constexpr std::int64_t kKeptLook_ns = 250'000'000;
/// A process is over when the device has said nothing for so long: in doubt, and kept (a helper
/// that ended is started again after half a minute).
constexpr std::int64_t kSilenceDoubt_ns = 1'000'000'000;
constexpr std::int64_t kSilenceKept_ns = 90'000'000'000;
/// Work of an ended process is over when the device has shown none for so long.
constexpr std::int64_t kWorkSeen_ns = 2'000'000'000;
/// A reference that claims have kept from being renewed for so long is renewed all the same.
constexpr std::int64_t kReferenceOld_ns = 3'000'000'000;
constexpr std::size_t kKeepersNamed = 4;

PageName page_name(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

std::string pids_text(const std::vector<pid_t>& pids) {
  std::string text;
  for (std::size_t i = 0; i < std::min(pids.size(), kKeepersNamed); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(pids[i]);
  if (pids.size() > kKeepersNamed)
    text += " and " + std::to_string(pids.size() - kKeepersNamed) + " more";
  return text;
}

}  // namespace

/// What the process has on the GPUs whose accounts can be asked; empty = nothing.
std::vector<std::uint64_t> Engine::device_bytes_of(const Tenant& tenant, std::uint32_t slot) const {
  std::vector<std::uint64_t> bytes(tenant.gpus.size());
  bool any = false;
  for (std::uint32_t i = 0; i < tenant.gpus.size(); ++i) {
    if (!device_references_.contains(gpu_number(tenant.gpus[i]))) continue;
    bytes[i] = std::min(tenant.pages->slot_on_device(slot, i), capacity_of(tenant.gpus[i]));
    any = any || bytes[i] != 0;
  }
  if (!any || losses_.descriptor() < 0) bytes.clear();
  return bytes;
}

/// It has ended, and the device is asked whether it has returned its memory.
void Engine::doubt_begin(Process& process, const Tenant& tenant) {
  process.ending = Ending::kDoubt;
  process.ended_ns = process.answered_ns = clock_ns();
  for (std::uint32_t i = 0; i < tenant.gpus.size(); ++i)
    process.work = process.work || tenant.pages->slot_in_flight(process.slot, i);
  for (std::uint32_t i = 0; i < tenant.gpus.size(); ++i) {
    const auto reference = device_references_.find(gpu_number(tenant.gpus[i]));
    std::uint64_t unlisted = 0;
    if (reference != device_references_.end())
      if (const auto claim = reference->second.reading.released.find(process.id);
          claim != reference->second.reading.released.end())
        unlisted = std::min(claim->second.bytes, tenant.pages->slot_released(process.slot, i));
    unlisted = std::min(unlisted, process.on_device[i]);
    process.had.push_back({process.on_device[i] - unlisted, unlisted});
  }
  tenant.pages->slot_doubt(process.slot);
  for (std::uint32_t i = 0; i < tenant.gpus.size(); ++i)
    if (process.on_device[i] != 0) device_ask(tenant.gpus[i]);
  kept_timer_.at(clock_ns() + kDoubtLook_ns);
  left_tell(tenant.id);
}

/// Those that had something there and have ended, the first to end first; with the number that its
/// tenant has for the GPU.
std::vector<std::pair<Process*, std::uint32_t>> Engine::ended_on(std::uint32_t g) const {
  std::vector<std::pair<Process*, std::uint32_t>> ended;
  for (const auto& [id, process] : processes_) {
    const Tenant& tenant = *tenants_.at(process->tenant);
    for (std::uint32_t i = 0; i < process->on_device.size(); ++i)
      if (process->on_device[i] != 0 && tenant.gpus[i] == gpus_[g].uuid)
        ended.emplace_back(process.get(), i);
  }
  std::ranges::sort(ended, {}, [](const auto& one) { return one.first->ended_ns; });
  return ended;
}

std::vector<devices::EndedProcess> Engine::ended_names(std::uint32_t g) const {
  std::vector<devices::EndedProcess> names;
  for (const auto& [process, i] : ended_on(g))
    names.push_back({static_cast<std::uint32_t>(process->pid), process->start_ticks});
  return names;
}

/// By living process, shared memory that it let go of and is charged for. What the device lists
/// under the number of an ended process is listed for no living one: of the process that has the
/// number now that is all.
ReleasedClaims Engine::released_claims(std::uint32_t g) const {
  const std::vector<devices::EndedProcess> ended = ended_names(g);
  const auto number_is_shared = [&](const Process& process) {
    return std::ranges::any_of(ended, [&](const devices::EndedProcess& one) {
      return one.pid == static_cast<std::uint32_t>(process.pid) && one.start_ticks != 0 &&
             one.start_ticks != process.start_ticks;
    });
  };
  ReleasedClaims claims;
  for (const auto& [tenant_id, tenant] : tenants_) {
    for (std::uint32_t i = 0; i < tenant->gpus.size(); ++i) {
      if (!(tenant->gpus[i] == gpus_[g].uuid)) continue;
      for (const core::ProcessId id : tenant->processes) {
        const Process& process = *processes_.at(id);
        if (process.ending != Ending::kLives) continue;
        claims[id] = {tenant_id, number_is_shared(process)
                                     ? tenant->pages->slot_on_device(process.slot, i)
                                     : tenant->pages->slot_released(process.slot, i)};
      }
    }
  }
  return claims;
}

/// What of a tenant's quota is neither listed for its living processes nor was of ended ones.
std::uint64_t Engine::released_room(const Tenant& tenant, std::uint32_t i,
                                    const devices::ListedUse& listed) const {
  std::uint64_t taken = 0;
  for (const core::ProcessId id : tenant.processes) {
    const Process& process = *processes_.at(id);
    if (process.ending != Ending::kLives) continue;
    const auto pid = static_cast<std::uint32_t>(process.pid);
    const auto found = std::ranges::find(listed.of, pid, &devices::ListedUse::Process::pid);
    if (found != listed.of.end()) taken += found->bytes;
  }
  for (const auto* processes : {&tenant.processes, &tenant.kept})
    for (const core::ProcessId id : *processes)
      if (const Process& process = *processes_.at(id);
          process.ending != Ending::kLives && process.on_device[i] != 0)
        taken += process.had[i].listed + process.had[i].unlisted;
  const std::uint64_t quota = std::min(tenant.quota_most, capacity_of(tenant.gpus[i]));
  return quota - std::min(quota, taken);
}

DeviceReading Engine::reading_of(std::uint32_t g, const devices::DeviceUse& use,
                                 const ReleasedClaims& claims) const {
  ReleasedRooms rooms;
  for (const auto& [id, tenant] : tenants_)
    for (std::uint32_t i = 0; i < tenant->gpus.size(); ++i)
      if (tenant->gpus[i] == gpus_[g].uuid) rooms[id] = released_room(*tenant, i, *use.listed);
  return {use.bytes - std::min(use.bytes, use.listed->living), use.listed->ended,
          use.listed->processes, released_bound(claims, std::move(rooms))};
}

/// A figure is no reference for what was let go of meanwhile, unless that goes on for long: then
/// the greater claim counts, which explains less later.
void Engine::reference_renew(std::uint32_t g, const devices::DeviceUse& use,
                             const DeviceAsked& asked) {
  const ReleasedClaims claims = released_claims(g);
  const auto before = device_references_.find(g);
  if (claims != asked.released && before != device_references_.end() &&
      clock_ns() - before->second.taken_ns < kReferenceOld_ns)
    return;
  device_references_[g] = {reading_of(g, use, released_most(claims, asked.released)), clock_ns()};
}

/// The device has answered.
void Engine::left_look(std::uint32_t g, const devices::DeviceUse& use, const DeviceAsked& asked) {
  if (!use.listed || !gpus_[g].lists_processes) return;
  const auto ended = ended_on(g);
  if (ended.empty()) {
    reference_renew(g, use, asked);
    return;
  }
  std::vector<LeftBehind> had;
  for (const auto& [process, i] : ended) had.push_back(process->had[i]);
  const Unlisted device =
      unlisted_since(device_references_[g].reading, reading_of(g, use, asked.released),
                     released_claims(g), gpus_[g].unlisted_bytes);
  const std::vector<std::uint64_t> left = left_behind(device, had);
  std::set<protocol::TenantId> changed;
  for (std::size_t n = 0; n < ended.size() && asked.asked_ns >= ended[n].first->ended_ns; ++n) {
    const auto& [process, i] = ended[n];
    if (process->on_device[i] != left[n]) changed.insert(process->tenant);
    left_note(*process, i, left[n], use);
  }
  std::vector<core::ProcessId> over;
  for (const auto& [process, i] : ended)
    if (std::ranges::all_of(process->on_device, [](std::uint64_t bytes) { return bytes == 0; }))
      over.push_back(process->id);
  for (const core::ProcessId id : over)
    if (processes_.contains(id)) process_over(id);
  for (const protocol::TenantId id : changed) left_tell(id);
}

/// Tells the core what ended processes of the tenant have left on its GPUs.
void Engine::left_tell(protocol::TenantId id) {
  const Tenant* tenant = tenant_find(id);
  if (tenant == nullptr) return;
  std::vector<core::MemorySeen> seen;
  for (std::uint32_t i = 0; i < tenant->gpus.size(); ++i) seen.push_back(memory_seen(*tenant, i));
  for (const core::MemorySeen& one : seen) feed(one);
}

std::uint64_t Engine::left_bytes(const Tenant& tenant, const protocol::GpuUuid& gpu) const {
  std::uint64_t sum = 0;
  for (const auto* processes : {&tenant.processes, &tenant.kept})
    for (const core::ProcessId id : *processes)
      if (const Process& process = *processes_.at(id); process.ending != Ending::kLives)
        for (std::uint32_t i = 0; i < tenant.gpus.size(); ++i)
          if (tenant.gpus[i] == gpu) sum += process.on_device[i];
  return sum;
}

/// The device has `left` of it.
void Engine::left_note(Process& process, std::uint32_t i, std::uint64_t left,
                       const devices::DeviceUse& use) {
  process.answered_ns = clock_ns();
  const auto pid = static_cast<std::uint32_t>(process.pid);
  if (!use.busy_known || std::ranges::find(use.busy, pid) != use.busy.end())
    process.work_seen_ns = clock_ns();
  process.on_device[i] = left;
  if (process.ending != Ending::kKept) return;
  tenants_.at(process.tenant)->pages->slot_charge(process.slot, i, left);
}

/// The device keeps what the process had. A process without work is over for the leases; its
/// charge, and with it its tenant, is not.
void Engine::kept_begin(Process& process) {
  Tenant& tenant = *tenants_.at(process.tenant);
  process.ending = Ending::kKept;
  process.work_seen_ns = clock_ns();
  for (std::uint32_t i = 0; i < process.on_device.size(); ++i)
    tenant.pages->slot_charge(process.slot, i, process.on_device[i]);
  tenant.pages->slot_settle(process.slot);
  std::uint64_t bytes = 0;
  for (const std::uint64_t here : process.on_device) bytes += here;
  log_.message_of(tenant.uid, Level::kWarning, "process_kept",
                  "process " + std::to_string(process.pid) + " of job " + tenant.name +
                      " has ended, and the device still has its memory: another process shares its "
                      "address space or has its descriptors; it stays charged to the job until "
                      "that one ends",
                  {{"tenant", tenant.id}, {"pid", process.pid}, {"bytes", bytes}});
  keepers_name(process);
  if (process.work)
    feed(core::ProcessDetached{process.id});
  else
    leases_leave(process);
}

/// For the leases the process is gone. What is left of it stands in for its tenant's founder, so
/// that the tenant lasts as long.
void Engine::leases_leave(Process& process) {
  Tenant& tenant = *tenants_.at(process.tenant);
  process.left_leases = true;
  tenant.processes.erase(process.id);
  tenant.kept.insert(process.id);
  if (!tenant.founder_pidfd && !tenant.in_grace && !tenant.kept_is_founder) {
    tenant.kept_is_founder = true;
    feed(core::FounderAdopted{tenant.id});
  }
  for (std::uint32_t gpu = 0; gpu < tenant.gpus.size(); ++gpu) feed(memory_seen(tenant, gpu));
  feed(core::ProcessGone{process.id, process.unclean, {}});
}

/// The device has nothing of it any more, or cannot be asked.
void Engine::process_over(core::ProcessId id) {
  const auto found = processes_.find(id);
  assert(found != processes_.end());
  const std::unique_ptr<Process> process = std::move(found->second);
  processes_.erase(found);
  Tenant& tenant = *tenants_.at(process->tenant);
  tenant.processes.erase(id);
  tenant.kept.erase(id);
  std::vector<core::Bytes> held;
  for (std::uint32_t gpu = 0; gpu < tenant.gpus.size(); ++gpu)
    held.push_back(
        std::min(tenant.pages->slot_held(process->slot, gpu), capacity_of(tenant.gpus[gpu])));
  tenant.pages->slot_retire(process->slot);
  if (process->ending == Ending::kKept)
    log_.line_of(tenant.uid, Level::kInfo, "process_returned",
                 {{"tenant", tenant.id}, {"pid", process->pid}});
  for (std::uint32_t gpu = 0; gpu < tenant.gpus.size(); ++gpu) feed(memory_seen(tenant, gpu));
  if (!process->left_leases) {
    feed(core::ProcessGone{id, process->unclean, std::move(held)});
    return;
  }
  if (!tenant.kept.empty() || !tenant.kept_is_founder) return;
  tenant.kept_is_founder = false;
  if (!tenant.founder_pidfd) feed(core::FounderGone{tenant.id});
}

/// The founder of a tenant has ended: what is left of its processes stands in for it.
void Engine::founder_gone(Tenant& tenant) {
  if (tenant.kept.empty())
    feed(core::FounderGone{tenant.id});
  else
    tenant.kept_is_founder = true;
}

/// By the timer, for as long as there are processes that have ended and are not over.
void Engine::kept_tend() {
  std::vector<core::ProcessId> ended;
  for (const auto& [id, process] : processes_)
    if (process->ending != Ending::kLives) ended.push_back(id);
  for (const core::ProcessId id : ended)
    if (processes_.count(id) != 0) kept_tend_one(*processes_.at(id));
  std::int64_t wait_ns = 0;
  std::set<std::uint32_t> gpus;
  for (const auto& [id, process] : processes_) {
    if (process->ending == Ending::kLives) continue;
    if (wait_ns != kDoubtLook_ns)
      wait_ns = process->ending == Ending::kDoubt ? kDoubtLook_ns : kKeptLook_ns;
    const Tenant& tenant = *tenants_.at(process->tenant);
    for (std::uint32_t i = 0; i < tenant.gpus.size(); ++i)
      if (process->on_device[i] != 0) gpus.insert(gpu_number(tenant.gpus[i]));
  }
  for (const std::uint32_t g : gpus)
    if (g < gpus_.size()) device_ask(gpus_[g].uuid);
  if (wait_ns != 0) kept_timer_.at(clock_ns() + wait_ns);
}

void Engine::kept_tend_one(Process& process) {
  const std::int64_t now = clock_ns();
  const bool doubt = process.ending == Ending::kDoubt;
  if (now - process.answered_ns > (doubt ? kSilenceDoubt_ns : kSilenceKept_ns))
    process_over(process.id);
  else if (doubt && now - process.ended_ns >= kDoubt_ns && process.answered_ns > process.ended_ns)
    kept_begin(process);
  else if (!doubt && !process.left_leases && now - process.work_seen_ns >= kWorkSeen_ns)
    leases_leave(process);
}

/// Finds what keeps it, for the log and for people; beside the loop.
void Engine::keepers_name(const Process& process) {
  const Tenant& tenant = *tenants_.at(process.tenant);
  const PageName page = page_name(tenant.pages->lease_fd());
  const uid_t uid = tenant.uid;
  const core::ProcessId id = process.id;
  keeper_looks_.want(uid, page, KeeperFate::kNamed,
                     [this, id](const std::vector<pid_t>& found) { keepers_named(id, found); });
}

void Engine::keepers_named(core::ProcessId id, const std::vector<pid_t>& found) {
  const auto at = processes_.find(id);
  if (at == processes_.end()) return;
  Process& process = *at->second;
  const Tenant& tenant = *tenants_.at(process.tenant);
  std::vector<pid_t> keepers;
  for (const pid_t pid : found) {
    const bool member = std::ranges::any_of(processes_, [&](const auto& entry) {
      return entry.second->pid == pid && entry.second->ending == Ending::kLives;
    });
    if (!member) keepers.push_back(pid);
  }
  process.keepers = pids_text(keepers);
  log_.line_of(tenant.uid, Level::kWarning, "process_keepers",
               {{"tenant", tenant.id},
                {"pid", process.pid},
                {"kept_by", process.keepers.empty() ? "not found" : process.keepers}});
}

/// Ends those of the job that the broker has no pidfd of and that keep something on its GPUs.
void Engine::keepers_end(const Tenant& tenant) {
  const bool kept = std::ranges::any_of(processes_, [&](const auto& entry) {
    return entry.second->tenant == tenant.id && entry.second->ending == Ending::kKept;
  });
  if (!kept) return;
  const PageName page = page_name(tenant.pages->lease_fd());
  keeper_looks_.want(
      tenant.uid, page, KeeperFate::kEnded,
      [this, uid = tenant.uid, id = tenant.id](const std::vector<pid_t>& ended) {
        log_.line_of(uid, Level::kWarning, "keepers_ended",
                     {{"tenant", id}, {"pids", ended.empty() ? "not found" : pids_text(ended)}});
      });
}

}  // namespace sluice::daemon
