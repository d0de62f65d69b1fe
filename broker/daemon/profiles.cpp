// Matching of profiles; translation of the configuration's words into the core's.
#include "broker/daemon/profiles.h"

#include <grp.h>
#include <pwd.h>
#include <sys/sysinfo.h>

#include <algorithm>

namespace sluice::daemon {
namespace {

constexpr const char* kClassNames[] = {"inference", "debug", "batch", "exclusive"};
constexpr const char* kModeNames[] = {"best-effort", "equal", "fixed"};
constexpr std::uint64_t kDefaultShareOfGpu = 4;

protocol::TenantClass class_of(const std::string& name) {
  const auto found = std::ranges::find(kClassNames, name);
  return static_cast<protocol::TenantClass>(found - std::begin(kClassNames));
}

Profile profile_make(const config::ProfileSettings& settings) {
  Profile profile;
  profile.name = settings.name;
  profile.everybody = settings.users.empty() && settings.groups.empty() && settings.cgroups.empty();
  profile.cgroups = settings.cgroups;
  for (const std::string& user : settings.users) {
    if (const passwd* entry = getpwnam(user.c_str())) profile.uids.insert(entry->pw_uid);
  }
  for (const std::string& name : settings.groups) {
    if (const group* entry = getgrnam(name.c_str())) profile.gids.insert(entry->gr_gid);
  }
  for (const char* name : kClassNames) {
    const bool named =
        std::find(settings.classes.begin(), settings.classes.end(), name) != settings.classes.end();
    profile.classes.push_back(settings.classes.empty() || named);
  }
  if (!profile.classes[static_cast<std::size_t>(protocol::TenantClass::kBatch)])
    profile.class_default = class_of(settings.classes.front());
  profile.memory_max_bytes = settings.memory_max_bytes;
  profile.sm_percent_max = settings.sm_percent_max;
  profile.tenants_max = settings.tenants_max;
  profile.together.per_user = {settings.running_max, settings.user_memory_max_bytes};
  profile.together.all = {settings.all_running_max, settings.all_memory_max_bytes};
  profile.swap = settings.swap;
  return profile;
}

/// Is it that cgroup, or one below it?
bool cgroup_within(const std::string& cgroup, const std::string& above) {
  return cgroup.compare(0, above.size(), above) == 0 &&
         (cgroup.size() == above.size() || cgroup[above.size()] == '/');
}

bool fits(const Profile& profile, const Who& who) {
  if (profile.everybody || profile.uids.count(who.uid) != 0) return true;
  return std::ranges::any_of(who.groups, [&](gid_t gid) { return profile.gids.count(gid) != 0; }) ||
         std::ranges::any_of(profile.cgroups, [&](const std::string& above) {
           return cgroup_within(who.cgroup, above);
         });
}

protocol::SmMode mode_of(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kModeNames); ++i) {
    if (name == kModeNames[i]) return static_cast<protocol::SmMode>(i);
  }
  return protocol::SmMode::kBestEffort;
}

core::SmRule sm_of(const std::string& name) {
  return name == "guaranteed" ? core::SmRule::kGuaranteed
         : name == "weight"   ? core::SmRule::kWeight
                              : core::SmRule::kAsked;
}

/// What one user may have in host memory where nobody has said: half of the machine's. A machine
/// that does not tell its size gives nothing.
std::uint64_t host_bytes_default() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return 1;
  return std::uint64_t{info.totalram} * info.mem_unit / 2;
}

}  // namespace

std::uint64_t memory_most(const Profile& profile, std::uint64_t gpu_count) {
  std::uint64_t most = profile.memory_max_bytes != 0 ? profile.memory_max_bytes : UINT64_MAX;
  for (const core::SumLimits& sum : {profile.together.per_user, profile.together.all})
    if (sum.memory_max != 0)
      most = std::min<std::uint64_t>(most, sum.memory_max / std::max<std::uint64_t>(gpu_count, 1));
  return most;
}

Profiles::Profiles(const config::Config& config) {
  for (const config::ProfileSettings& settings : config.profiles)
    list_.push_back(profile_make(settings));
  fallback_.name = "default";
  fallback_.everybody = true;
  fallback_.classes.assign(std::size(kClassNames), true);
}

const Profile& Profiles::find(const Who& who) const {
  for (const Profile& profile : list_) {
    if (fits(profile, who)) return profile;
  }
  return fallback_;
}

bool Profiles::by_group() const {
  return std::ranges::any_of(list_, [](const Profile& p) { return !p.gids.empty(); });
}

