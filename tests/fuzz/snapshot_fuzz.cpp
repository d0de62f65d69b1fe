// Both readers of snapshots, the command's and the exporter's, and what `sluice status` makes of
// one, under arbitrary bytes.
//
// The first byte chooses: even = the bytes as they are; odd = with the counts of the header put
// right for the size, so that the records are reached. Holds for every input: reading ends,
// whatever the exporter believes the command believes too, and each shows it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <variant>

#include "broker/cli/status.h"
#include "exporter/snapshot.h"
#include "tests/fuzz/target.h"

namespace {

using namespace sluice;
using fuzz::require;

// As many records of each kind as the header asks for and there are bytes; the rest is cut off.
void counts_mend(std::string& bytes) {
  protocol::SnapshotHeader header;
  if (bytes.size() < sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.magic = protocol::kSnapshotMagic;
  header.version = protocol::kVersion;
  std::size_t left = bytes.size() - sizeof header;
  const auto take = [&](std::uint32_t& count, std::size_t record) {
    count = static_cast<std::uint32_t>(std::min<std::size_t>(count % 8, left / record));
    left -= count * record;
  };
  take(header.gpu_count, sizeof(protocol::SnapshotGpu));
  take(header.tenant_count, sizeof(protocol::SnapshotTenant));
  take(header.tenant_gpu_count, sizeof(protocol::SnapshotTenantGpu));
  take(header.process_count, sizeof(protocol::SnapshotProcess));
  std::memcpy(bytes.data(), &header, sizeof header);
  bytes.resize(bytes.size() - left);
}

}  // namespace

FUZZ_TARGET(snapshot) {
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) counts_mend(bytes);
  const auto ours = cli::snapshot_read(bytes);
  const auto theirs =
      exporter::snapshot_parse(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  if (const auto* parsed = std::get_if<exporter::Snapshot>(&theirs)) {
    require(ours.has_value() && ours->tenants.size() == parsed->tenants.size());
    for (const auto& tenant : parsed->tenants)
      require(exporter::field_text(tenant.name, sizeof tenant.name).size() <= sizeof tenant.name);
  }
  if (!ours) return 0;
  require(cli::status_table(*ours).find('\n') != std::string::npos);
  const std::string json = cli::status_json(*ours, "/s");
  require(!json.empty() && json.find('\0') == std::string::npos);
  return 0;
}
