// What the broker said, copied out of its snapshot and checked: every count, size, reference and
// word is within what the protocol allows, so nobody after this needs to doubt it. Must not know
// what is made of it.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "broker/protocol/snapshot.h"

namespace sluice::exporter {

struct Snapshot {
  protocol::SnapshotHeader header;
  std::vector<protocol::SnapshotGpu> gpus;        // by UUID
  std::vector<protocol::SnapshotTenant> tenants;  // by tenant id; queued ones have 0
  std::vector<protocol::SnapshotTenantGpu> tenant_gpus;
  std::vector<protocol::SnapshotProcess> processes;
  std::vector<protocol::SnapshotEnded> ended;  // the latest first
};

/// Why there is no snapshot. The kind is a metric label; the text is for people.
struct SnapshotError {
  enum class Kind { kUnreachable, kRefused, kMalformed };
  Kind kind;
  std::string text;
};
const char* kind_name(SnapshotError::Kind kind);

using SnapshotResult = std::variant<Snapshot, SnapshotError>;

// Counts beyond these mean a broken or hostile broker; the protocol's own limits are lower.
inline constexpr std::uint32_t kGpusMax = 64;
inline constexpr std::uint32_t kTenantsMax = 16384;
inline constexpr std::uint32_t kProcessesMax = 262144;

/// Checks and copies the bytes of a snapshot.
SnapshotResult snapshot_parse(const unsigned char* bytes, std::size_t size);
/// Reads `size` bytes of a snapshot file and parses them. Copies with pread: whatever the file does
/// meanwhile, no mapping of it can fault.
SnapshotResult snapshot_load(int fd, std::uint64_t size);

/// Where snapshots come from.
class SnapshotSource {
 public:
  virtual ~SnapshotSource() = default;
  virtual SnapshotResult snapshot_take() = 0;
};

/// Asks the broker at `socket`: one connection per snapshot, so that a restarted broker needs no
/// attention.
class BrokerSource : public SnapshotSource {
 public:
  explicit BrokerSource(std::string socket, int timeout_ms = 2000)
      : socket_(std::move(socket)), timeout_ms_(timeout_ms) {}
  SnapshotResult snapshot_take() override;

 private:
  std::string socket_;
  int timeout_ms_;
};

/// Text of a fixed field, whether or not it ends with a NUL; bytes that are not UTF-8 become '?'.
std::string field_text(const char* field, std::size_t size);
std::string uuid_text(const protocol::GpuUuid& uuid);

}  // namespace sluice::exporter
