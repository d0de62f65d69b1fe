// A snapshot as one sealed memfd: header, then the arrays in the order of the counts. Knows the
// layout of broker/protocol/snapshot.h and nothing of where the figures come from.
#pragma once

#include <string>
#include <vector>

#include "broker/devices/fd.h"
#include "broker/protocol/snapshot.h"

namespace sluice::daemon {

struct SnapshotParts {
  protocol::SnapshotHeader header{};  // counts, magic and version are filled in by snapshot_seal
  std::vector<protocol::SnapshotGpu> gpus;
  std::vector<protocol::SnapshotTenant> tenants;
  std::vector<protocol::SnapshotTenantGpu> tenant_gpus;
  std::vector<protocol::SnapshotProcess> processes;
  std::vector<protocol::SnapshotEnded> ended;
};

/// The descriptor, write-sealed, and its size; an empty one when the kernel gives no memory.
devices::Fd snapshot_seal(const SnapshotParts& parts, std::uint64_t* bytes);

/// A sealed memfd of these bytes; an empty one when the kernel gives no memory.
devices::Fd bytes_seal(const std::string& bytes);

/// Copies `text` into a fixed field, cut and terminated.
void text_store(char* field, std::size_t size, const std::string& text);

}  // namespace sluice::daemon