bool Profiles::by_cgroup() const {
  return std::ranges::any_of(list_, [](const Profile& p) { return !p.cgroups.empty(); });
}

const Profile* Profiles::find_named(const std::string& name, const Who& who) const {
  for (const Profile& profile : list_) {
    if (profile.name == name) return who.uid == 0 || fits(profile, who) ? &profile : nullptr;
  }
  return name == fallback_.name ? &fallback_ : nullptr;
}

const Profile* Profiles::named(const std::string& name) const {
  const std::size_t kept = protocol::kNameBytes - 1;
  for (const Profile& profile : list_)
    if (profile.name.substr(0, kept) == name.substr(0, kept)) return &profile;
  return name == fallback_.name ? &fallback_ : nullptr;
}

std::uint32_t Profiles::tenants_max() const {
  std::uint32_t most = fallback_.tenants_max;
  for (const Profile& profile : list_) most = std::max(most, profile.tenants_max);
  return most;
}

std::optional<uid_t> exporter_uid_find(const config::Config& config) {
  if (config.exporter_user.empty()) return std::nullopt;
  const passwd* entry = getpwnam(config.exporter_user.c_str());
  return entry == nullptr ? std::nullopt : std::optional(entry->pw_uid);
}

const char* class_name(protocol::TenantClass tenant_class) {
  return kClassNames[static_cast<int>(tenant_class)];
}
const char* sm_mode_name(protocol::SmMode mode) { return kModeNames[static_cast<int>(mode)]; }
const char* sm_kind_name(protocol::SmKind kind) {
  return kind == protocol::SmKind::kGuaranteed ? "guaranteed" : "weight";
}

std::optional<bool> swap_choose(const config::Config& config, const Profile& profile,
                                protocol::TenantClass tenant_class, bool asked) {
  if (asked && profile.swap == false) return std::nullopt;
  if (asked || tenant_class == protocol::TenantClass::kExclusive) return asked;
  return profile.swap.value_or(config.swap == "on");
}

core::Policy policy_make(const config::Config& config, const Profiles& profiles,
                         std::uint64_t capacity_min) {
  core::Policy policy;
  for (std::size_t i = 0; i < policy.classes.size(); ++i) {
    const auto found = config.classes.find(kClassNames[i]);
    core::ClassPolicy& out = policy.classes[i];
    out.memory_max = capacity_min / kDefaultShareOfGpu;
    if (found == config.classes.end()) continue;
    out.window_ns = found->second.window_ns;
    out.sm_percent = found->second.sm_percent;
    out.sm_mode = mode_of(found->second.sm_mode);
    out.sm = sm_of(found->second.sm);
    out.placement = found->second.placement == "pack" ? core::PlacementRule::kPack
                                                      : core::PlacementRule::kSpread;
    if (found->second.memory_max_bytes != 0) out.memory_max = found->second.memory_max_bytes;
  }
  policy.order = core::order_named(config.policy).value_or(core::Order::kFair);
  policy.quantum_ns = config.quantum_ns;
  policy.drain_timeout_ns = config.drain_timeout_ns;
  policy.idle_grace_ns = config.idle_grace_ns;
  policy.inference_window_ns = config.inference_window_ns;
  policy.inference_burst_ns = config.inference_burst_ns;
  policy.oversell_memory = config.oversell;
  policy.runaway =
      config.runaway == "end" ? core::RunawayPolicy::kEnd : core::RunawayPolicy::kReport;
  policy.runaway_after_ns = config.runaway_after_ns;
  policy.swap = true;  // who may is decided here, by swap_choose
  policy.swap_quantum_ns = config.swap_quantum_ns;
  policy.swap_host_bytes_per_user =
      config.swap_host_max_bytes != 0 ? config.swap_host_max_bytes : host_bytes_default();
  policy.exclusive_room = config.exclusive == "move"      ? core::ExclusiveRoom::kMove
                          : config.exclusive == "suspend" ? core::ExclusiveRoom::kSuspend
                                                          : core::ExclusiveRoom::kWait;
  policy.rank_loss = config.rank_loss == "end" ? core::RankLoss::kEnd : core::RankLoss::kKeep;
  for (const Profile& profile : profiles.list()) policy.groups[profile.name] = profile.together;
  policy.tenants_per_user_max =
      profiles.tenants_max();  // each user's own limit is checked before the core is asked
  return policy;
}

}  // namespace sluice::daemon
