// A new configuration: read beside the loop, taken whole or not at all, and what it means for those
// who run.
#include <algorithm>
#include <memory>

#include "broker/daemon/engine.h"
#include "broker/daemon/notify.h"

namespace sluice::daemon {

/// What a reading of the configuration gave.
struct Engine::Reloaded {
  config::Result<config::Config> result{std::vector<config::Error>{}};
  std::optional<uid_t> exporter;
  std::optional<Profiles> profiles;
};

// The file may lie on a slow disk, and the users and groups that it names are looked up.
void Engine::reload() {
  if (config_.path.empty()) {
    log_.message(Level::kInfo, "reload",
                 "there is no configuration file to read again; built-in settings stay", {});
    return;
  }
  reload_again_ = reloading_;
  if (reloading_) return;
  reloading_ = true;
  reload_since_ns_ = clock_ns();
  notify_send("RELOADING=1");
  slow_.run([this, path = config_.path, number = ++reload_number_]() -> Loop::Handler {
    auto fresh = std::make_shared<Reloaded>();
    fresh->result = config::config_read(path);
    std::string error;
    if (fresh->result.ok() && !exporter_uid_find(*fresh->result, &fresh->exporter, &error))
      fresh->result = {std::vector<config::Error>{{path, 0, 0, error}}};
    if (fresh->result.ok()) fresh->profiles.emplace(*fresh->result);
    return [this, fresh, number] {
      if (reloading_ && number == reload_number_) reloaded(*fresh);
    };
  });
}

/// Called with every heartbeat. A disk or a directory service that does not answer must not keep
/// the broker from the next reload, nor systemd in `reloading`.
void Engine::reload_over() {
  if (!reloading_ || clock_ns() - reload_since_ns_ < reload_patience_ns_) return;
  reloading_ = false;
  ++counters_.reloads_failed;
  log_.message(Level::kError, "reload_failed",
               config_.path + " was not read, or its users and groups were not looked up, within " +
                   std::to_string(reload_patience_ns_ / 1'000'000'000) +
                   " s; the settings stay as they are; see that its disk and the directory service "
                   "(getent passwd) answer, and reload again",
               {});
  notify_send("READY=1");
  if (reload_again_) reload();
}

void Engine::reloaded(Reloaded& fresh) {
  reloading_ = false;
  if (fresh.result.ok()) {
    ++counters_.reloads_ok;
    config_ = *fresh.result;
    exporter_uid_ = fresh.exporter;
    accounts_.outdate();
    profiles_ = std::move(*fresh.profiles);
    log_.level_set(config_.log_level);
    log_.line(Level::kInfo, "reloaded", {{"config", config_.path}});
    feed(core::PolicyChanged{policy_make(config_, profiles_, capacity_min())});
    limits_renew();
  } else {
    ++counters_.reloads_failed;
    for (const config::Error& error : fresh.result.errors()) {
      log_.message(Level::kError, "reload_failed", error.text(), {});
    }
  }
  notify_send("READY=1");
  std::vector<ConnectionId> waiting;
  for (const auto& [connection, question] : questions_) waiting.push_back(connection);
  for (const ConnectionId connection : waiting) who_start(connection);
  if (reload_again_) reload();
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
    change.sm_default = asked.sm_percent == 0;
    change.sm_weight = asked.sm_weight;
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
