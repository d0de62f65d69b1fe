// Asking for tenants.
#include "broker/daemon/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <functional>

#include "broker/daemon/named.h"
#include "broker/daemon/snapshot.h"
#include "broker/daemon/validate.h"
#include "broker/devices/uuid.h"
#include "broker/protocol/gpu_index.h"

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

std::vector<protocol::GpuUuid> uuids_of(const std::vector<ServedGpu>& gpus) {
  std::vector<protocol::GpuUuid> uuids;
  for (const ServedGpu& gpu : gpus) uuids.push_back(gpu.uuid);
  return uuids;
}

}  // namespace

Engine::Engine(Loop& loop, Log& log, Outbox& outbox, SlowWork& slow, const EngineSetup& setup)
    : loop_(loop),
      log_(log),
      outbox_(outbox),
      slow_(slow),
      gpus_(setup.gpus),
      config_(setup.config),
      config_started_(setup.config),
      profiles_(setup.config),
      state_(core::state_create(policy_make(setup.config, profiles_, capacity_min()))),
      journal_(setup.journal),
      alarm_(
          loop,
          [this] {
            drains_poll();
            feed(core::Tick{});
          },
          "alarm"),
      grace_(
          loop, [this] { grace_over(); }, "restart grace"),
      started_ns_(clock_ns()),
      who_patience_ns_(setup.who_patience_ns),
      gather_patience_ns_(setup.gather_patience_ns),
      reload_patience_ns_(setup.reload_patience_ns),
      accounts_(setup.accounts),
      losses_(setup.probe, environ, uuids_of(gpus_)),
      kept_timer_(
          loop, [this] { kept_tend(); }, "memory of ended processes") {
  exporter_uid_ = exporter_uid_find(setup.config);
  for (const ServedGpu& gpu : gpus_)
    feed(core::GpuAdded{gpu.uuid, gpu.capacity_bytes, gpu.context_bytes, gpu.size_bytes});
}

Engine::~Engine() {
  loop_.remove(checkpoints_key_);
  loop_.remove(losses_key_);
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
    if (pending.connection == connection ||
        std::ranges::any_of(pending.followers, [connection](const Knock& knock) {
          return knock.connection == connection;
        }))
      return id;
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
                    const std::string& core_text, std::uint64_t minimum_bytes) {
  const std::string text = named_text(core_text);
  ++counters_.refusals;
  ++counters_.refused_by_code[static_cast<std::size_t>(code)];
  log_.line_of(outbox_.user_of(connection), Level::kInfo, "refused",
               {{"connection", connection},
                {"uid", outbox_.user_of(connection)},
                {"code", static_cast<int>(code)},
                {"text", text}});
  protocol::Refused refused;
  protocol::message_init(refused, MessageType::kRefused, request);
  refused.code = code;
  refused.minimum_bytes = minimum_bytes;
  text_store(refused.text, sizeof refused.text, text);
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
  const std::string who = "profile " + profile.name + " of user " + accounts_.name(uid);
  if (message.tenant_class != TenantClass::kExclusive && profile.memory_max_bytes != 0 &&
      message.memory_max_bytes > profile.memory_max_bytes) {
    return who + " allows " + config::size_format(profile.memory_max_bytes) +
           " per GPU, asked were " + config::size_format(message.memory_max_bytes) +
           "; ask for less with --memory";
  }
  if (message.sm_percent > profile.sm_percent_max) {
    const std::string most = std::to_string(profile.sm_percent_max);
    const std::string asked = std::to_string(message.sm_percent);
    if ((message.flags & protocol::kAdmitWeight) != 0)
      return who + " allows a weight of " + most + ", asked was " + asked +
             "; ask for less with --weight";
    return who + " allows " + most + " % of a GPU, asked were " + asked +
           " %; ask for less with --sm";
  }
  if (tenants_of(uid) >= profile.tenants_max) {
    const bool one = profile.tenants_max == 1;
    return who + " allows " + std::to_string(profile.tenants_max) + (one ? " job" : " jobs") +
           " at a time, and " + (one ? "one runs or waits" : "as many run or wait") +
           "; end one first";
  }
  return std::nullopt;
}

/// What a job may have on each of its GPUs at most: the least of those that it names, else what so
/// many GPUs have.
std::uint64_t Engine::capacity_for(const protocol::Admit& message) const {
  const auto pinned_end = message.pinned + message.pinned_count;
  std::vector<std::uint64_t> capacities;
  for (const ServedGpu& gpu : gpus_)
    if (message.pinned_count == 0 || std::find(message.pinned, pinned_end, gpu.uuid) != pinned_end)
      capacities.push_back(gpu.capacity_bytes);
  std::ranges::sort(capacities, std::greater<>());
  const std::size_t at = std::max<std::size_t>(message.gpu_count, 1) - 1;
  return at < capacities.size() ? capacities[at] : UINT64_MAX;
}

