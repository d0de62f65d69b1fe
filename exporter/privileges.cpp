// Directly by system calls: it is one structure and two numbers.
#include "exporter/privileges.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>

namespace sluice::exporter {
namespace {

struct CapabilitySets {
  std::uint64_t effective = 0, permitted = 0, inheritable = 0;
};

bool capabilities_get(CapabilitySets* out) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  if (syscall(SYS_capget, &header, data.data()) != 0) return false;
  out->effective = data[0].effective | std::uint64_t{data[1].effective} << 32;
  out->permitted = data[0].permitted | std::uint64_t{data[1].permitted} << 32;
  out->inheritable = data[0].inheritable | std::uint64_t{data[1].inheritable} << 32;
  return true;
}

bool capabilities_set(const CapabilitySets& sets) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  for (unsigned i = 0; i < data.size(); ++i) {
    data[i].effective = static_cast<std::uint32_t>(sets.effective >> (32 * i));
    data[i].permitted = static_cast<std::uint32_t>(sets.permitted >> (32 * i));
    data[i].inheritable = static_cast<std::uint32_t>(sets.inheritable >> (32 * i));
  }
  return syscall(SYS_capset, &header, data.data()) == 0;
}

/// What programs started from here could ever have. Needs CAP_SETPCAP; without it no_new_privs has
/// to do.
void bounding_drop(std::uint64_t keep) {
  for (int capability = 0; capability < 64; ++capability) {
    if ((keep >> capability & 1) == 0) prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  }
}

bool user_become(const std::string& name, std::string* error) {
  errno = 0;
  const passwd* user = getpwnam(name.c_str());
  if (user == nullptr) {
    *error = "there is no user '" + name + "'; name another with --user";
    return false;
  }
  const uid_t uid = user->pw_uid;
  const gid_t gid = user->pw_gid;
  if (uid == geteuid()) return true;
  if (setgroups(0, nullptr) != 0 || setresgid(gid, gid, gid) != 0 ||
      setresuid(uid, uid, uid) != 0) {
    *error = "cannot become user '" + name + "': " + strerror(errno) + "; only root can";
    return false;
  }
  return true;
}

}  // namespace

bool works_without_capabilities(const std::function<bool()>& works) {
  CapabilitySets sets;
  if (!capabilities_get(&sets)) return works();
  CapabilitySets none = sets;
  none.effective = 0;
  if (!capabilities_set(none)) return works();
  const bool good = works();
  return capabilities_set(sets) && good;
}

bool privileges_drop(const std::string& user, const std::vector<int>& keep, std::string* error) {
  CapabilitySets sets;
  std::uint64_t wanted = 0;
  for (const int capability : keep) wanted |= std::uint64_t{1} << capability;
  if (!capabilities_get(&sets)) {
    *error = std::string("cannot read the own capabilities: ") + strerror(errno);
    return false;
  }
  wanted &= sets.permitted;
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  bounding_drop(wanted);
  // What is permitted outlives the change of the user, and is given up right afterwards.
  if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 || (!user.empty() && !user_become(user, error)) ||
      !capabilities_set({wanted, wanted, 0}) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    if (error->empty())
      *error = std::string("cannot give up what it does not need: ") + strerror(errno);
    return false;
  }
  return true;
}

}  // namespace sluice::exporter
