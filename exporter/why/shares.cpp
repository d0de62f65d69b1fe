#include "exporter/why/shares.h"

#include <algorithm>

namespace sluice::exporter {

void ShareWatch::look(const Snapshot& snapshot) {
  for (auto& [id, job] : jobs_) job.takes_part = false;
  for (const auto& row : snapshot.tenants) {
    if (row.tenant == 0) continue;
    jobs_[row.tenant] = {field_text(row.name, sizeof row.name),
                         field_text(row.user, sizeof row.user),
                         row.state != protocol::TenantState::kSuspended, row.sm_mode};
  }
  std::map<std::string, std::uint32_t> guaranteed;
  for (const auto& gpu : snapshot.gpus) guaranteed[uuid_text(gpu.uuid)] = gpu.sm_guaranteed;
  for (const auto& row : snapshot.tenant_gpus) {
    Part& part = parts_[{uuid_text(row.gpu), row.tenant}];
    if (part.since_ns == 0) {
      part.first = row;
      part.since_ns = snapshot.header.taken_ns;
    }
    part.last = row;
    part.until_ns = snapshot.header.taken_ns;
    if (const auto sum = guaranteed.find(uuid_text(row.gpu)); sum != guaranteed.end())
      part.guaranteed = sum->second;
  }
}

WhyShares ShareWatch::shares(protocol::TenantId tenant, const std::string& gpu) const {
  WhyShares out;
  const auto own = parts_.find({gpu, tenant});
  if (own == parts_.end()) return out;
  out.kind = own->second.last.sm_kind;
  out.percent = own->second.last.sm_percent;
  if (const auto job = jobs_.find(tenant); job != jobs_.end()) out.mode = job->second.mode;
  out.guaranteed = own->second.guaranteed;
  out.watched_ns = own->second.until_ns - own->second.since_ns;
  for (const auto& [key, part] : parts_) {
    if (key.first != gpu) continue;
    const auto job = jobs_.find(key.second);
    if (job == jobs_.end()) continue;
    if (job->second.takes_part && part.last.sm_kind == protocol::SmKind::kWeight)
      out.weights += part.last.sm_percent;
    const std::uint64_t before_ns = part.first.lease_held_ns;
    const std::uint64_t held_ns =
        part.last.lease_held_ns - std::min(before_ns, part.last.lease_held_ns);
    if (key.second == tenant)
      out.own_ns = held_ns;
    else if (held_ns != 0)
      out.others.push_back({job->second.name, key.second, job->second.user, held_ns});
  }
  std::ranges::stable_sort(out.others, [](const auto& a, const auto& b) { return a.ns > b.ns; });
  return out;
}

}  // namespace sluice::exporter