// The class's default, within the profile and the GPU, stands in for what was not asked for.
core::TenantAsked Engine::ask_make(const Profile& profile, const protocol::Admit& message,
                                   bool swap, std::uint8_t* cut) const {
  const core::Policy policy = policy_make(config_, profiles_, capacity_min());
  const core::ClassPolicy& defaults =
      policy.classes[static_cast<std::size_t>(message.tenant_class)];
  core::TenantAsked ask;
  ask.tenant_class = message.tenant_class;
  ask.sm_mode = message.sm_mode;
  ask.sm_mode_given = message.sm_mode != protocol::SmMode::kBestEffort;
  ask.sm_percent = message.sm_percent != 0 ? message.sm_percent
                                           : std::min(defaults.sm_percent, profile.sm_percent_max);
  ask.sm_default = message.sm_percent == 0;
  const bool shared = message.tenant_class != TenantClass::kExclusive;
  if (shared && ask.sm_default && ask.sm_percent < defaults.sm_percent)
    *cut |= protocol::kCutShareByProfile;
  ask.sm_weight = (message.flags & protocol::kAdmitWeight) != 0;
  ask.memory_max = message.memory_max_bytes;
  if (ask.memory_max == 0) {
    const std::uint64_t most = memory_most(profile, message.gpu_count);
    const std::uint64_t there = capacity_for(message);
    ask.memory_max = std::min({defaults.memory_max, most, there});
    if (shared && ask.memory_max < defaults.memory_max)
      *cut |= there < most ? protocol::kCutByGpu : protocol::kCutByProfile;
  }
  ask.memory_min = message.memory_min_bytes;
  ask.window_ns = static_cast<core::Nanos>(message.window_ns);
  ask.wait_ns_max = static_cast<core::Nanos>(message.wait_ns_max);
  ask.gpu_count = message.gpu_count;
  ask.pinned.assign(message.pinned, message.pinned + message.pinned_count);
  ask.swap = swap;
  ask.no_wait = (message.flags & protocol::kAdmitNoWait) != 0;
  ask.dry_run = (message.flags & protocol::kAdmitDryRun) != 0;
  ask.name = text_clean(message.name, sizeof message.name);
  return ask;
}

