// Joining tenants: the registration of a process, the default tenant of its user, and what the gate
// says.
#include <fcntl.h>

#include <algorithm>
#include <cstdio>

#include "broker/daemon/engine.h"
#include "broker/daemon/snapshot.h"
#include "broker/daemon/validate.h"

namespace sluice::daemon {
namespace {

using protocol::MessageType;
using protocol::RefusalCode;
using protocol::TenantClass;

bool wished(const Tenant& tenant, const protocol::GpuUuid& gpu) {
  return gpu == protocol::GpuUuid{} || std::ranges::find(tenant.gpus, gpu) != tenant.gpus.end();
}

}  // namespace

void Engine::join(const Asker& asker, const protocol::Register& message) {
  join_as(asker, message, nullptr);
}

/// `who` may be null: then it is looked up if it is needed.
void Engine::join_as(const Asker& asker, const protocol::Register& message, const Who* who) {
  if (message.tenant != 0) {
    Tenant* tenant = tenant_of(asker, message.tenant, message.key);
    if (tenant != nullptr)
      join_or_knock(*tenant, asker, text_clean(message.command, sizeof message.command));
    return;
  }
  for (auto& [id, tenant] : tenants_) {
    if (tenant->is_default && tenant->uid == asker.peer.uid && wished(*tenant, message.gpu)) {
      join_or_knock(*tenant, asker, text_clean(message.command, sizeof message.command));
      return;
    }
  }
  join_default(asker, message, who);
}

// An unannounced program: its user's default tenant on the GPU that it wants, with what a debug job
// gets by default. Where there is no room it waits in line, and says so itself; others of its user
// that come meanwhile wait with it.
void Engine::join_default(const Asker& asker, const protocol::Register& message, const Who* who) {
  for (auto& [id, pending] : pending_) {
    if (!pending.join || pending.uid != asker.peer.uid) continue;
    if (!(pending.join->gpu == message.gpu)) continue;
    Knock knock;
    if (!knock_make(asker, text_clean(message.command, sizeof message.command), &knock)) return;
    if (pending.place) {
      protocol::Queued place = *pending.place;
      place.header.request = asker.request;
      outbox_.send(asker.connection, place);
    }
    pending.followers.push_back(std::move(knock));
    return;
  }
  account_ask(asker.peer.uid);
  const auto known = who == nullptr ? who_known(asker.peer) : *who;
  if (!known) {
    who_ask(asker, message);
    return;
  }
  protocol::Admit defaults;
  protocol::message_init(defaults, MessageType::kAdmit, 0);
  defaults.tenant_class = TenantClass::kDebug;
  defaults.gpu_count = 1;
  if (!(message.gpu == protocol::GpuUuid{})) {
    defaults.pinned_count = 1;
    defaults.pinned[0] = message.gpu;
  }
  const std::string program = text_clean(message.command, sizeof message.command);
  text_store(defaults.name, sizeof defaults.name, program.empty() ? "default" : program);
  ask(asker, profiles_.find(*known), defaults, message);
}

/// What is needed of who is to be answered later; false when there is no descriptor for it, and it
/// is refused.
bool Engine::knock_make(const Asker& asker, const std::string& command, Knock* out) {
  out->charge = DescriptorCharge(charges_, asker.peer.uid, kRequestDescriptors);
  out->connection = asker.connection;
  out->request = asker.request;
  out->peer.pid = asker.peer.pid;
  out->peer.uid = asker.peer.uid;
  out->peer.groups = asker.peer.groups;
  out->peer.groups_known = asker.peer.groups_known;
  out->peer.program = asker.peer.program;
  out->peer.pidfd = devices::Fd(fcntl(asker.peer.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  out->command = command;
  if (out->peer.pidfd) return true;
  refuse(asker.connection, asker.request, RefusalCode::kNoRoom, kNoDescriptors);
  return false;
}

/// Takes one of those who wait for the request out of it. False when it was the last.
bool Engine::asker_left(Pending& pending, ConnectionId connection) {
  if (pending.connection == connection && pending.followers.empty()) return false;
  log_.line_of(pending.uid, Level::kDebug, "asker_left",
               {{"name", pending.name}, {"others", pending.followers.size()}});
  if (pending.connection != connection) {
    std::erase_if(pending.followers,
                  [connection](const Knock& knock) { return knock.connection == connection; });
    return true;
  }
  // The next of the same user takes its place in the line.
  Knock next = std::move(pending.followers.front());
  pending.followers.erase(pending.followers.begin());
  pending.connection = next.connection;
  pending.request = next.request;
  pending.pid = next.peer.pid;
  pending.program = next.peer.program;
  pending.pidfd = std::move(next.peer.pidfd);
  text_store(pending.join->command, sizeof pending.join->command, next.command);
  return true;
}

void Engine::refuse_all(const Pending& pending, protocol::RefusalCode code, const std::string& text,
                        std::uint64_t minimum_bytes) {
  refuse(pending.connection, pending.request, code, text, minimum_bytes);
  for (const Knock& knock : pending.followers) refuse(knock.connection, knock.request, code, text);
}

void Engine::join_tenant(Tenant& tenant, ConnectionId connection, std::uint32_t request,
                         const Peer& peer, const std::string& command) {
  const protocol::TenantId tenant_id = tenant.id;
  for (const core::ProcessId id :
       std::vector<core::ProcessId>(tenant.processes.begin(), tenant.processes.end())) {
    Process& known = *processes_.at(id);
    if (known.pid != peer.pid || known.ending != Ending::kLives || pidfd_ended(known.pidfd.get()))
      continue;
    if (rejoin(tenant, known, connection, request, peer.program)) return;
    if (tenant_find(tenant_id) == nullptr) {  // without descriptors nobody could be adopted
      refuse(connection, request, RefusalCode::kUnknownTenant,
             "the job ended with the program that this one replaced; start it with sluice run");
      return;
    }
    break;
  }
  devices::Fd pidfd(fcntl(peer.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!pidfd) {
    refuse(connection, request, RefusalCode::kNoRoom, kNoDescriptors);
    return;
  }
  const auto slot = tenant.pages->slot_take(peer.pid);
  if (!slot) {
    refuse(connection, request, RefusalCode::kTooManyProcesses,
           "the job " + tenant.name + " has " +
               std::to_string(tenant.processes.size() + tenant.kept.size()) +
               " processes on its GPUs" +
               (tenant.kept.empty() ? ""
                                    : " (" + std::to_string(tenant.kept.size()) +
                                          " have ended, and the device keeps their memory)") +
               " and there is room for " + std::to_string(protocol::kTenantProcessesMax) +
               "; start fewer at a time");
    return;
  }
  auto process = std::make_unique<Process>();
  process->id = next_process_++;
  process->tenant = tenant.id;
  process->charge = DescriptorCharge(charges_, tenant.uid, kProcessDescriptors);
  process->pid = peer.pid;
  const devices::ProcessLook look = process_look(peer.pid);
  process->start_ticks = look.start_ticks;
  process->program = peer.program != 0 ? peer.program : look.program;
  process->slot = *slot;
  process->command = command;
  process->pidfd = std::move(pidfd);
  process->connection = connection;
  const core::ProcessId id = process->id;
  process->key = loop_.add(
      process->pidfd.get(), [this, id] { process_end_seen(id, End::kExited); }, "process's end");
  tenant.processes.insert(id);
  tenant.granted_on = 0;
  shims_[connection] = id;
  ++counters_.registrations;
  journal_process(
      *process);  // before it is told: nobody is a member that the journal does not know
  registered_send(tenant, *process, connection, request);
  log_.line_of(tenant.uid, Level::kInfo, "registered",
               {{"tenant", tenant.id}, {"pid", peer.pid}, {"slot", *slot}, {"command", command}});
  processes_.emplace(id, std::move(process));
  feed(core::ProcessJoined{tenant.id, id});
}

/// The same process once more: after it lost its socket it goes on with its slot. After exec it is
/// a new program and its old account is closed: false, and it joins afresh.
bool Engine::rejoin(Tenant& tenant, Process& process, ConnectionId connection,
                    std::uint32_t request, std::uint64_t program) {
  if (process.connection != 0) {
    shims_.erase(process.connection);
    outbox_.drop(process.connection);
    process.connection = 0;
  }
  if (!process_same(process, program)) {
    process_replaced(process.id);
    return false;
  }
  process.connection = connection;
  process.beats_detached = 0;
  process.restored = false;
  if (program != 0) process.program = program;
  journal_process(process);
  shims_[connection] = process.id;
  ++counters_.registrations;
  registered_send(tenant, process, connection, request);
  log_.line_of(tenant.uid, Level::kInfo, "registered_again",
               {{"tenant", tenant.id}, {"pid", process.pid}, {"slot", process.slot}});
  return true;
}

void Engine::registered_send(const Tenant& tenant, const Process& process, ConnectionId connection,
                             std::uint32_t request) {
  protocol::Registered reply;
  protocol::message_init(reply, MessageType::kRegistered, request);
  reply.tenant = tenant.id;
  reply.slot = process.slot;
  reply.host_pid = static_cast<std::uint32_t>(process.pid);
  const int fds[] = {tenant.pages->lease_fd(), tenant.pages->claims_fd()};
  outbox_.send_bytes(connection, &reply, sizeof reply, fds, 2);
}

bool Engine::note(core::ProcessId id, const protocol::Envelope& envelope) {
  switch (envelope.header().type) {
    case MessageType::kMoved:
      return moved(id, envelope.as<protocol::Moved>());
    case MessageType::kMemoryWant:
      return memory_want(id, envelope.as<protocol::MemoryWant>());
    default:
      return gate_note(id, envelope.as<protocol::GateNote>());
  }
}

bool Engine::gate_note(core::ProcessId id, const protocol::GateNote& note) {
  const Process& process = *processes_.at(id);
  const Tenant& tenant = *tenants_.at(process.tenant);
  if (note.gpu >= tenant.gpus.size()) return false;
  switch (note.header.type) {
    case MessageType::kGateWant:
      feed(core::GateWanted{id, note.gpu, note.epoch});
      return true;
    case MessageType::kGateIdle:
      feed(core::GateIdle{id, note.gpu, note.epoch});
      return true;
    case MessageType::kDrained:
      log_.line(Level::kDebug, "drained",
                {{"tenant", tenant.id},
                 {"pid", process.pid},
                 {"gpu", gpu_text(tenant, note.gpu)},
                 {"epoch", note.epoch}});
      feed(core::Drained{id, note.gpu, note.epoch});
      return true;
    case MessageType::kHeld:
      held(id, note);
      return true;
    default:
      return false;
  }
}

}  // namespace sluice::daemon
