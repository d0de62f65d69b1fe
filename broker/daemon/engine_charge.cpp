// What a user's tenants, requests and processes cost the broker. Counted when somebody asks for
// more, not kept: what is counted cannot drift.
#include "broker/daemon/engine.h"

namespace sluice::daemon {
namespace {

constexpr std::uint32_t kDescriptorsPerTenant = 3;  // two pages, the founder's pidfd

}  // namespace

void Engine::descriptors_add(Descriptors* out) const {
  for (const auto& [id, pending] : pending_)
    (*out)[pending.uid] += static_cast<std::uint32_t>(1 + pending.followers.size());
  for (const auto& [id, tenant] : tenants_)
    (*out)[tenant->uid] += static_cast<std::uint32_t>(
        kDescriptorsPerTenant + tenant->processes.size() + tenant->knocks.size());
}

}  // namespace sluice::daemon
