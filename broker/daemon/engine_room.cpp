// Making room: what the shims say of holds, moves and memory that they lack, what the core orders
// them, and the commands of people. Every step is in the log with who, how much and how long.
//
// The claims are the tenants' own word. What is read from them is bounded here (nobody has more out
// than may be out, nor more than the GPU has), and the core believes it for nothing but the
// tenant's own affairs.
#include <unistd.h>

#include <algorithm>

#include "broker/daemon/engine.h"
#include "broker/daemon/inventory.h"
#include "broker/daemon/validate.h"
#include "broker/devices/uuid.h"
#include "broker/protocol/gpu_index.h"

extern char** environ;

namespace sluice::daemon {
namespace {

using protocol::MessageType;
using protocol::RefusalCode;

constexpr std::uint32_t kOrders = protocol::kHoldOut | protocol::kHoldIn;

double ms_of(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

const char* order_name(std::uint32_t word) {
  if ((word & protocol::kHoldSet) == 0) return "cleared";
  if ((word & protocol::kHoldOut) != 0) return "out";
  return (word & protocol::kHoldIn) != 0 ? "in" : "hold";
}

const char* command_name(protocol::CommandVerb verb) {
  constexpr const char* kNames[] = {"", "suspend", "resume", "move", "drain", "undrain"};
  return kNames[static_cast<std::size_t>(verb) % std::size(kNames)];
}

}  // namespace

std::uint64_t Engine::capacity_of(const protocol::GpuUuid& gpu) const {
  const std::uint32_t g = protocol::gpu_index(gpus_, gpu);
  return g < gpus_.size() ? gpus_[g].capacity_bytes : 0;
}

MemoryClaims Engine::memory_of(const Tenant& tenant, std::uint32_t gpu_index) const {
  MemoryClaims claims = tenant.pages->memory(gpu_index);
  claims.held_bytes = std::min(claims.held_bytes, capacity_of(tenant.gpus[gpu_index]));
  claims.movable_bytes = std::min(claims.movable_bytes, claims.held_bytes);
  const bool ordered = (tenant.pages->hold_load(gpu_index) & kOrders) != 0;
  claims.swapped_bytes =
      ordered || tenant.comes_back ? std::min(claims.swapped_bytes, claims.movable_bytes) : 0;
  return claims;
}

core::MemorySeen Engine::memory_seen(const Tenant& tenant, std::uint32_t gpu_index) const {
  const MemoryClaims claims = memory_of(tenant, gpu_index);
  return {tenant.id,
          gpu_index,
          claims.held_bytes,
          claims.movable_bytes,
          claims.swapped_bytes,
          left_bytes(tenant, tenant.gpus[gpu_index])};
}

std::vector<core::MemorySeen> Engine::memory_look(const protocol::GpuUuid& gpu) const {
  std::vector<core::MemorySeen> seen;
  for (const auto& [id, tenant] : tenants_) {
    for (std::uint32_t i = 0; i < tenant->gpus.size(); ++i)
      if (tenant->gpus[i] == gpu) seen.push_back(memory_seen(*tenant, i));
  }
  return seen;
}

// ---- what the shims say

void Engine::held(core::ProcessId id, const protocol::GateNote& note) {
  const Process& process = *processes_.at(id);
  log_.line(Level::kDebug, "held",
            {{"tenant", process.tenant},
             {"pid", process.pid},
             {"gpu", gpu_text(*tenants_.at(process.tenant), note.gpu)},
             {"epoch", note.epoch}});
  feed(core::HoldAcked{id, note.gpu, note.epoch});
}

bool Engine::moved(core::ProcessId id, const protocol::Moved& message) {
  const Process& process = *processes_.at(id);
  const Tenant& tenant = *tenants_.at(process.tenant);
  if (message.gpu >= tenant.gpus.size()) return false;
  // Late, repeated or made up: nothing is read or written for it.
  if (!core::move_awaited(*state_, id, message.gpu, message.word)) return true;
  // No more than the GPU has, for no longer than the job has lived.
  const std::uint64_t bytes = std::min(message.bytes, capacity_of(tenant.gpus[message.gpu]));
  const auto taken_ns =
      static_cast<core::Nanos>(std::min<std::uint64_t>(message.taken_ns, lived_ns(tenant)));
  // On the way in somebody else's allocation may have been quicker: no fault, it waits again.
  const bool usual = message.result == 0 || (message.result == protocol::kMovedNoRoom &&
                                             (message.word & protocol::kHoldIn) != 0);
  log_.line_of(tenant.uid, usual ? Level::kInfo : Level::kWarning, "moved",
               {{"tenant", tenant.id},
                {"name", tenant.name},
                {"pid", process.pid},
                {"gpu", gpu_text(tenant, message.gpu)},
                {"epoch", protocol::hold_epoch(message.word)},
                {"order", order_name(message.word)},
                {"result", message.result},
                {"bytes", bytes},
                {"ms", ms_of(taken_ns)}});
  for (const core::MemorySeen& seen : memory_look(tenant.gpus[message.gpu])) feed(seen);
  feed(core::MoveDone{id, message.gpu, message.word, message.result, bytes, taken_ns});
  return true;
}

bool Engine::memory_want(core::ProcessId id, const protocol::MemoryWant& message) {
  Process& process = *processes_.at(id);
  const Tenant& tenant = *tenants_.at(process.tenant);
  if (message.gpu >= tenant.gpus.size()) return false;
  // Answered since: the thread sees another word and asks the driver first.
  if (message.room != tenant.pages->room_load(message.gpu)) return true;
  // A want that is repeated does not make the broker read all claims again.
  std::optional<std::uint32_t>& wanted_room = process.wanted_rooms[message.gpu];
  const bool again = wanted_room == message.room;
  wanted_room = message.room;
  log_.line_of(tenant.uid, Level::kDebug, "memory_wanted",
               {{"tenant", tenant.id},
                {"pid", process.pid},
                {"gpu", gpu_text(tenant, message.gpu)},
                {"bytes", message.bytes}});
  const std::uint64_t bytes = std::min(message.bytes, capacity_of(tenant.gpus[message.gpu]));
  if (!again)
    for (const core::MemorySeen& seen : memory_look(tenant.gpus[message.gpu])) feed(seen);
  feed(core::MemoryWanted{id, message.gpu, message.room, bytes});
  return true;
}

// A process whose socket is closed still writes into its slot what it would have sent. One that has
// not come back since this broker started has never seen these words.
void Engine::holds_poll() {
  struct Seen {
    core::ProcessId process;
    std::uint32_t gpu;
    std::uint32_t word;
    bool moved;
  };
  std::vector<Seen> seen;
  for (const auto& [id, process] : processes_) {
    if (process->connection != 0 || process->restored || process->left_leases) continue;
    const Tenant& tenant = *tenants_.at(process->tenant);
    for (std::uint32_t gpu = 0; gpu < tenant.gpus.size(); ++gpu) {
      const std::uint32_t word = tenant.pages->hold_load(gpu);
      if ((word & protocol::kHoldSet) == 0 ||
          tenant.pages->held_epoch(process->slot, gpu) != protocol::hold_epoch(word))
        continue;
      const bool moved = tenant.pages->moved_word(process->slot, gpu) == word;
      seen.push_back({id, gpu, word, moved});
    }
  }
  for (const Seen& one : seen) {
    feed(core::HoldAcked{one.process, one.gpu, protocol::hold_epoch(one.word)});
    if (!one.moved || !core::move_awaited(*state_, one.process, one.gpu, one.word)) continue;
    const auto found = processes_.find(one.process);
    if (found == processes_.end()) continue;
    const protocol::GpuUuid gpu = tenants_.at(found->second->tenant)->gpus[one.gpu];
    for (const core::MemorySeen& look : memory_look(gpu)) feed(look);
    feed(core::MoveDone{one.process, one.gpu, one.word, 0, 0, 0});
  }
}

// What the journal does not know the processes themselves do: one that has come back with its
// memory in the host says so in its claims, some time after it has registered.
void Engine::returned_look() {
  std::vector<core::MemorySeen> seen;
  for (const auto& [id, tenant] : tenants_) {
    if (!tenant->comes_back) continue;
    for (std::uint32_t gpu = 0; gpu < tenant->gpus.size(); ++gpu)
      if (memory_of(*tenant, gpu).swapped_bytes != 0) seen.push_back(memory_seen(*tenant, gpu));
  }
  for (const core::MemorySeen& one : seen) feed(one);
}

// Claims that cannot be true change nothing but what people read of them: that is said, once for
// each kind.
void Engine::lies_look() {
  std::vector<std::uint64_t> capacities;
  for (const auto& [id, tenant] : tenants_) {
    capacities.clear();
    for (const protocol::GpuUuid& gpu : tenant->gpus) capacities.push_back(capacity_of(gpu));
    const std::uint8_t lies = tenant->pages->lies_look(capacities, lived_ns(*tenant));
    const auto fresh = static_cast<std::uint8_t>(lies & ~tenant->distrust);
    if (fresh == 0) continue;
    tenant->distrust |= fresh;
    std::string kinds;
    for (std::size_t kind = 0; kind < protocol::kDistrusts; ++kind)
      if ((fresh >> kind & 1) != 0)
        kinds += (kinds.empty() ? "" : ",") + std::string(protocol::kDistrustNames[kind]);
    log_.message_of(
        tenant->uid, Level::kWarning, "claims_lie",
        "the claims of job " + tenant->name +
            " say what cannot be true; its own figures are not to be trusted any more, "
            "others have lost nothing",
        {{"tenant", id}, {"name", tenant->name}, {"uid", tenant->uid}, {"kinds", kinds}});
  }
}

// ---- what the core decides

void Engine::carry_out(const core::HoldSet& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  tenant->comes_back = false;
  tenant->pages->hold_store(action.gpu_index, action.word);
  // That programs stop is a step on the way to an order, which is what people look for.
  const bool stops = (action.word & protocol::kHoldSet) != 0 && (action.word & kOrders) == 0;
  log_.line_of(tenant->uid, stops ? Level::kDebug : Level::kInfo, "hold",
               {{"tenant", tenant->id},
                {"name", tenant->name},
                {"gpu", gpu_text(*tenant, action.gpu_index)},
                {"epoch", protocol::hold_epoch(action.word)},
                {"order", order_name(action.word)}});
}

void Engine::carry_out(const core::RoomSet& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  tenant->pages->room_store(action.gpu_index, action.word);
  log_.line_of(tenant->uid, Level::kDebug, "room",
               {{"tenant", tenant->id},
                {"gpu", gpu_text(*tenant, action.gpu_index)},
                {"made", (action.word & protocol::kRoomNone) == 0 ? "yes" : "no"}});
}

void Engine::carry_out(const core::MemoryLookWanted& action) {
  for (const core::MemorySeen& seen : memory_look(action.gpu)) answers_.push_back(seen);
}

void Engine::carry_out(const core::TenantMoved& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr || action.gpu_index >= tenant->gpus.size()) return;
  tenant->gpus[action.gpu_index] = action.to;
  tenant->grant.gpus = tenant->gpus;
  tenant->pages->gpu_store(action.gpu_index, action.to, context_bytes(action.to));
  journal_tenant(*tenant);
  log_.line_of(tenant->uid, Level::kInfo, "tenant_moved",
               {{"tenant", tenant->id},
                {"name", tenant->name},
                {"from", devices::uuid_format(action.from)},
                {"to", devices::uuid_format(action.to)}});
}

/// What the job's user is told: that its memory is out only once it is.
static std::uint32_t suspended_word(const core::StayNoted& stay) {
  if (stay.suspended || stay.rests) {
    const std::uint32_t why =
        stay.suspended ? protocol::kSuspendedByCommand : protocol::kSuspendedIdle;
    return stay.out ? why : protocol::kSuspendedNot;
  }
  return stay.returns ? protocol::kSuspendedQueued : protocol::kSuspendedNot;
}

void Engine::carry_out(const core::StayNoted& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  const Stay stay{action.suspended, action.rests,     action.returns, action.swapped,
                  action.frozen,    action.frozen_on, action.by_other};
  tenant->pages->suspended_store(suspended_word(action));
  if (tenant->stay == stay) return;
  tenant->stay = stay;
  journal_tenant(*tenant);
  log_.line_of(tenant->uid, Level::kInfo, "stay",
               {{"tenant", tenant->id},
                {"name", tenant->name},
                {"suspended", stay.by_other    ? "by_other"
                              : stay.suspended ? "yes"
                                               : "no"},
                {"swapped", stay.swapped ? "yes" : "no"},
                {"frozen", stay.frozen ? "yes" : "no"},
                {"rests", stay.rests ? "yes" : "no"},
                {"returns", stay.returns ? "yes" : "no"}});
}

void Engine::carry_out(const core::MoveFailed& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  log_.message_of(tenant->uid, Level::kWarning, "move_failed", action.text,
                  {{"tenant", tenant->id},
                   {"name", tenant->name},
                   {"gpu", gpu_text(*tenant, action.gpu_index)},
                   {"failures", action.failures}});
}

void Engine::carry_out(const core::TenantLost& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  log_.message_of(tenant->uid, Level::kError, "job_lost", action.text,
                  {{"tenant", tenant->id},
                   {"name", tenant->name},
                   {"gpu", gpu_text(*tenant, action.gpu_index)}});
  tenant->how = "because its GPU was lost";
  tenant_kill(*tenant);
}

// ---- the driver's checkpoint

// Processes without a context have nothing to be taken, and the driver refuses them. One that has
// not come back since this broker started cannot be asked.
std::vector<devices::CheckpointTarget> Engine::checkpoint_targets(const Tenant& tenant) const {
  std::vector<devices::CheckpointTarget> targets;
  for (const core::ProcessId id : tenant.processes) {
    const Process& process = *processes_.at(id);
    if (process.ending != Ending::kLives) continue;
    bool holds = process.restored;
    for (std::uint32_t gpu = 0; gpu < tenant.gpus.size(); ++gpu)
      holds = holds || tenant.pages->slot_holds(process.slot, gpu);
    if (holds) targets.push_back({process.pid, process.start_ticks});
  }
  return targets;
}

void Engine::carry_out(const core::CheckpointWanted& action) {
  const Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  devices::CheckpointJob job;
  job.uid = tenant->uid;
  job.targets = checkpoint_targets(*tenant);
  const bool out = action.step == core::CheckpointStep::kOut;
  job.verb = out ? devices::CheckpointVerb::kTake : devices::CheckpointVerb::kReturn;
  for (const core::GpuMove& move : action.gpus) job.pairs.push_back({move.from, move.to});
  log_.line_of(tenant->uid, Level::kInfo, "checkpoint",
               {{"tenant", tenant->id},
                {"name", tenant->name},
                {"step", out ? "out" : "back"},
                {"processes", job.targets.size()}});
  if (job.targets.empty()) {
    core::CheckpointDone done;
    done.tenant = action.tenant;
    done.step = action.step;
    done.ok = true;
    feed(std::move(done));
    return;
  }
  if (checkpoints_ == nullptr) {
    checkpoints_ =
        std::make_unique<devices::Checkpoints>(program_beside("sluice-checkpoint"), environ);
    if (checkpoints_->descriptor() >= 0)
      checkpoints_key_ = loop_.add(
          checkpoints_->descriptor(), [this] { checkpoints_collect(); }, "checkpoints");
  }
  if (checkpoints_key_ == 0) loop_.defer([this] { checkpoints_collect(); });  // it says why not
  checkpointing_[checkpoints_->start(std::move(job))] = {action.tenant, action.step};
}

void Engine::checkpoints_collect() {
  for (devices::CheckpointDone& ended : checkpoints_->collect()) {
    const auto found = checkpointing_.find(ended.id);
    if (found == checkpointing_.end()) continue;
    const Checkpointing job = found->second;
    checkpointing_.erase(found);
    const devices::CheckpointResult& result = ended.result;
    const Tenant* of = tenant_find(job.tenant);
    log_.line_of(of == nullptr ? 0 : of->uid, result.ok ? Level::kInfo : Level::kWarning,
                 "checkpoint_done",
                 {{"tenant", job.tenant},
                  {"step", job.step == core::CheckpointStep::kOut ? "out" : "back"},
                  {"ok", result.ok ? "yes" : "no"},
                  {"pid", result.pid},
                  {"call", devices::checkpoint_step_name(result.step)},
                  {"code", result.code},
                  {"bytes", result.bytes},
                  {"ms", ms_of(result.taken_ns)},
                  {"text", result.text}});
    core::CheckpointDone done;
    done.tenant = job.tenant;
    done.step = job.step;
    done.undone = devices::checkpoint_clear(result);
    done.lost = lost_find(job.tenant, result);
    // With whom the driver has lost nothing more can be done: the others are back.
    const bool back = job.step == core::CheckpointStep::kBack && !done.lost.empty() && done.undone;
    done.ok = result.ok || back;
    done.taken_ns = result.taken_ns;
    done.text = result.text;
    feed(std::move(done));
  }
}

/// Those that are in the driver's state FAILED; each is told of once.
std::vector<core::ProcessId> Engine::lost_find(protocol::TenantId id,
                                               const devices::CheckpointResult& result) {
  std::vector<core::ProcessId> lost;
  const Tenant* tenant = tenant_find(id);
  if (tenant == nullptr) return lost;
  for (const core::ProcessId member : tenant->processes) {
    Process& process = *processes_.at(member);
    const auto found =
        std::ranges::find(result.processes, process.pid, &devices::CheckpointedProcess::pid);
    if (found == result.processes.end() || found->state != devices::CheckpointState::kFailed)
      continue;
    lost.push_back(member);
    if (process.lost) continue;
    process.lost = true;
    log_.message_of(tenant->uid, Level::kError, "process_lost",
                    "the driver has lost process " + std::to_string(process.pid) + " of job " +
                        tenant->name +
                        " in a checkpoint (state FAILED): it can only be ended, and until it has "
                        "nothing of its job can be moved",
                    {{"tenant", id}, {"name", tenant->name}, {"pid", process.pid}});
  }
  return lost;
}

// ---- commands

void Engine::command(const Asker& asker, const protocol::Command& message) {
  core::CommandAsked event;
  event.request = next_request_++;
  event.verb = message.verb;
  event.tenant = message.tenant;
  event.gpu = message.gpu;
  event.uid = asker.peer.uid;
  account_ask(asker.peer.uid);
  if (message.verb == protocol::CommandVerb::kDrain) {
    const auto until_s = static_cast<std::int64_t>(message.until_s);
    event.drain = {asker.peer.uid, text_clean(message.reason, sizeof message.reason), until_s,
                   config::time_format(until_s)};
  }
  // A private broker runs as the user whose it is.
  event.root = asker.peer.uid == 0 || asker.peer.uid == geteuid();
  const bool of_gpu = message.verb == protocol::CommandVerb::kDrain ||
                      message.verb == protocol::CommandVerb::kUndrain;
  log_.line_of(asker.peer.uid, Level::kInfo, "command",
               {{"request", event.request},
                {"verb", command_name(message.verb)},
                {of_gpu ? "gpu" : "tenant",
                 of_gpu ? devices::uuid_format(message.gpu) : std::to_string(message.tenant)},
                {"uid", asker.peer.uid},
                {"pid", asker.peer.pid}});
  commands_.emplace(event.request, AskedCommand{asker.connection, asker.request, asker.peer.uid});
  feed(std::move(event));
}

// An asker that has left is told nothing; what it began has been done all the same.
void Engine::carry_out(const core::CommandAnswered& action) {
  const auto found = commands_.find(action.request);
  log_.line_of(found == commands_.end() ? 0 : found->second.uid, Level::kInfo, "command_done",
               {{"request", action.request},
                {"code", static_cast<int>(action.code)},
                {"bytes", action.bytes},
                {"ms", ms_of(action.taken_ns)},
                {"text", action.text}});
  if (found == commands_.end()) return;
  const AskedCommand asked = found->second;
  commands_.erase(found);
  if (action.code != RefusalCode::kNone) {
    refuse(asked.connection, asked.request, action.code, action.text);
    return;
  }
  protocol::CommandDone done;
  protocol::message_init(done, MessageType::kCommandDone, asked.request);
  done.bytes = action.bytes;
  done.taken_ns = static_cast<std::uint64_t>(std::max<core::Nanos>(action.taken_ns, 0));
  outbox_.send(asked.connection, done);
}

bool Engine::commanding(ConnectionId connection) const {
  return std::ranges::any_of(
      commands_, [connection](const auto& entry) { return entry.second.connection == connection; });
}

}  // namespace sluice::daemon
