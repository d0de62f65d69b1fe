// The journal's reader under arbitrary bytes, and the core under whatever it believes of them.
//
// The first byte chooses: a multiple of 3 = the bytes as they are; else with the checksums put
// right, so that what is behind them is reached, of records of today (2 left) or of versions 2 and
// 3. Holds for every input: reading ends, what stands behind the last whole record changes nothing,
// the state written anew is read as itself, and a core that is fed it keeps its invariants.
#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "broker/core/core.h"
#include "broker/daemon/journal_event.h"
#include "tests/fuzz/target.h"

namespace {

using namespace sluice;
using fuzz::require;

constexpr char kBoot[] = "11111111-2222-3333-4444-555555555555";

/// Puts right the checksum of every record of the form whose `head` bytes begin with a checksum
/// at `crc_at` and a length behind it.
void checksums_mend(std::string& bytes, std::size_t head, std::size_t crc_at) {
  const std::size_t summed_from = crc_at + 4;
  for (std::size_t at = 0; at + head <= bytes.size();) {
    std::uint32_t size = 0;
    std::memcpy(&size, &bytes[at + summed_from], sizeof size);
    if (size > bytes.size() - at - head) return;
    const auto crc = static_cast<std::uint32_t>(
        crc32_z(0, reinterpret_cast<const unsigned char*>(&bytes[at + summed_from]),
                size + head - summed_from));
    std::memcpy(&bytes[at + crc_at], &crc, sizeof crc);
    at += head + size;
  }
}

void core_restore(const daemon::JournalState& before) {
  core::Policy policy;
  auto state = core::state_create(policy);
  core::Nanos now = 1;
  const auto feed = [&](const core::Event& event) {
    core::step(*state, event, ++now);
    core::invariants_check(*state, now);
  };
  for (std::uint8_t gpu = 0; gpu < 3; ++gpu) {
    protocol::GpuUuid uuid{};
    uuid.bytes[15] = gpu;
    feed(core::GpuAdded{uuid, std::uint64_t{1} << 30, 1 << 25});
  }
  feed(core::TenantsNumbered{before.next_tenant});
  core::ProcessId next = 1;
  for (const auto& [id, known] : before.tenants) {
    feed(daemon::tenant_restored(known));
    for (std::size_t i = 0; i < known.processes.size(); ++i)
      feed(core::ProcessJoined{known.id, next++});
    feed(core::LimitsChanged{known.id, known.asked.sm_percent, known.asked.memory_max_bytes,
                             known.asked.memory_min_bytes});
  }
  for (core::ProcessId process = 1; process < next; ++process) feed(core::ProcessGone{process});
  for (const auto& [id, known] : before.tenants) feed(core::FounderGone{id});
  require(core::state_view(*state, now).tenants.empty());
}

}  // namespace

FUZZ_TARGET(journal) {
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 1) checksums_mend(bytes, 12, 0);
  if (data[0] % 3 == 2) checksums_mend(bytes, 24, 4);
  const daemon::JournalReading reading = daemon::journal_read(bytes, kBoot);
  require(reading.good_bytes <= bytes.size());
  if (reading.outcome != daemon::JournalOutcome::kRead) {
    require(reading.state.tenants.empty());
    return 0;
  }
  require(reading.fault.empty() == (reading.lost == 0));
  const auto part =
      daemon::journal_read(std::string_view(bytes).substr(0, reading.good_bytes), kBoot);
  require(part.lost <= reading.lost && part.state == reading.state);
  const auto again = daemon::journal_read(daemon::JournalWriter(kBoot).image(reading.state), kBoot);
  require(again.fault.empty() && again.state == reading.state);
  require(again.records == reading.state.record_count());
  core_restore(reading.state);
  return 0;
}
