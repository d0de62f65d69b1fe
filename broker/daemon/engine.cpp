// Asking for tenants and joining them.
#include "broker/daemon/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>

#include "broker/daemon/validate.h"
#include "broker/devices/uuid.h"

namespace sluice::daemon {
namespace {

using protocol::MessageType;
using protocol::RefusalCode;
using protocol::TenantClass;

// The kernel's generator; a key that can be guessed would let one job of a user into another of the
// same user only.
protocol::JoinKey key_make() {
  protocol::JoinKey key = 0;
  const ssize_t got = getrandom(&key, sizeof key, 0);
  assert(got == static_cast<ssize_t>(sizeof key));
  (void)got;
  return key;
}

void text_put(char* field, std::size_t size, const std::string& text) {
  std::snprintf(field, size, "%s", text.c_str());
}

}  // namespace

Engine::Engine(Loop& loop, Log& log, Outbox& outbox, std::vector<ServedGpu> gpus,
               const config::Config& config, Journal* journal)
    : loop_(loop),
      log_(log),
      outbox_(outbox),
      gpus_(std::move(gpus)),
      config_(config),
      profiles_(config),
      state_(core::state_create(policy_make(config, profiles_, capacity_min()))),
      journal_(journal),
      alarm_(loop,
             [this] {
               drains_poll();
               feed(core::Tick{});
             }),
      grace_(loop, [this] { grace_over(); }),
      started_ns_(clock_ns()) {
  for (const ServedGpu& gpu : gpus_)
    feed(core::GpuAdded{gpu.uuid, gpu.capacity_bytes, gpu.context_bytes});
}

Engine::~Engine() {
  for (auto& [id, process] : processes_) loop_.remove(process->key);
  for (auto& [id, tenant] : tenants_) loop_.remove(tenant->founder_key);
}

std::uint64_t Engine::capacity_min() const {
  std::uint64_t least = gpus_.empty() ? 0 : UINT64_MAX;
  for (const ServedGpu& gpu : gpus_) least = std::min(least, gpu.capacity_bytes);
  return least;
}

core::RequestId Engine::request_on(ConnectionId connection) const {
  for (const auto& [id, pending] : pending_) {
    if (pending.connection == connection) return id;
  }
  return 0;
}

core::ProcessId Engine::process_on(ConnectionId connection) const {
  const auto found = shims_.find(connection);
  return found == shims_.end() ? 0 : found->second;
}

Tenant* Engine::tenant_find(protocol::TenantId id) {
  const auto found = tenants_.find(id);
  return found == tenants_.end() ? nullptr : found->second.get();
}

/// The tenant of this id if key and uid fit; otherwise the asker is refused and null returned. One
/// text for all three mistakes: a stranger learns nothing about which ids exist.
Tenant* Engine::tenant_of(const Asker& asker, protocol::TenantId id, protocol::JoinKey key) {
  Tenant* tenant = tenant_find(id);
  if (tenant != nullptr && tenant->key == key && tenant->uid == asker.peer.uid) return tenant;
  refuse(asker.connection, asker.request, RefusalCode::kUnknownTenant,
         "no job of yours has the id and key in " + std::string(protocol::kTenantVariable) +
             "; the job may have ended; start the program with sluice run");
  return nullptr;
}

void Engine::refuse(ConnectionId connection, std::uint32_t request, RefusalCode code,
                    const std::string& text, std::uint64_t minimum_bytes) {
  ++counters_.refusals;
  log_.line_limited(Level::kInfo, "refused",
                    {{"connection", connection}, {"code", static_cast<int>(code)}, {"text", text}});
  protocol::Refused refused;
  protocol::message_init(refused, MessageType::kRefused, request);
  refused.code = code;
  refused.minimum_bytes = minimum_bytes;
  text_put(refused.text, sizeof refused.text, text);
  outbox_.send(connection, refused);
}

std::uint32_t Engine::tenants_of(uid_t uid) const {
  const auto tenants = std::count_if(tenants_.begin(), tenants_.end(),
                                     [uid](const auto& entry) { return entry.second->uid == uid; });
  const auto waiting = std::count_if(pending_.begin(), pending_.end(),
                                     [uid](const auto& entry) { return entry.second.uid == uid; });
  return static_cast<std::uint32_t>(tenants + waiting);
}

std::optional<std::string> Engine::profile_fault(const Profile& profile, uid_t uid,
                                                 const protocol::Admit& message) const {
  const std::string who = "profile " + profile.name + " of user " + user_name(uid);
  if (message.tenant_class != TenantClass::kExclusive && profile.memory_max_bytes != 0 &&
      message.memory_max_bytes > profile.memory_max_bytes) {
    return who + " allows " + config::size_format(profile.memory_max_bytes) +
           " per GPU, asked were " + config::size_format(message.memory_max_bytes) +
           "; ask for less with --memory";
  }
  if (message.sm_percent > profile.sm_percent_max) {
    return who + " allows " + std::to_string(profile.sm_percent_max) + " % of a GPU, asked were " +
           std::to_string(message.sm_percent) + " %; ask for less with --sm";
  }
  if (tenants_of(uid) >= profile.tenants_max) {
    return who + " allows " + std::to_string(profile.tenants_max) +
           " jobs at a time and as many run or wait; end one first";
  }
  return std::nullopt;
}

// The class's default, within the profile, stands in for what was not asked for.
core::TenantAsked Engine::ask_make(const Profile& profile, const protocol::Admit& message) const {
  const core::Policy policy = policy_make(config_, profiles_, capacity_min());
  const core::ClassPolicy& defaults =
      policy.classes[static_cast<std::size_t>(message.tenant_class)];
  core::TenantAsked ask;
  ask.tenant_class = message.tenant_class;
  ask.sm_mode = message.sm_mode;
  ask.sm_mode_given = message.sm_mode != protocol::SmMode::kBestEffort;
  ask.sm_percent = message.sm_percent != 0 ? message.sm_percent
                                           : std::min(defaults.sm_percent, profile.sm_percent_max);
  ask.memory_max = message.memory_max_bytes;
  if (ask.memory_max == 0) {
    ask.memory_max = defaults.memory_max;
    if (profile.memory_max_bytes != 0)
      ask.memory_max = std::min(ask.memory_max, profile.memory_max_bytes);
  }
  ask.memory_min = message.memory_min_bytes;
  ask.window_ns = static_cast<core::Nanos>(message.window_ns);
  ask.wait_ns_max = static_cast<core::Nanos>(message.wait_ns_max);
  ask.gpu_count = message.gpu_count;
  ask.pinned.assign(message.pinned, message.pinned + message.pinned_count);
  ask.no_wait = (message.flags & protocol::kAdmitNoWait) != 0;
  ask.dry_run = (message.flags & protocol::kAdmitDryRun) != 0;
  ask.name = text_clean(message.name, sizeof message.name);
  return ask;
}

void Engine::admit(const Asker& asker, const protocol::Admit& message) {
  const std::string wanted = text_clean(message.profile, sizeof message.profile);
  const Profile* profile = wanted.empty()
                               ? &profiles_.find(asker.peer.uid, asker.peer.groups)
                               : profiles_.find_named(wanted, asker.peer.uid, asker.peer.groups);
  if (profile == nullptr) {
    refuse(asker.connection, asker.request, RefusalCode::kClassNotAllowed,
           "there is no profile '" + wanted + "' for user " + user_name(asker.peer.uid) +
               "; leave --profile out, or ask whoever keeps sluice.toml");
    return;
  }
  ask(asker, *profile, message, std::nullopt);
}

void Engine::ask(const Asker& asker, const Profile& profile, const protocol::Admit& message,
                 std::optional<protocol::Register> join) {
  if (!profile.classes[static_cast<std::size_t>(message.tenant_class)]) {
    refuse(asker.connection, asker.request, RefusalCode::kClassNotAllowed,
           "profile " + profile.name + " does not allow the class " +
               class_name(message.tenant_class) + "; choose another with --class");
    return;
  }
  if (const auto fault = profile_fault(profile, asker.peer.uid, message)) {
    refuse(asker.connection, asker.request, RefusalCode::kUserLimit, *fault);
    return;
  }
  core::TenantAsked event = ask_make(profile, message);
  if (event.memory_min > event.memory_max && event.tenant_class != TenantClass::kExclusive) {
    refuse(asker.connection, asker.request, RefusalCode::kMalformed,
           "the guaranteed memory (" + config::size_format(event.memory_min) +
               ") is above the quota (" + config::size_format(event.memory_max) +
               "); raise --memory or lower --memory-min");
    return;
  }
  event.request = next_request_++;
  event.uid = asker.peer.uid;
  Pending pending;
  pending.connection = asker.connection;
  pending.request = asker.request;
  pending.uid = asker.peer.uid;
  pending.pid = asker.peer.pid;
  pending.pidfd = devices::Fd(fcntl(asker.peer.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  pending.name = event.name;
  pending.profile = profile.name;
  pending.tenant_class = message.tenant_class;
  pending.asked = {message.memory_max_bytes, message.memory_min_bytes, message.sm_percent};
  pending.window_ns = event.window_ns;
  pending.asked_ns = clock_ns();
  pending.join = join;
  if (!pending.pidfd) {
    refuse(asker.connection, asker.request, RefusalCode::kNoRoom,
           "the broker has no file descriptors left; raise its LimitNOFILE, or end some jobs");
    return;
  }
  const core::RequestId request = event.request;
  pending_.emplace(request, std::move(pending));
  feed(std::move(event));
}

void Engine::join(const Asker& asker, const protocol::Register& message) {
  if (message.tenant != 0) {
    Tenant* tenant = tenant_of(asker, message.tenant, message.key);
    if (tenant != nullptr)
      join_or_knock(*tenant, asker, text_clean(message.command, sizeof message.command));
    return;
  }
  for (auto& [id, tenant] : tenants_) {
    if (tenant->is_default && tenant->uid == asker.peer.uid) {
      join_or_knock(*tenant, asker, text_clean(message.command, sizeof message.command));
      return;
    }
  }
  // An unannounced program: its user's default tenant, with what a debug job gets by default. It
  // cannot be kept waiting, since a program that was started by hand would seem to hang.
  protocol::Admit defaults;
  protocol::message_init(defaults, MessageType::kAdmit, 0);
  defaults.tenant_class = TenantClass::kDebug;
  defaults.gpu_count = 1;
  defaults.flags = protocol::kAdmitNoWait;
  text_put(defaults.name, sizeof defaults.name, "default");
  ask(asker, profiles_.find(asker.peer.uid, asker.peer.groups), defaults, message);
}

void Engine::join_tenant(Tenant& tenant, ConnectionId connection, std::uint32_t request,
                         const Peer& peer, const std::string& command) {
  const protocol::TenantId tenant_id = tenant.id;
  for (const core::ProcessId id :
       std::vector<core::ProcessId>(tenant.processes.begin(), tenant.processes.end())) {
    Process& known = *processes_.at(id);
    if (known.pid != peer.pid || pidfd_ended(known.pidfd.get())) continue;
    if (rejoin(tenant, known, connection, request)) return;
    if (tenant_find(tenant_id) == nullptr) {  // without descriptors nobody could be adopted
      refuse(connection, request, RefusalCode::kUnknownTenant,
             "the job ended with the program that this one replaced; start it with sluice run");
      return;
    }
    break;
  }
  devices::Fd pidfd(fcntl(peer.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  const auto slot = pidfd ? tenant.pages->slot_take(peer.pid) : std::nullopt;
  if (!slot) {
    refuse(connection, request, RefusalCode::kTooManyProcesses,
           "the job " + tenant.name + " has " + std::to_string(tenant.processes.size()) +
               " processes on its GPUs and there is room for " +
               std::to_string(protocol::kTenantProcessesMax) + "; start fewer at a time");
    return;
  }
  auto process = std::make_unique<Process>();
  process->id = next_process_++;
  process->tenant = tenant.id;
  process->pid = peer.pid;
  process->start_ticks = process_start_ticks(peer.pid);
  process->slot = *slot;
  process->command = command;
  process->pidfd = std::move(pidfd);
  process->connection = connection;
  tenant.pages->claims_identify(&process->claims_device, &process->claims_inode);
  const core::ProcessId id = process->id;
  process->key = loop_.add(process->pidfd.get(), [this, id] { process_ended(id, "exited"); });
  tenant.processes.insert(id);
  tenant.granted_on = 0;
  shims_[connection] = id;
  ++counters_.registrations;
  journal_process(
      *process);  // before it is told: nobody is a member that the journal does not know
  registered_send(tenant, *process, connection, request);
  log_.line(Level::kInfo, "registered",
            {{"tenant", tenant.id}, {"pid", peer.pid}, {"slot", *slot}, {"command", command}});
  processes_.emplace(id, std::move(process));
  feed(core::ProcessJoined{tenant.id, id});
}

/// The same process once more: after it lost its socket it goes on with its slot. After exec it is
/// a new program and its old account is closed: false, and it joins afresh.
bool Engine::rejoin(Tenant& tenant, Process& process, ConnectionId connection,
                    std::uint32_t request) {
  if (process.connection != 0) {
    shims_.erase(process.connection);
    outbox_.drop(process.connection);
    process.connection = 0;
  }
  if (!process_keeps_pages(process)) {
    process_replaced(process.id);
    return false;
  }
  process.connection = connection;
  process.beats_detached = 0;
  process.restored = false;
  tenant.pages->claims_identify(&process.claims_device, &process.claims_inode);
  journal_process(process);
  shims_[connection] = process.id;
  ++counters_.registrations;
  registered_send(tenant, process, connection, request);
  log_.line(Level::kInfo, "registered_again",
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
    case MessageType::kHeld:  // this broker sets no holds
      return true;
    default:
      return false;
  }
}

std::string Engine::gpu_text(const Tenant& tenant, std::uint32_t gpu_index) const {
  return devices::uuid_format(tenant.gpus.at(gpu_index));
}

std::uint64_t Engine::context_bytes(const protocol::GpuUuid& gpu) const {
  for (const ServedGpu& served : gpus_) {
    if (served.uuid == gpu) return served.context_bytes;
  }
  return 0;
}

bool Engine::admitted_send(const core::TenantAdmitted& action, const Pending& pending,
                           protocol::JoinKey key) {
  protocol::Admitted reply;
  protocol::message_init(reply, MessageType::kAdmitted, pending.request);
  reply.tenant = action.dry_run ? 0 : action.tenant;
  reply.key = key;
  reply.memory_max_bytes = action.memory_max;
  reply.memory_min_bytes = action.memory_min;
  reply.sm_percent = action.sm_percent;
  reply.gpu_count = static_cast<std::uint32_t>(action.gpus.size());
  reply.tenant_class = pending.tenant_class;
  reply.sm_mode = action.sm_mode;
  std::copy(action.gpus.begin(), action.gpus.end(), reply.gpus);
  text_put(reply.profile, sizeof reply.profile, pending.profile);
  return outbox_.send(pending.connection, reply);
}

std::unique_ptr<Pages> Engine::pages_make(const Tenant& tenant) const {
  PageSetup setup;
  setup.tenant = tenant.id;
  setup.tenant_class = tenant.tenant_class;
  setup.sm_mode = tenant.grant.sm_mode;
  setup.memory_max_bytes = tenant.grant.memory_max;
  setup.memory_min_bytes = tenant.grant.memory_min;
  setup.sm_percent = tenant.grant.sm_percent;
  for (const protocol::GpuUuid& gpu : tenant.gpus) setup.gpus.push_back({gpu, context_bytes(gpu)});
  std::unique_ptr<Pages> pages = Pages::create(setup);
  if (pages != nullptr) pages->heartbeat_store(static_cast<std::uint64_t>(clock_ns()));
  return pages;
}

/// Into the table, with its founder watched if there is one.
Tenant* Engine::tenant_add(std::unique_ptr<Tenant> tenant) {
  const protocol::TenantId id = tenant->id;
  if (tenant->founder_pidfd)
    tenant->founder_key = loop_.add(tenant->founder_pidfd.get(), [this, id] { founder_ended(id); });
  Tenant* raw = tenant.get();
  tenants_.emplace(id, std::move(tenant));
  return raw;
}

Tenant* Engine::tenant_create(const core::TenantAdmitted& action, Pending* pending) {
  auto tenant = std::make_unique<Tenant>();
  tenant->id = action.tenant;
  tenant->tenant_class = pending->tenant_class;
  tenant->grant = action;
  tenant->asked = pending->asked;
  tenant->window_ns = pending->window_ns;
  tenant->asked_ns = pending->asked_ns;
  tenant->gpus = action.gpus;
  tenant->pages = pages_make(*tenant);
  if (tenant->pages == nullptr) return nullptr;
  tenant->key = key_make();
  tenant->uid = pending->uid;
  tenant->admitted_ns = clock_ns();
  tenant->name = pending->name;
  tenant->profile = pending->profile;
  tenant->is_default = pending->join.has_value();
  tenant->founder_pid = pending->pid;
  tenant->founder_start_ticks = process_start_ticks(pending->pid);
  tenant->founder_pidfd = std::move(pending->pidfd);
  Tenant* added = tenant_add(std::move(tenant));
  journal_tenant(*added);  // before it is told: nobody has a key that the journal does not know
  return added;
}

}  // namespace sluice::daemon
