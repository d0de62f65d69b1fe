#include "exporter/beside.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

namespace sluice::exporter {

void whole_gpus_join(RecentFigures& recent, const Snapshot& snapshot,
                     const DeviceFigures& devices) {
  std::set<protocol::TenantId> owners;
  for (const protocol::SnapshotTenant& tenant : snapshot.tenants)
    if (tenant.tenant_class == protocol::TenantClass::kExclusive) owners.insert(tenant.tenant);
  for (const protocol::SnapshotGpu& gpu : snapshot.gpus) {
    if (gpu.exclusive == 0) continue;
    const std::string uuid = uuid_text(gpu.uuid);
    const auto look = devices.gpus.find(uuid);
    std::optional<double> busy;
    if (devices.up && look != devices.gpus.end()) busy = look->second.busy_ratio;
    recent.gpu_time.erase(uuid);
    if (busy) recent.gpu_time[uuid] = *busy;
    for (const protocol::SnapshotTenantGpu& vgpu : snapshot.tenant_gpus) {
      if (!(vgpu.gpu == gpu.uuid) || !owners.contains(vgpu.tenant)) continue;
      recent.shares.erase({vgpu.tenant, uuid});
      if (busy) recent.shares[{vgpu.tenant, uuid}] = {*busy, false};
    }
  }
}

Beside beside_of(const Snapshot& snapshot, const DeviceLook& look) {
  Beside out;
  if (!look.processes) return out;
  for (const DeviceProcess& process : *look.processes) {
    const bool registered = std::any_of(
        snapshot.processes.begin(), snapshot.processes.end(),
        [&process](const protocol::SnapshotProcess& row) { return row.pid == process.pid; });
    out.all_tell = out.all_tell && process.used_bytes.has_value();
    out.strangers += registered ? 0 : 1;
    (registered ? out.registered_bytes : out.strange_bytes) += process.used_bytes.value_or(0);
  }
  return out;
}

}  // namespace sluice::exporter
