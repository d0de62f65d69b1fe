// A new configuration: taken whole or not at all, and what it means for those who run.
#include <algorithm>

#include "broker/daemon/engine.h"
#include "broker/daemon/notify.h"

namespace sluice::daemon {

void Engine::reload() {
  if (config_.path.empty()) {
    log_.message(Level::kInfo, "reload",
                 "there is no configuration file to read again; built-in settings stay", {});
    return;
  }
  notify_send("RELOADING=1");
  auto result = config::config_read(config_.path);
  std::optional<uid_t> exporter;
  if (std::string error; result.ok() && !exporter_uid_find(*result, &exporter, &error))
    result = {std::vector<config::Error>{{config_.path, 0, 0, error}}};
  if (result.ok()) {
    ++counters_.reloads_ok;
    config_ = *result;
    exporter_uid_ = exporter;
    user_groups_forget();
    profiles_ = Profiles(config_);
    log_.level_set(config_.log_level);
    log_.line(Level::kInfo, "reloaded", {{"config", config_.path}});
    feed(core::PolicyChanged{policy_make(config_, profiles_, capacity_min())});
    limits_renew();
  } else {
    ++counters_.reloads_failed;
    for (const config::Error& error : result.errors()) {
      log_.message(Level::kError, "reload_failed", error.text(), {});
    }
  }
  notify_send("READY=1");
}

// What a job was given by default follows the new default; what it asked for stays. Both stay
// within its profile. A profile that is gone leaves its jobs as they are: what they may have is
// then nobody's word.
void Engine::limits_renew() {
  const core::Policy policy = policy_make(config_, profiles_, capacity_min());
  std::vector<core::LimitsChanged> changes;
  for (const auto& [id, tenant] : tenants_) {
    const Profile* profile = profiles_.named(tenant->profile);
    if (profile == nullptr || tenant->tenant_class == protocol::TenantClass::kExclusive) continue;
    const auto& defaults = policy.classes[static_cast<std::size_t>(tenant->tenant_class)];
    const AskedLimits& asked = tenant->asked;
    core::LimitsChanged change;
    change.tenant = id;
    change.sm_percent = std::min(asked.sm_percent != 0 ? asked.sm_percent : defaults.sm_percent,
                                 profile->sm_percent_max);
    change.memory_max = asked.memory_max_bytes != 0 ? asked.memory_max_bytes : defaults.memory_max;
    if (profile->memory_max_bytes != 0)
      change.memory_max = std::min(change.memory_max, profile->memory_max_bytes);
    // What can be moved is guaranteed a context only, unless more was asked for.
    const std::uint64_t guaranteed =
        tenant->grant.swap ? tenant->grant.memory_min : change.memory_max;
    change.memory_min = std::min(asked.memory_min_bytes != 0 ? asked.memory_min_bytes : guaranteed,
                                 change.memory_max);
    changes.push_back(change);
  }
  // In the order of admission, and first what gives memory back: who is raised finds it.
  std::ranges::sort(changes, {}, &core::LimitsChanged::tenant);
  std::stable_partition(changes.begin(), changes.end(), [this](const core::LimitsChanged& change) {
    return change.memory_max <= tenants_.at(change.tenant)->grant.memory_max;
  });
  for (const core::LimitsChanged& change : changes) feed(change);
}

}  // namespace sluice::daemon
