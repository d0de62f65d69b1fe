// What a user's tenants, requests and processes cost the broker. Counted when somebody asks for
// more, not kept: what is counted cannot drift.
#include "broker/daemon/engine.h"

namespace sluice::daemon {
namespace {

constexpr std::uint32_t kDescriptorsPerTenant = 3;  // two pages, the founder's pidfd

}  // namespace

std::uint32_t Engine::descriptors_of(uid_t uid) const {
  std::size_t count = 0;
  for (const auto& [id, pending] : pending_)
    count += pending.uid == uid ? 1 + pending.followers.size() : 0;
  for (const auto& [id, tenant] : tenants_) {
    if (tenant->uid != uid) continue;
    count += kDescriptorsPerTenant + tenant->processes.size() + tenant->knocks.size();
  }
  return static_cast<std::uint32_t>(count);
}

}  // namespace sluice::daemon
