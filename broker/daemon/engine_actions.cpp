// What the core decides, carried out: answers to askers, pages, lease words, signals, the alarm.
#include <algorithm>
#include <cassert>
#include <cstdio>

#include "broker/daemon/engine.h"
#include "broker/daemon/named.h"
#include "broker/daemon/snapshot.h"
#include "broker/daemon/validate.h"
#include "broker/protocol/gpu_index.h"

namespace sluice::daemon {
namespace {

using protocol::MessageType;
using protocol::RefusalCode;

// An alarm this far away is none.
constexpr core::Nanos kNever_ns = INT64_MAX / 2;

constexpr core::Nanos kMillisecond_ns = 1'000'000;

double milliseconds(core::Nanos ns) { return static_cast<double>(ns) / 1e6; }

std::string runaway_text(const std::string& name, const core::RunawaySeen& action) {
  const bool ends = action.step == core::RunawayStep::kEnded;
  char text[256];
  if (ends)
    std::snprintf(text, sizeof text,
                  "job %s (tenant %llu) is ended: others have waited %.0f ms for a kernel of it; "
                  "kernels cannot be interrupted; [scheduler] runaway and runaway_after decide",
                  name.c_str(), static_cast<unsigned long long>(action.tenant),
                  milliseconds(action.delayed_ns));
  else
    std::snprintf(text, sizeof text,
                  "job %s (tenant %llu) has not given its GPU back %.0f ms after its lease ended; "
                  "a kernel of it runs too long; others go on, the time is charged to it",
                  name.c_str(), static_cast<unsigned long long>(action.tenant),
                  milliseconds(action.overrun_ns));
  return text;
}

}  // namespace

// Events are dealt with one after another, however deep the actions that caused them: the core is
// never entered twice. The answers to UsageWanted and MemoryLookWanted come before anything else,
// as the core's contract says.
void Engine::feed(core::Event event) {
  events_.push_back(std::move(event));
  if (feeding_) return;
  feeding_ = true;
  while (!answers_.empty() || !events_.empty()) {
    std::deque<core::Event>& source = answers_.empty() ? events_ : answers_;
    const core::Event next = std::move(source.front());
    source.pop_front();
    for (const core::Action& action : core::step(*state_, next, clock_ns())) {
      std::visit([this](const auto& what) { carry_out(what); }, action);
    }
  }
  feeding_ = false;
}

void Engine::carry_out(const core::TenantAdmitted& action) {
  const auto found = pending_.find(action.request);
  if (found == pending_.end()) {  // the asker left while the decision was on its way
    if (!action.dry_run) feed(core::FounderGone{action.tenant});
    return;
  }
  Pending pending = std::move(found->second);
  pending_.erase(found);
  if (action.dry_run) {
    admitted_send(action, pending, 0);
    return;
  }
  Tenant* tenant = tenant_create(action, &pending);
  if (tenant == nullptr) {
    refuse_all(pending, RefusalCode::kNoRoom,
               "the broker could not make the job's pages (out of memory or descriptors); end some "
               "jobs and try again");
    feed(core::FounderGone{action.tenant});
    return;
  }
  ++counters_.admissions;
  log_.line_of(tenant->uid, Level::kInfo, "admitted",
               {{"tenant", tenant->id},
                {"name", tenant->name},
                {"uid", tenant->uid},
                {"pid", tenant->founder_pid},
                {"class", class_name(pending.tenant_class)},
                {"profile", tenant->profile},
                {"memory_max_bytes", action.memory_max},
                {"memory_min_bytes", action.memory_min},
                {"sm_percent", action.sm_percent},
                {"sm", sm_kind_name(action.sm_kind)},
                {"swap", action.swap ? "yes" : "no"},
                {"gpus", action.gpus.size()},
                {"gpu", gpu_text(*tenant, 0)}});
  if (!pending.join) {
    tenant->granted_on = pending.connection;
    if (!admitted_send(action, pending, tenant->key)) grant_lost(pending.connection);
    return;
  }
  Peer peer;
  peer.pid = tenant->founder_pid;
  peer.uid = tenant->uid;
  peer.program = pending.program;
  peer.pidfd = devices::Fd(dup(tenant->founder_pidfd.get()));
  join_tenant(*tenant, pending.connection, pending.request, peer,
              text_clean(pending.join->command, sizeof pending.join->command));
  for (const Knock& knock : pending.followers) {
    tenant = tenant_find(action.tenant);
    if (tenant == nullptr)
      refuse(knock.connection, knock.request, RefusalCode::kUnknownTenant,
             "the job has ended; start the program again");
    else
      join_tenant(*tenant, knock.connection, knock.request, knock.peer, knock.command);
  }
}

void Engine::carry_out(const core::TenantQueued& action) {
  const auto found = pending_.find(action.request);
  if (found == pending_.end()) return;
  log_.line_of(found->second.uid, Level::kInfo, "queued",
               {{"request", action.request},
                {"name", found->second.name},
                {"position", action.position},
                {"reason", static_cast<int>(action.reason)}});
  protocol::Queued message;
  protocol::message_init(message, MessageType::kQueued, found->second.request);
  message.position = action.position;
  message.reason = action.reason;
  message.limit = action.limit;
  message.promised_bytes = action.promised;
  message.capacity_bytes = action.capacity;
  text_store(message.text, sizeof message.text,
             named_text(core::queued_text(*state_, action.request)));
  if (!action.ahead.empty())
    text_store(
        message.ahead, sizeof message.ahead,
        owned_text(action.ahead, accounts_.name(action.ahead_uid), sizeof message.ahead - 1));
  found->second.place = message;
  place_send(found->second);
}

/// Tells a request where it stands, and those that wait with it.
void Engine::place_send(const Pending& pending) {
  protocol::Queued message = *pending.place;
  outbox_.send(pending.connection, message);
  for (const Knock& knock : pending.followers) {
    message.header.request = knock.request;
    outbox_.send(knock.connection, message);
  }
}

/// A user's name is known now. Who was told its number is told anew.
void Engine::places_name(uid_t uid) {
  const auto name = [this, uid](uid_t user) {
    return user == uid ? accounts_.name(uid) : std::to_string(user);
  };
  const std::string number = owned_text("", std::to_string(uid), protocol::kNameBytes);
  for (auto& [id, pending] : pending_) {
    if (!pending.place) continue;
    protocol::Queued& place = *pending.place;
    const std::string text = people_named(place.text, name);
    std::string ahead = place.ahead;
    if (ahead.ends_with(number))
      ahead = owned_text(ahead.substr(0, ahead.size() - number.size()), name(uid),
                         sizeof place.ahead - 1);
    if (text == place.text && ahead == place.ahead) continue;
    text_store(place.text, sizeof place.text, text);
    text_store(place.ahead, sizeof place.ahead, ahead);
    place_send(pending);
  }
}

void Engine::carry_out(const core::TenantRefused& action) {
  const auto found = pending_.find(action.request);
  if (found == pending_.end()) return;
  const Pending pending = std::move(found->second);
  pending_.erase(found);
  const Profile* profile = profiles_.named(pending.profile);
  const bool waits = action.code == RefusalCode::kNoRoom || action.code == RefusalCode::kTimeout;
  refuse_all(pending, action.code,
             action.text + (!waits && profile != nullptr ? allowed_text(*profile) : ""),
             action.minimum);
}

/// How processes ended that no rule ended: exit statuses are their parents' alone.
static std::string ended_text(const Tenant& tenant) {
  std::string text = "its processes ended";
  if (tenant.crashes == 0) return text;
  const bool one = tenant.crashes == 1;
  return text + ", " +
         (one ? tenant.crashed
              : std::to_string(tenant.crashes) + " of them, last " + tenant.crashed + ",") +
         " without a goodbye: killed or crashed by a signal, or by _exit(); the shell that "
         "started it knows which";
}

/// For `sluice why`: that a job has ended, and why if the broker knows.
void Engine::ended_note(const Tenant& tenant, std::uint64_t busy_ns) {
  protocol::SnapshotEnded row{};
  row.tenant = tenant.id;
  row.admitted_ns = static_cast<std::uint64_t>(tenant.admitted_ns);
  row.ended_ns = static_cast<std::uint64_t>(clock_ns());
  row.busy_ns = busy_ns;
  row.uid = tenant.uid;
  text_store(row.name, sizeof row.name, tenant.name);
  text_store(row.user, sizeof row.user, accounts_.name(tenant.uid));
  text_store(row.how, sizeof row.how, tenant.how.empty() ? ended_text(tenant) : tenant.how);
  ended_.push_front(row);
  if (ended_.size() > protocol::kEndedMax) ended_.pop_back();
}

void Engine::carry_out(const core::TenantEnded& action) {
  const auto found = tenants_.find(action.tenant);
  if (found == tenants_.end()) return;
  Tenant& tenant = *found->second;
  std::uint64_t busy_ns = 0;
  for (std::uint32_t i = 0; i < tenant.gpus.size(); ++i) {
    const std::uint64_t used = std::min(tenant.pages->usage(i).busy_ns, lived_ns(tenant));
    busy_ns += used;
    const std::uint32_t g = protocol::gpu_index(gpus_, tenant.gpus[i]);
    if (g < gpus_.size()) retired_busy_ns_[g] += used;
  }
  log_.line_of(tenant.uid, Level::kInfo, "ended",
               {{"tenant", tenant.id}, {"name", tenant.name}, {"busy_ns", busy_ns}});
  ended_note(tenant, busy_ns);
  assert(tenant.processes.empty() && "the core ended a tenant that has processes");
  loop_.remove(tenant.founder_key);
  if (journal_ != nullptr) journal_->tenant_end(tenant.id);
  const std::vector<Knock> late = std::move(tenant.knocks);
  tenants_.erase(found);
  for (const Knock& knock : late) {
    knocking_.erase(knock.connection);
    refuse(knock.connection, knock.request, RefusalCode::kUnknownTenant,
           "the job has ended; start the program with sluice run");
  }
}

void Engine::carry_out(const core::LimitsSet& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  core::TenantAdmitted& grant = tenant->grant;
  if (grant.memory_max == action.memory_max && grant.memory_min == action.memory_min &&
      grant.sm_percent == action.sm_percent && grant.sm_kind == action.sm_kind) {
    return;
  }
  grant.sm_kind = action.sm_kind;
  grant.memory_max = action.memory_max;
  tenant->quota_most = std::max(tenant->quota_most, action.memory_max);
  grant.memory_min = action.memory_min;
  grant.sm_percent = action.sm_percent;
  tenant->pages->limits_store(action.memory_max, action.memory_min, action.sm_percent);
  journal_tenant(*tenant);
  log_.line_of(tenant->uid, Level::kInfo, "limits_changed",
               {{"tenant", tenant->id},
                {"name", tenant->name},
                {"memory_max_bytes", action.memory_max},
                {"memory_min_bytes", action.memory_min},
                {"sm_percent", action.sm_percent},
                {"sm", sm_kind_name(action.sm_kind)}});
}

void Engine::carry_out(const core::LeaseSet& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  const std::uint32_t before = tenant->pages->lease_load(action.gpu_index);
  tenant->pages->lease_store(action.gpu_index, action.word,
                             static_cast<std::uint64_t>(action.window_ns),
                             static_cast<std::uint64_t>(action.idle_grace_ns));
  if (!log_.enabled(Level::kDebug)) return;
  const bool opened = (action.word & protocol::kLeaseOpen) != 0;
  const bool was_open = (before & protocol::kLeaseOpen) != 0;
  const char* event = opened == was_open ? "lease_changed"
                      : opened           ? "lease_opened"
                                         : "lease_closed";
  log_.line(Level::kDebug, event,
            {{"tenant", tenant->id},
             {"gpu", gpu_text(*tenant, action.gpu_index)},
             {"epoch", protocol::lease_epoch(action.word)},
             {"contended", (action.word & protocol::kLeaseContended) != 0 ? "yes" : "no"},
             {"exclusive", (action.word & protocol::kLeaseExclusive) != 0 ? "yes" : "no"},
             {"window_ns", action.window_ns}});
}

void Engine::carry_out(const core::UsageWanted& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  const std::uint64_t busy_ns = tenant->pages->usage(action.gpu_index).busy_ns;
  const auto bounded = static_cast<core::Nanos>(busy_ns > INT64_MAX ? INT64_MAX : busy_ns);
  answers_.push_back(core::UsageSeen{action.tenant, action.gpu_index, bounded});
}

void Engine::carry_out(const core::RunawaySeen& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  if (action.step == core::RunawayStep::kWarned) {
    const core::Nanos most = UINT32_MAX * kMillisecond_ns;
    const core::Nanos delayed = std::clamp(action.delayed_ns, kMillisecond_ns, most);
    tenant->pages->delayed_store(action.gpu_index,
                                 static_cast<std::uint32_t>(delayed / kMillisecond_ns));
    return;
  }
  // The word that a job is being ended is for those that were warned, not for later processes.
  const bool ends = action.step == core::RunawayStep::kEnded;
  if (action.step != core::RunawayStep::kSeen)
    for (std::uint32_t i = 0; i < tenant->pages->gpu_count(); ++i)
      tenant->pages->delayed_store(i, 0);
  if (action.step == core::RunawayStep::kSpared) return;
  log_.message_of(tenant->uid, Level::kWarning, "runaway",
                  runaway_text(tenant->name, action).c_str(),
                  {{"tenant", tenant->id},
                   {"gpu", gpu_text(*tenant, action.gpu_index)},
                   {"overrun_ns", action.overrun_ns},
                   {"delayed_ns", action.delayed_ns},
                   {"end", ends ? "yes" : "no"}});
  if (!ends) return;
  tenant->how = "as a runaway: others had waited " + config::duration_format(action.delayed_ns) +
                " for the GPU while a kernel of it ran";
  tenant_kill(*tenant);
}

void Engine::carry_out(const core::RankLost& action) {
  Tenant* tenant = tenant_find(action.tenant);
  if (tenant == nullptr) return;
  const std::string text =
      "a process of job " + tenant->name + " (tenant " + std::to_string(tenant->id) +
      ") was killed or crashed; " +
      (action.end ? "the others are being ended as configured (rank_loss = \"end\")"
                  : "the others go on and keep the GPUs (rank_loss = \"keep\")");
  log_.message_of(tenant->uid, Level::kWarning, "rank_lost", text,
                  {{"tenant", tenant->id}, {"end", action.end ? "yes" : "no"}});
  if (!action.end) return;
  tenant->how = "because a process of it was killed or crashed ([scheduler] rank_loss = \"end\")";
  tenant_kill(*tenant);
}

void Engine::carry_out(const core::AlarmSet& action) {
  if (action.at >= kNever_ns) {
    alarm_.clear();
  } else {
    alarm_.at(action.at);
  }
}

}  // namespace sluice::daemon