/// What the profile allows, and whom to ask for more; empty = it limits nothing and no contact is
/// known.
std::string Engine::allowed_text(const Profile& profile) const {
  std::string text;
  const auto add = [&text](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
  std::string classes;
  for (std::size_t i = 0; i < profile.classes.size(); ++i)
    if (profile.classes[i])
      classes.append(classes.empty() ? "" : " or ").append(class_name(static_cast<TenantClass>(i)));
  if (std::ranges::find(profile.classes, false) != profile.classes.end()) add("class " + classes);
  const std::string share = std::to_string(profile.sm_percent_max) + " %";
  if (profile.memory_max_bytes != 0)
    add(config::size_format(profile.memory_max_bytes) +
        (profile.sm_percent_max < 100 ? " and " + share : "") + " of each GPU");
  else if (profile.sm_percent_max < 100)
    add(share + " of each GPU");
  const auto add_sums = [&add](const core::SumLimits& sums, const std::string& whose) {
    if (sums.memory_max != 0) add(config::size_format(sums.memory_max) + " of GPU memory" + whose);
    if (sums.tenants_max != 0) add(std::to_string(sums.tenants_max) + " running" + whose);
  };
  add_sums(profile.together.per_user, " for each user");
  add_sums(profile.together.all, " for all its users together");
  if (!text.empty())
    text = "profile " + profile.name + " allows: " + text + "; " +
           std::to_string(profile.tenants_max) + (profile.tenants_max == 1 ? " job" : " jobs") +
           " at a time";
  if (!config_.contact.empty()) add("questions: " + config_.contact);
  return text.empty() ? text : "; " + text;
}

/// Refuses what the profile does not allow, with what it does.
void Engine::refuse_within(const Asker& asker, const Profile& profile, RefusalCode code,
                           const std::string& text) {
  refuse(asker.connection, asker.request, code, text + allowed_text(profile));
}

/// Numbers of users become names, and GPUs have their index: the core knows neither.
std::string Engine::named_text(const std::string& text) const {
  const std::string idle =
      idle_named(text, [this](protocol::TenantId id) { return idle_text(id); });
  return people_named(gpus_named(idle, uuids_of(gpus_)),
                      [this](uid_t uid) { return accounts_.name(uid); });
}

namespace {

/// Why a job cannot have the guaranteed memory that it asks for; empty = it can.
std::string guarantee_fault(const core::TenantAsked& ask) {
  if (ask.tenant_class == TenantClass::kExclusive || ask.memory_min == 0) return "";
  const std::string guarantee = config::size_format(ask.memory_min);
  const std::string quota = config::size_format(ask.memory_max);
  if (ask.memory_min > ask.memory_max)
    return "the guaranteed memory (" + guarantee + ") is above the quota (" + quota +
           "); raise --memory or lower --memory-min";
  if (!ask.swap && ask.memory_min < ask.memory_max)
    return "a guarantee of " + guarantee +
           " needs a job whose memory may be moved; without that all of its " + quota +
           " is guaranteed; add --swap or leave --memory-min out";
  return "";
}

}  // namespace

void Engine::ask(const Asker& asker, const Profile& profile, const protocol::Admit& message,
                 std::optional<protocol::Register> join) {
  if (!profile.classes[static_cast<std::size_t>(message.tenant_class)]) {
    refuse_within(asker, profile, RefusalCode::kClassNotAllowed,
                  "profile " + profile.name + " does not allow the class " +
                      class_name(message.tenant_class) +
                      "; choose another with sluice run --class");
    return;
  }
  if (const auto fault = profile_fault(profile, asker.peer.uid, message)) {
    refuse_within(asker, profile, RefusalCode::kUserLimit, *fault);
    return;
  }
  const auto swap = swap_choose(config_, profile, message.tenant_class,
                                (message.flags & protocol::kAdmitSwap) != 0);
  if (!swap) {
    refuse_within(asker, profile, RefusalCode::kNotAllowed,
                  "profile " + profile.name +
                      " does not let the memory of its jobs be moved; leave --swap out");
    return;
  }
  std::uint8_t cut = 0;
  core::TenantAsked event = ask_make(profile, message, *swap, &cut);
  if (const std::string fault = guarantee_fault(event); !fault.empty()) {
    refuse_within(asker, profile, RefusalCode::kMalformed, fault);
    return;
  }
  event.request = next_request_++;
  event.uid = asker.peer.uid;
  event.group = profile.name;
  event.joins = join.has_value();
  Pending pending;
  pending.charge = DescriptorCharge(charges_, asker.peer.uid, kRequestDescriptors);
  pending.connection = asker.connection;
  pending.request = asker.request;
  pending.uid = asker.peer.uid;
  pending.pid = asker.peer.pid;
  pending.program = asker.peer.program;
  pending.pidfd = devices::Fd(fcntl(asker.peer.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  pending.name = event.name;
  pending.profile = profile.name;
  pending.tenant_class = message.tenant_class;
  pending.asked = {message.memory_max_bytes, message.memory_min_bytes, message.sm_percent,
                   event.sm_weight};
  pending.window_ns = event.window_ns;
  pending.cut = cut;
  pending.asked_ns = clock_ns();
  pending.join = join;
  if (!pending.pidfd) {
    refuse(asker.connection, asker.request, RefusalCode::kNoRoom, kNoDescriptors);
    return;
  }
  const core::RequestId request = event.request;
  pending_.emplace(request, std::move(pending));
  feed(std::move(event));
}

std::string Engine::gpu_text(const Tenant& tenant, std::uint32_t gpu_index) const {
  return devices::uuid_format(tenant.gpus.at(gpu_index));
}

std::uint64_t Engine::context_bytes(const protocol::GpuUuid& gpu) const {
  const std::uint32_t g = protocol::gpu_index(gpus_, gpu);
  return g < gpus_.size() ? gpus_[g].context_bytes : 0;
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
  reply.cut = pending.cut;
  reply.sm_kind = action.sm_kind;
  std::copy(action.gpus.begin(), action.gpus.end(), reply.gpus);
  text_store(reply.profile, sizeof reply.profile, pending.profile);
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
  setup.swap = tenant.grant.swap;
  for (const protocol::GpuUuid& gpu : tenant.gpus) setup.gpus.push_back({gpu, context_bytes(gpu)});
  std::unique_ptr<Pages> pages = Pages::create(setup);
  if (pages != nullptr) pages->heartbeat_store(static_cast<std::uint64_t>(clock_ns()));
  return pages;
}

/// Into the table, with its founder watched if there is one.
Tenant* Engine::tenant_add(std::unique_ptr<Tenant> tenant) {
  const protocol::TenantId id = tenant->id;
  if (tenant->founder_pidfd)
    tenant->founder_key = loop_.add(
        tenant->founder_pidfd.get(), [this, id] { founder_drop(id); }, "founder's end");
  Tenant* raw = tenant.get();
  tenants_.emplace(id, std::move(tenant));
  return raw;
}

Tenant* Engine::tenant_create(const core::TenantAdmitted& action, Pending* pending) {
  auto tenant = std::make_unique<Tenant>();
  tenant->id = action.tenant;
  tenant->tenant_class = pending->tenant_class;
  tenant->grant = action;
  tenant->quota_most = action.memory_max;
  tenant->asked = pending->asked;
  tenant->window_ns = pending->window_ns;
  tenant->asked_ns = pending->asked_ns;
  tenant->gpus = action.gpus;
  tenant->pages = pages_make(*tenant);
  if (tenant->pages == nullptr) return nullptr;
  tenant->key = key_make();
  tenant->uid = pending->uid;
  tenant->charge = DescriptorCharge(charges_, tenant->uid, kTenantDescriptors);
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
