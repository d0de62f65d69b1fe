#include "trainer/lab/usage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "broker/protocol/snapshot.h"
#include "broker/protocol/wire.h"

namespace sluice::lab {
namespace {

using namespace protocol;

std::string uuid_hex(const GpuUuid& uuid) {
  std::string out;
  for (const std::uint8_t byte : uuid.bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

std::optional<Usage> snapshot_parse(const unsigned char* data, std::size_t size) {
  SnapshotHeader header;
  if (size < sizeof header) return std::nullopt;
  std::memcpy(&header, data, sizeof header);
  const std::size_t needed = sizeof header + std::size_t{header.gpu_count} * sizeof(SnapshotGpu) +
                             std::size_t{header.tenant_count} * sizeof(SnapshotTenant) +
                             std::size_t{header.tenant_gpu_count} * sizeof(SnapshotTenantGpu);
  if (header.magic != kSnapshotMagic || header.version != kVersion || size < needed)
    return std::nullopt;
  Usage out;
  std::map<TenantId, std::string> names;
  const unsigned char* at = data + sizeof header;
  for (std::uint32_t i = 0; i < header.gpu_count; ++i, at += sizeof(SnapshotGpu)) {
    SnapshotGpu gpu;
    std::memcpy(&gpu, at, sizeof gpu);
    out.gpus.push_back(uuid_hex(gpu.uuid));
  }
  for (std::uint32_t i = 0; i < header.tenant_count; ++i, at += sizeof(SnapshotTenant)) {
    SnapshotTenant tenant;
    std::memcpy(&tenant, at, sizeof tenant);
    names[tenant.tenant] = std::string(tenant.name, strnlen(tenant.name, sizeof tenant.name));
  }
  for (std::uint32_t i = 0; i < header.tenant_gpu_count; ++i, at += sizeof(SnapshotTenantGpu)) {
    SnapshotTenantGpu pair;
    std::memcpy(&pair, at, sizeof pair);
    std::vector<double>& seconds = out.by_tenant[names[pair.tenant]];
    seconds.resize(out.gpus.size());
    for (std::size_t g = 0; g < out.gpus.size(); ++g) {
      if (out.gpus[g] == uuid_hex(pair.gpu)) seconds[g] += static_cast<double>(pair.busy_ns) * 1e-9;
    }
  }
  return out;
}

}  // namespace

double Usage::seconds(const std::string& tenant, std::size_t gpu) const {
  const auto found = by_tenant.find(tenant);
  return found == by_tenant.end() || gpu >= found->second.size() ? 0 : found->second[gpu];
}

std::optional<Usage> usage_read(const std::string& socket) {
  if (socket.empty()) return std::nullopt;
  const int fd = wire_connect(socket.c_str());
  if (fd < 0) return std::nullopt;
  SnapshotRequest request;
  message_init(request, MessageType::kSnapshotRequest, 1);
  Envelope reply;
  std::optional<Usage> out;
  const bool sent = wire_send(fd, &request, sizeof request, nullptr, 0, false) == 0;
  if (sent && wire_receive(fd, &reply, 5000) == 1) {
    if (reply.is<SnapshotReply>(MessageType::kSnapshotReply) && reply.fd_count == 1) {
      const std::size_t size = static_cast<std::size_t>(reply.as<SnapshotReply>().bytes);
      void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, reply.fds[0], 0);
      if (data != MAP_FAILED) {
        out = snapshot_parse(static_cast<const unsigned char*>(data), size);
        munmap(data, size);
      }
    }
    for (int i = 0; i < reply.fd_count; ++i) close(reply.fds[i]);
  }
  close(fd);
  return out;
}

}  // namespace sluice::lab
