// The broker's snapshot as plain vectors. The memfd is sealed by the broker, but its counts are
// checked against its size all the same.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "broker/cli/client.h"
#include "broker/protocol/snapshot.h"

namespace sluice::cli {

struct Snapshot {
  protocol::SnapshotHeader header{};
  std::vector<protocol::SnapshotGpu> gpus;
  std::vector<protocol::SnapshotTenant> tenants;
  std::vector<protocol::SnapshotTenantGpu> tenant_gpus;
  std::vector<protocol::SnapshotProcess> processes;
  std::vector<protocol::SnapshotEnded> ended;  // the latest first
};

/// From the bytes of a snapshot; nothing when they are not one.
std::optional<Snapshot> snapshot_read(const std::string& bytes);
/// The whole of a sealed memfd of `size` bytes.
[[nodiscard]] bool bytes_read(int fd, std::uint64_t size, std::string* out);
/// Asks the broker for one.
std::optional<Snapshot> snapshot_fetch(Client& client, std::string* error);

}  // namespace sluice::cli
