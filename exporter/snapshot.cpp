// The checks of a snapshot. The broker is trusted to be the broker, not to be free of bugs: nothing
// here may crash or loop for long, whatever the bytes are.
#include "exporter/snapshot.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace sluice::exporter {
namespace {

using protocol::SnapshotEnded;
using protocol::SnapshotGpu;
using protocol::SnapshotHeader;
using protocol::SnapshotProcess;
using protocol::SnapshotTenant;
using protocol::SnapshotTenantGpu;

SnapshotError malformed(std::string why) {
  return {SnapshotError::Kind::kMalformed, "the broker's snapshot is malformed: " + std::move(why)};
}

bool uuid_less(const protocol::GpuUuid& a, const protocol::GpuUuid& b) {
  return memcmp(a.bytes, b.bytes, sizeof a.bytes) < 0;
}

template <class Record>
void records_copy(std::vector<Record>& out, std::uint32_t count, const unsigned char*& from) {
  out.resize(count);
  if (count == 0) return;
  memcpy(out.data(), from, count * sizeof(Record));
  from += count * sizeof(Record);
}

const char* counts_check(const SnapshotHeader& header) {
  if (header.gpu_count > kGpusMax) return "too many GPUs";
  if (header.tenant_count > kTenantsMax) return "too many tenants";
  if (header.tenant_gpu_count > header.tenant_count * protocol::kTenantGpusMax) {
    return "more vGPUs than its tenants may have";
  }
  if (header.process_count > kProcessesMax) return "too many processes";
  if (header.ended_count > protocol::kEndedMax) return "too many ended jobs";
  return nullptr;
}

// Words out of range would be labels nobody knows.
const char* tenant_check(const SnapshotTenant& tenant) {
  if (tenant.state > protocol::TenantState::kSuspended) return "an unknown tenant state";
  const bool queued = tenant.state == protocol::TenantState::kQueued;  // gets its number later
  if (tenant.tenant == 0 && !queued) return "a tenant without a number";
  if (tenant.tenant_class > protocol::TenantClass::kExclusive) return "an unknown class";
  if (tenant.reason > protocol::QueueReason::kShare) return "an unknown queue reason";
  if (tenant.stays > protocol::StayReason::kLost) return "an unknown reason to stay";
  return nullptr;
}

bool gpu_known(const std::vector<SnapshotGpu>& gpus, const protocol::GpuUuid& uuid) {
  return std::any_of(gpus.begin(), gpus.end(),
                     [&](const SnapshotGpu& gpu) { return gpu.uuid == uuid; });
}

// Twice the same thing would be twice the same series, which no scraper accepts.
const char* references_check(Snapshot& s) {
  std::sort(s.gpus.begin(), s.gpus.end(),
            [](const auto& a, const auto& b) { return uuid_less(a.uuid, b.uuid); });
  for (std::size_t i = 1; i < s.gpus.size(); ++i) {
    if (s.gpus[i].uuid == s.gpus[i - 1].uuid) return "a GPU twice";
  }
  const auto by_tenant = [](const auto& a, const auto& b) { return a.tenant < b.tenant; };
  std::sort(s.tenants.begin(), s.tenants.end(), by_tenant);
  for (std::size_t i = 1; i < s.tenants.size(); ++i) {
    const bool numbered = s.tenants[i].tenant != 0;
    if (numbered && s.tenants[i].tenant == s.tenants[i - 1].tenant) return "a tenant twice";
  }
  const auto tenant_known = [&](const auto& record) {
    const auto at = std::lower_bound(
        s.tenants.begin(), s.tenants.end(), record.tenant,
        [](const SnapshotTenant& a, protocol::TenantId wanted) { return a.tenant < wanted; });
    return record.tenant != 0 && at != s.tenants.end() && at->tenant == record.tenant;
  };
  std::sort(s.tenant_gpus.begin(), s.tenant_gpus.end(), [](const auto& a, const auto& b) {
    return a.tenant != b.tenant ? a.tenant < b.tenant : uuid_less(a.gpu, b.gpu);
  });
  for (std::size_t i = 0; i < s.tenant_gpus.size(); ++i) {
    const SnapshotTenantGpu& pair = s.tenant_gpus[i];
    if (!tenant_known(pair)) return "a vGPU of an unknown tenant";
    if (!gpu_known(s.gpus, pair.gpu)) return "a vGPU on an unknown GPU";
    if (pair.sm_kind > protocol::SmKind::kGuaranteed) return "an unknown kind of share";
    if (i > 0 && pair.tenant == s.tenant_gpus[i - 1].tenant &&
        pair.gpu == s.tenant_gpus[i - 1].gpu) {
      return "a vGPU twice";
    }
  }
  for (const SnapshotProcess& process : s.processes) {
    if (!tenant_known(process)) return "a process of an unknown tenant";
  }
  return nullptr;
}

/// Length of the UTF-8 sequence at `at`, or 0 if there is none (overlong forms, surrogates and
/// beyond U+10FFFF included).
std::size_t utf8_length(const unsigned char* at, std::size_t left) {
  if (at[0] < 0x80) return 1;
  const std::size_t length = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : 2;
  if (at[0] < 0xC2 || at[0] > 0xF4 || length > left) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at[i] & 0xC0) != 0x80) return 0;
  }
  const bool bad = (at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xED && at[1] > 0x9F) ||
                   (at[0] == 0xF0 && at[1] < 0x90) || (at[0] == 0xF4 && at[1] > 0x8F);
  return bad ? 0 : length;
}

}  // namespace

