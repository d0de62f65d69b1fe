// A new configuration: read beside the loop, taken whole or not at all, and what it means for those
// who run.
#include <algorithm>
#include <memory>
#include <utility>

#include "broker/daemon/engine.h"
#include "broker/daemon/notify.h"
#include "broker/daemon/snapshot.h"

namespace sluice::daemon {

/// What a reading of the configuration gave.
struct Engine::Reloaded {
  config::Result<config::Config> result{std::vector<config::Error>{}};
  std::optional<uid_t> exporter;
  std::optional<Profiles> profiles;
  std::vector<config::Error> unknown;  // accounts
};

namespace {

constexpr char kNoFile[] =
    "the broker runs with built-in settings, so there is no configuration file to read again; "
    "start sluiced with --config FILE\n";

std::string wrong_text(const std::vector<config::Error>& errors) {
  std::string text;
  for (const config::Error& error : errors) text += "sluice: " + error.shown();
  return text;
}

std::string lines_text(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "  " + line + "\n";
  return text;
}

std::string unknown_text(const std::vector<config::Error>& unknown) {
  std::string text;
  for (const config::Error& error : unknown) text += error.text() + "\n";
  return text;
}

}  // namespace

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
  reload_askers_ = std::exchange(reload_next_askers_, {});
  notify_send("RELOADING=1");
  slow_.run([this, path = config_.path, number = ++reload_number_]() -> Loop::Handler {
    auto fresh = std::make_shared<Reloaded>();
    std::vector<config::Origin> origins;
    fresh->result = config::config_read_trusted(path, &origins);
    if (fresh->result.ok()) {
      fresh->unknown = config::accounts_unknown(origins, path);
      fresh->exporter = exporter_uid_find(*fresh->result);
      fresh->profiles.emplace(*fresh->result);
    }
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
  const std::string text =
      config_.path + " was not read, or its users and groups were not looked up, within " +
      std::to_string(reload_patience_ns_ / 1'000'000'000) +
      " s; the settings stay as they are; see that its disk and the directory service "
      "(getent passwd) answer, and reload again";
  log_.message(Level::kError, "reload_failed", text, {});
  reload_answer_all(false, "sluice: " + text + "\n");
  notify_send("READY=1");
  if (reload_again_) reload();
}

void Engine::reloaded(Reloaded& fresh) {
  reloading_ = false;
  if (fresh.result.ok()) {
    ++counters_.reloads_ok;
    const std::string text = changes_text(*fresh.result, false);
    config_ = *fresh.result;
    exporter_uid_ = fresh.exporter;
    accounts_.outdate();
    profiles_ = std::move(*fresh.profiles);
    log_.level_set(config_.log_level);
    log_.line(Level::kInfo, "reloaded", {{"config", config_.path}});
    for (const config::Error& error : fresh.unknown)
      log_.message(Level::kWarning, "config_account", error.text(), {});
    feed(core::PolicyChanged{policy_make(config_, profiles_, capacity_min())});
    limits_renew();
    reload_answer_all(true, text + unknown_text(fresh.unknown));
  } else {
    ++counters_.reloads_failed;
    for (const config::Error& error : fresh.result.errors()) {
      log_.message(Level::kError, "reload_failed", error.text(), {});
    }
    reload_answer_all(false, wrong_text(fresh.result.errors()) +
                                 "sluice: nothing was changed; correct " + config_.path +
                                 ", then reload again\n");
  }
  notify_send("READY=1");
  std::vector<ConnectionId> waiting;
  for (const auto& [connection, question] : questions_) waiting.push_back(connection);
  for (const ConnectionId connection : waiting) who_start(connection);
  if (reload_again_) reload();
}

/// What `after` has other than what is in force.
std::string Engine::changes_text(const config::Config& after, bool look) const {
  const auto now = config::config_changes(config_, after, false);
  const auto later = config::config_changes(config_started_, after, true);
  const std::string nothing =
      look ? "a reload would change nothing\n" : after.path + " was read again; nothing changed\n";
  std::string text = look ? "a reload would change:\n" : after.path + " was read again; changed:\n";
  text = now.empty() ? nothing : text + lines_text(now);
  if (!later.empty())
    text += "and, at the next start of sluiced (systemctl restart sluiced):\n" + lines_text(later);
  return text;
}

void Engine::reload_asked(const Asker& asker, const protocol::Reload& message) {
  if (asker.peer.uid != 0 && asker.peer.uid != geteuid()) {
    refuse(asker.connection, asker.request, protocol::RefusalCode::kNotAllowed,
           "only root, or the user that the broker runs as, may have it read its configuration");
    return;
  }
  if (config_.path.empty()) {
    reload_answer(asker.connection, asker.request, false, std::string("sluice: ") + kNoFile);
    return;
  }
  if ((message.flags & protocol::kReloadLook) != 0) {
    reload_look(asker);
    return;
  }
  reload_next_askers_.push_back({asker.connection, asker.request});
  reload();
}

/// Reads the file and says what a reload would change.
void Engine::reload_look(const Asker& asker) {
  reload_lookers_.push_back({asker.connection, asker.request});
  slow_.run([this, path = config_.path, connection = asker.connection,
             request = asker.request]() -> Loop::Handler {
    auto fresh =
        std::make_shared<config::Result<config::Config>>(config::config_read_trusted(path));
    return [this, fresh, connection, request] {
      if (std::erase_if(reload_lookers_, [connection](const ReloadAsker& one) {
            return one.connection == connection;
          }) == 0)
        return;
      reload_answer(connection, request, fresh->ok(),
                    fresh->ok() ? changes_text(**fresh, true) : wrong_text(fresh->errors()));
    };
  });
}

void Engine::reload_answer(ConnectionId connection, std::uint32_t request, bool good,
                           const std::string& text) {
  const devices::Fd fd = bytes_seal(text);
  if (!fd) {
    refuse(connection, request, protocol::RefusalCode::kNoRoom,
           "the broker has no memory or descriptors left for an answer; its log has it");
    return;
  }
  protocol::Reloaded reply;
  protocol::message_init(reply, protocol::MessageType::kReloaded, request);
  reply.good = good ? 1 : 0;
  reply.bytes = text.size();
  const int fds[] = {fd.get()};
  outbox_.send_bytes(connection, &reply, sizeof reply, fds, 1);
}

void Engine::reload_answer_all(bool good, const std::string& text) {
  for (const ReloadAsker& asker : std::exchange(reload_askers_, {}))
    reload_answer(asker.connection, asker.request, good, text);
}

bool Engine::reload_waits(ConnectionId connection) const {
  const auto waits = [connection](const ReloadAsker& one) { return one.connection == connection; };
  return std::ranges::any_of(reload_askers_, waits) ||
         std::ranges::any_of(reload_next_askers_, waits) ||
         std::ranges::any_of(reload_lookers_, waits);
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
    change.memory_max = std::min(change.memory_max, memory_most(*profile, tenant->gpus.size()));
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
