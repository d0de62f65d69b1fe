#include "exporter/why/whole.h"

namespace sluice::exporter {
namespace {

constexpr int kAnswerWait_ms = 200;

}  // namespace

void WholeGpus::tenants_set(const Snapshot& snapshot, std::uint64_t now_ns) {
  for (auto& [key, entry] : entries_) entry.is_there = false;
  std::map<protocol::TenantId, std::string> names;
  for (const auto& row : snapshot.tenants)
    if (row.tenant != 0 && row.tenant_class == protocol::TenantClass::kExclusive)
      names[row.tenant] = field_text(row.name, sizeof row.name);
  for (const auto& row : snapshot.tenant_gpus) {
    const auto owner = names.find(row.tenant);
    if (owner == names.end()) continue;
    const std::string gpu = uuid_text(row.gpu);
    Entry& entry = entries_[{row.tenant, gpu}];
    if (entry.since_ns == 0) {
      entry.since_ns = now_ns;
      entry.row.tenant = row.tenant;
      entry.row.name = owner->second;
      entry.row.gpu = gpu;
    }
    entry.is_there = true;
  }
}

void WholeGpus::look(std::uint64_t now_ns) {
  if (entries_.empty()) return;
  if (!opened_) devices_ = Devices::open();
  opened_ = true;
  const DeviceFigures figures =
      devices_ != nullptr ? devices_->look(kAnswerWait_ms) : DeviceFigures{};
  for (auto& [key, entry] : entries_) {
    if (!entry.is_there) continue;
    entry.row.watched_ns = now_ns - entry.since_ns;
    const auto found = figures.gpus.find(key.second);
    if (!figures.up || found == figures.gpus.end() || !found->second.busy_ratio) continue;
    entry.row.busy_sum += *found->second.busy_ratio;
    ++entry.row.looks;
  }
}

std::vector<WhyWholeRow> WholeGpus::rows() const {
  std::vector<WhyWholeRow> out;
  for (const auto& [key, entry] : entries_) out.push_back(entry.row);
  return out;
}

}  // namespace sluice::exporter