const char* kind_name(SnapshotError::Kind kind) {
  constexpr std::array<const char*, 3> kNames{"unreachable", "refused", "malformed"};
  return kNames[static_cast<std::size_t>(kind)];
}

SnapshotResult snapshot_parse(const unsigned char* bytes, std::size_t size) {
  Snapshot out;
  if (size < sizeof out.header) return malformed("shorter than its header");
  memcpy(&out.header, bytes, sizeof out.header);
  if (out.header.magic != protocol::kSnapshotMagic) return malformed("another magic number");
  if (out.header.version != protocol::kVersion) {
    return SnapshotError{SnapshotError::Kind::kRefused, "the broker speaks protocol version " +
                                                            std::to_string(out.header.version) +
                                                            " and this exporter version " +
                                                            std::to_string(protocol::kVersion) +
                                                            "; install both from the same release"};
  }
  if (const char* why = counts_check(out.header)) return malformed(why);
  const std::size_t wanted = sizeof out.header + out.header.gpu_count * sizeof(SnapshotGpu) +
                             out.header.tenant_count * sizeof(SnapshotTenant) +
                             out.header.tenant_gpu_count * sizeof(SnapshotTenantGpu) +
                             out.header.process_count * sizeof(SnapshotProcess) +
                             out.header.ended_count * sizeof(SnapshotEnded);
  if (size != wanted) {
    return malformed(std::to_string(size) + " bytes where its counts need " +
                     std::to_string(wanted));
  }
  const unsigned char* from = bytes + sizeof out.header;
  records_copy(out.gpus, out.header.gpu_count, from);
  records_copy(out.tenants, out.header.tenant_count, from);
  records_copy(out.tenant_gpus, out.header.tenant_gpu_count, from);
  records_copy(out.processes, out.header.process_count, from);
  records_copy(out.ended, out.header.ended_count, from);
  for (const SnapshotTenant& tenant : out.tenants) {
    if (const char* why = tenant_check(tenant)) return malformed(why);
  }
  if (const char* why = references_check(out)) return malformed(why);
  return out;
}

SnapshotResult snapshot_load(int fd, std::uint64_t size) {
  constexpr std::uint64_t kBytesMax = 64ULL << 20;
  if (size > kBytesMax) return malformed("larger than 64 MiB");
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return malformed("not a file in memory");
  if (static_cast<std::uint64_t>(status.st_size) < size) return malformed("shorter than announced");
  std::vector<unsigned char> bytes(size);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return malformed("cut short while it was read");
    done += static_cast<std::size_t>(count);
  }
  return snapshot_parse(bytes.data(), bytes.size());
}

std::string field_text(const char* field, std::size_t size) {
  const std::size_t length = strnlen(field, size);
  const auto* at = reinterpret_cast<const unsigned char*>(field);
  std::string out;
  for (std::size_t i = 0; i < length;) {
    const std::size_t sequence = utf8_length(at + i, length - i);
    if (sequence == 0) {
      out += '?';
      ++i;
    } else {
      out.append(field + i, sequence);
      i += sequence;
    }
  }
  return out;
}

std::string uuid_text(const protocol::GpuUuid& uuid) {
  std::string out = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += "0123456789abcdef"[uuid.bytes[i] >> 4];
    out += "0123456789abcdef"[uuid.bytes[i] & 15];
  }
  return out;
}

}  // namespace sluice::exporter
