// What a user may have: the configuration's profiles matched against the kernel's word on who asks,
// and the core's policy filled from the configuration. Names of users and groups are looked up
// once, when the configuration is read.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "broker/core/core.h"
#include "broker/daemon/identity.h"
#include "config/reader/config.h"

namespace sluice::daemon {

struct Profile {
  std::string name;
  std::set<uid_t> uids;
  std::set<gid_t> gids;
  std::vector<std::string> cgroups;
  bool everybody = false;     // names nobody
  std::vector<bool> classes;  // by TenantClass
  /// Of a job that names none: batch where it is allowed, else the first that the profile lists.
  protocol::TenantClass class_default = protocol::TenantClass::kBatch;
  std::uint64_t memory_max_bytes = 0;  // 0 = no limit
  std::uint32_t sm_percent_max = 100;
  std::uint32_t tenants_max = 64;
  core::GroupPolicy together;  // what its users may have at a time: the core's affair
  std::optional<bool> swap;    // unset = as the configuration says for all
};

/// What one job of the profile may have on each of so many GPUs at most.
std::uint64_t memory_most(const Profile& profile, std::uint64_t gpu_count);

/// Who asks, by the kernel's and the account databases' word.
struct Who {
  uid_t uid = 0;
  std::vector<gid_t> groups;
  std::string cgroup;  // empty = not looked up
};

class Profiles {
 public:
  explicit Profiles(const config::Config& config);
  /// The first profile that names the user, one of the groups, the cgroup, or everybody; a built-in
  /// one without limits otherwise.
  const Profile& find(const Who& who) const;
  /// The profile that was asked for by name if this user may have it (root may have any); null
  /// otherwise.
  const Profile* find_named(const std::string& name, const Who& who) const;
  /// Does any of them name groups, or cgroups? What none names need not be looked up.
  bool by_group() const;
  bool by_cgroup() const;
  /// The profile of this name, or null: for a tenant that has it already. Cut names (kNameBytes)
  /// are found too.
  const Profile* named(const std::string& name) const;
  std::uint32_t tenants_max() const;
  const std::vector<Profile>& list() const { return list_; }

 private:
  std::vector<Profile> list_;
  Profile fallback_;
};

/// The account of [exporter] user; nothing where none is named, or the machine has none of that
/// name.
std::optional<uid_t> exporter_uid_find(const config::Config& config);

const char* class_name(protocol::TenantClass tenant_class);
const char* sm_mode_name(protocol::SmMode mode);
const char* sm_kind_name(protocol::SmKind kind);

/// Whether a new tenant's memory may be moved; nothing when the profile forbids what was asked for.
/// Whole GPUs are only when they ask: training shares memory between its processes.
std::optional<bool> swap_choose(const config::Config& config, const Profile& profile,
                                protocol::TenantClass tenant_class, bool asked);

/// The settings of the core. A class without a memory default gets a quarter of the smallest GPU
/// (`capacity_min`): four equal tenants fit, and nobody has to know the machine to run a first
/// program.
core::Policy policy_make(const config::Config& config, const Profiles& profiles,
                         std::uint64_t capacity_min);

}  // namespace sluice::daemon
