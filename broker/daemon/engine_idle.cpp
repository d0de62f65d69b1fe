// Jobs that use no GPU for long, by their meters: what others are told of them, and what becomes of
// them by the rules of their class (idle, idle_release, idle_end in [class.X]). A job that waits
// for its GPU is not idle, nor is one that is suspended by command or waits to come back.
#include <signal.h>

#include <algorithm>

#include "broker/daemon/engine.h"
#include "broker/daemon/profiles.h"

namespace sluice::daemon {
namespace {

constexpr std::int64_t kWholeSecond_ns = 1'000'000'000;

std::uint32_t seconds(std::int64_t ns) { return static_cast<std::uint32_t>(ns / kWholeSecond_ns); }

std::string whole_seconds(std::int64_t ns) {
  return config::duration_format(ns - ns % kWholeSecond_ns);
}

}  // namespace

/// For how long it has neither used nor wanted a GPU that it could have used.
std::int64_t Engine::idle_ns(const Tenant& tenant) const {
  const std::int64_t used =
      tenant.busy_changed_ns != 0 ? tenant.busy_changed_ns : tenant.admitted_ns;
  return clock_ns() - std::max(used, tenant.away_ns);
}

/// The same where people are told that it is idle; 0 = they are not.
std::int64_t Engine::idle_told_ns(const Tenant& tenant) const {
  constexpr std::int64_t kIdle_ns = 5 * kWholeSecond_ns;  // of which gaps of work are shorter
  if (tenant.tenant_class == protocol::TenantClass::kExclusive) return 0;  // nothing is metered
  const std::int64_t idle = idle_ns(tenant);
  return idle < kIdle_ns ? 0 : idle;
}

/// What stands for "{idle N}" in a text of the core: whether a job uses its GPU.
std::string Engine::idle_text(protocol::TenantId id) const {
  const auto found = tenants_.find(id);
  if (found == tenants_.end()) return "";
  const Tenant& tenant = *found->second;
  if (tenant.tenant_class == protocol::TenantClass::kExclusive) return "";
  const std::int64_t idle = idle_told_ns(tenant);
  if (idle == 0) return tenant.busy_seen_ns == 0 ? "" : ", in use";
  return ", idle for " + whole_seconds(idle);
}

/// Four looks a second would be too many for many jobs.
void Engine::idle_look() {
  constexpr int kBeats = 4;
  if (beats_ % kBeats != 0) return;
  const std::int64_t now = clock_ns();
  std::vector<protocol::TenantId> idle;
  for (auto& [id, tenant] : tenants_) {
    std::uint64_t busy = 0;
    for (std::uint32_t g = 0; g < tenant->gpus.size(); ++g) busy += tenant->pages->usage(g).busy_ns;
    const bool same = busy == tenant->busy_seen_ns && tenant->busy_changed_ns != 0;
    tenant->busy_seen_ns = busy;
    if (!same || core::tenant_waits(*state_, id)) tenant->busy_changed_ns = now;
    const bool away = tenant->stay.suspended || tenant->stay.returns;
    if (away) tenant->away_ns = now;
    if (tenant->tenant_class != protocol::TenantClass::kExclusive && !away) idle.push_back(id);
  }
  for (const protocol::TenantId id : idle)
    if (Tenant* tenant = tenant_find(id)) idle_step(*tenant, idle_ns(*tenant));
}

void Engine::idle_step(Tenant& tenant, std::int64_t idle_ns) {
  const auto found = config_.classes.find(class_name(tenant.tenant_class));
  if (found == config_.classes.end()) return;
  const config::ClassSettings& rules = found->second;
  const auto reached = [idle_ns](std::int64_t after) { return after != 0 && idle_ns >= after; };
  const std::uint32_t word = reached(rules.idle_end_ns) ? protocol::kIdleEnds
                             : reached(rules.idle_ns)   ? protocol::kIdleTold
                                                        : protocol::kIdleNot;
  const bool ends = word == protocol::kIdleEnds;
  if (ends && tenant.idle_said == word) idle_end(tenant, idle_ns);  // a look after it was told
  if (!ends && tenant.idle_ended) {
    tenant.idle_ended = false;
    tenant.how.clear();
  }
  if (word != tenant.idle_said) {
    tenant.idle_said = word;
    const std::int64_t release = tenant.grant.swap ? rules.idle_release_ns : 0;
    tenant.pages->idle_store(word, seconds(idle_ns), seconds(release), seconds(rules.idle_end_ns));
    log_.line_of(tenant.uid, Level::kInfo, "idle",
                 {{"tenant", tenant.id},
                  {"name", tenant.name},
                  {"idle", whole_seconds(idle_ns)},
                  {"ends", ends ? "yes" : "no"}});
  }
  if (reached(rules.idle_release_ns) && !tenant.stay.rests) feed(core::TenantIdle{tenant.id});
}

/// Its programs may save what they have. What does not end then goes on, with nothing on the GPU.
void Engine::idle_end(Tenant& tenant, std::int64_t idle_ns) {
  if (tenant.idle_ended) return;
  tenant.idle_ended = true;
  const std::string why = "for using no GPU for " + whole_seconds(idle_ns) + " ([class." +
                          class_name(tenant.tenant_class) + "] idle_end)";
  tenant.how = why;
  log_.message_of(tenant.uid, Level::kWarning, "idle_end", "its processes get SIGTERM " + why,
                  {{"tenant", tenant.id}, {"name", tenant.name}});
  for (const core::ProcessId id : tenant.processes)
    pidfd_kill(processes_.at(id)->pidfd.get(), SIGTERM);
  if (tenant.founder_pidfd) pidfd_kill(tenant.founder_pidfd.get(), SIGTERM);
}

}  // namespace sluice::daemon
