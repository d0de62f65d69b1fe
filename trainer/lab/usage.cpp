#include "trainer/lab/usage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "broker/protocol/question.h"
#include "broker/protocol/snapshot.h"

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
  out.gpu_count = header.gpu_count;
  out.taken_ns = static_cast<std::int64_t>(header.taken_ns);
  std::vector<std::string> gpus;
  const unsigned char* at = data + sizeof header;
  for (std::uint32_t i = 0; i < header.gpu_count; ++i, at += sizeof(SnapshotGpu)) {
    SnapshotGpu gpu;
    std::memcpy(&gpu, at, sizeof gpu);
    gpus.push_back(uuid_hex(gpu.uuid));
  }
  for (std::uint32_t i = 0; i < header.tenant_count; ++i, at += sizeof(SnapshotTenant)) {
    SnapshotTenant tenant;
    std::memcpy(&tenant, at, sizeof tenant);
    Usage::Tenant& one = out.tenants[tenant.tenant];
    one.name = std::string(tenant.name, strnlen(tenant.name, sizeof tenant.name));
    one.gpus.resize(out.gpu_count);
  }
  for (std::uint32_t i = 0; i < header.tenant_gpu_count; ++i, at += sizeof(SnapshotTenantGpu)) {
    SnapshotTenantGpu pair;
    std::memcpy(&pair, at, sizeof pair);
    const auto tenant = out.tenants.find(pair.tenant);
    if (tenant == out.tenants.end()) continue;
    for (std::size_t g = 0; g < gpus.size(); ++g) {
      if (gpus[g] != uuid_hex(pair.gpu)) continue;
      tenant->second.gpus[g] = {static_cast<double>(pair.busy_ns) * 1e-9,
                                static_cast<double>(pair.lease_held_ns) * 1e-9,
                                static_cast<double>(pair.gate_wait_ns) * 1e-9};
    }
  }
  return out;
}

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

std::string usage_format(const Usage& usage) {
  nlohmann::json tenants = nlohmann::json::array();
  for (const auto& [id, tenant] : usage.tenants) {
    nlohmann::json gpus = nlohmann::json::array();
    for (const TenantUse& use : tenant.gpus) {
      gpus.push_back({{"busy_ns", nanoseconds(use.busy_s)},
                      {"held_ns", nanoseconds(use.held_s)},
                      {"waited_ns", nanoseconds(use.waited_s)}});
    }
    tenants.push_back({{"id", id}, {"name", tenant.name}, {"gpus", std::move(gpus)}});
  }
  return nlohmann::json{{"t_ns", usage.taken_ns}, {"tenants", std::move(tenants)}}.dump();
}

void UsageMeter::look(const std::optional<Usage>& now) {
  if (!now) return;
  if (!begin_) begin_ = now;
  for (const auto& [id, tenant] : now->tenants) last_[id] = tenant;
}

TenantUse UsageMeter::use(const std::string& name, std::size_t gpu) const {
  TenantUse out;
  for (const auto& [id, tenant] : last_) {
    if (tenant.name != name || gpu >= tenant.gpus.size()) continue;
    TenantUse before;
    const auto earlier = begin_->tenants.find(id);
    if (earlier != begin_->tenants.end()) before = earlier->second.gpus[gpu];
    out.busy_s += tenant.gpus[gpu].busy_s - before.busy_s;
    out.held_s += tenant.gpus[gpu].held_s - before.held_s;
    out.waited_s += tenant.gpus[gpu].waited_s - before.waited_s;
  }
  return out;
}

std::optional<Usage> usage_read(const std::string& socket) {
  if (socket.empty()) return std::nullopt;
  long owner = 0;
  const int fd = broker_connect(socket.c_str(), -1, &owner);
  if (fd < 0) return std::nullopt;
  SnapshotRequest request;
  message_init(request, MessageType::kSnapshotRequest, 1);
  Envelope reply;
  std::optional<Usage> out;
  const bool sent = question_send(fd, &request, sizeof request, false) == 0;
  if (sent && question_answer(fd, &reply, 5000) == 1) {
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
