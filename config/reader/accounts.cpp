// Users and groups that a configuration names, looked up on this machine. A mistyped name gives its
// rights to nobody, and nothing else would say so.
#include <grp.h>
#include <pwd.h>

#include "config/reader/keys.h"

namespace sluice::config {
namespace {

/// False only where the databases say that there is none: one that does not answer is no answer.
bool user_known(const std::string& name) {
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(16384);
  const int error = getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  return found != nullptr || error != 0;
}

bool group_known(const std::string& name) {
  group entry{};
  group* found = nullptr;
  std::vector<char> buffer(1 << 20);  // a group's members are in it
  const int error = getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  return found != nullptr || error != 0;
}

}  // namespace

std::vector<Error> accounts_unknown(const std::vector<Origin>& origins, const std::string& path) {
  std::vector<Error> out;
  const auto look = [&](const Place& place, bool is_user) {
    if (is_user ? user_known(place.text) : group_known(place.text)) return;
    out.push_back({path, place.line, place.column,
                   std::string("there is no ") + (is_user ? "user" : "group") + " '" +
                       text_shown(place.text) +
                       "' on this machine, so this means nothing; correct the name, or make the "
                       "account and reload"});
  };
  for (const Origin& origin : origins) {
    const bool profile = origin.table.starts_with("profile.");
    const bool users = (profile && origin.key == "users") ||
                       (origin.table == "bypass" && origin.key == "exempt_users");
    if (users || (profile && origin.key == "groups"))
      for (const Place& item : origin.items) look(item, users);
    if (origin.table == "exporter" && origin.key == "user" && !origin.value.text.empty())
      look(origin.value, true);
  }
  return out;
}

}  // namespace sluice::config
