#include "tests/exporter/crafted.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "broker/protocol/wire.h"

namespace sluice::exporter::test {
namespace {

void must(bool good, const char* what) {
  if (good) return;
  perror(what);
  abort();
}

template <class Record>
void append(std::vector<unsigned char>& out, const std::vector<Record>& records) {
  const auto* from = reinterpret_cast<const unsigned char*>(records.data());
  out.insert(out.end(), from, from + records.size() * sizeof(Record));
}

template <std::size_t N>
void text_set(char (&field)[N], const char* text) {
  snprintf(field, N, "%s", text);
}

}  // namespace

protocol::GpuUuid uuid_of(unsigned char first) {
  protocol::GpuUuid uuid{};
  for (unsigned char i = 0; i < sizeof uuid.bytes; ++i)
    uuid.bytes[i] = static_cast<unsigned char>(first + i);
  return uuid;
}

Crafted::Crafted() {
  header.magic = protocol::kSnapshotMagic;
  header.version = protocol::kVersion;
}

std::vector<unsigned char> Crafted::bytes() const {
  protocol::SnapshotHeader counted = header;
  counted.gpu_count = static_cast<std::uint32_t>(gpus.size());
  counted.tenant_count = static_cast<std::uint32_t>(tenants.size());
  counted.tenant_gpu_count = static_cast<std::uint32_t>(tenant_gpus.size());
  counted.process_count = static_cast<std::uint32_t>(processes.size());
  std::vector<unsigned char> out;
  append(out, std::vector{counted});
  append(out, gpus);
  append(out, tenants);
  append(out, tenant_gpus);
  append(out, processes);
  return out;
}

protocol::SnapshotTenant& Crafted::tenant_add(protocol::TenantId id, const char* user,
                                              protocol::TenantClass tenant_class) {
  protocol::SnapshotTenant tenant{};
  tenant.tenant = id;
  tenant.state = protocol::TenantState::kRunning;
  tenant.tenant_class = tenant_class;
  tenant.uid = 1000;
  text_set(tenant.user, user);
  text_set(tenant.profile, "student");
  text_set(tenant.name, "secret-command");
  return tenants.emplace_back(tenant);
}

protocol::SnapshotTenantGpu& Crafted::vgpu_add(protocol::TenantId id, std::size_t gpu) {
  protocol::SnapshotTenantGpu vgpu{};
  vgpu.tenant = id;
  vgpu.gpu = gpus.at(gpu).uuid;
  vgpu.sm_percent = 50;
  return tenant_gpus.emplace_back(vgpu);
}

void Crafted::process_add(protocol::TenantId id, pid_t pid) {
  protocol::SnapshotProcess process{};
  process.tenant = id;
  process.pid = static_cast<std::uint32_t>(pid);
  text_set(process.command, "secret-command");
  processes.push_back(process);
}

Crafted example() {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  constexpr std::uint64_t kGiB = 1ULL << 30;
  Crafted out;
  out.header.started_ns = 100 * kSecond;
  out.header.taken_ns = 190 * kSecond + kSecond / 2;
  out.header.registrations = 7;
  out.header.admissions = 3;
  out.header.refusals = 2;
  out.header.refused_by_code[static_cast<std::size_t>(protocol::RefusalCode::kUserLimit)] = 2;
  out.header.protocol_errors = 1;
  out.header.protocol_errors_by_kind[1] = 1;
  out.header.reloads_ok = 4;
  out.header.reloads_failed = 5;
  out.header.journal_faults = 6;
  out.header.journal_lost = 2;
  out.header.slow_turns = 3;
  for (int i = 0; i < 2; ++i) {
    protocol::SnapshotGpu gpu{};
    gpu.uuid = uuid_of(static_cast<unsigned char>(0xA0 - 0x80 * i));  // the second sorts first
    text_set(gpu.name, i == 0 ? "Sluice Software GPU" : "NVIDIA H200");
    gpu.capacity_bytes = 4 * kGiB;
    gpu.context_bytes = 32ULL << 20;
    gpu.promised_bytes = 2 * kGiB;
    gpu.promised_max_bytes = 3 * kGiB;
    gpu.held_bytes = kGiB + 1;
    gpu.busy_ns = 12 * kSecond + 345'678'901;
    gpu.leases_granted = 9007199254740993;  // more than a double holds exactly
    gpu.leases_revoked = 40;
    gpu.lease_overrun_ns = 1'500'000;
    gpu.overruns = 1;
    gpu.exclusive = static_cast<std::uint8_t>(i);
    gpu.draining = static_cast<std::uint8_t>(1 - i);
    gpu.lost = static_cast<std::uint8_t>(i);
    gpu.sm_guaranteed = 50;
    gpu.software = static_cast<std::uint8_t>(1 - i);
    out.gpus.push_back(gpu);
  }
  auto& training = out.tenant_add(3, "anna", protocol::TenantClass::kBatch);
  training.steps = 120;
  training.samples = 7680;
  training.exposed_communication_ns = 250'000'000;
  training.straggler_score = 1.25;
  training.processes = 2;
  training.state = protocol::TenantState::kSuspended;
  for (std::size_t i = 0; i < protocol::kGateWaitCounts; ++i) training.gate_wait_counts[i] = 5 * i;
  training.refused_full = 3;
  training.stays = protocol::StayReason::kHostMemory;
  auto& inference = out.tenant_add(
      2, "", protocol::TenantClass::kInference);  // no name: the number stands for it
  inference.processes = 1;
  inference.unregistered = 1;
  inference.unregistered_bytes = 64'000'000;
  inference.runaway = 1;
  inference.unhooked = 4;
  text_set(inference.profile, "staff");
  auto& queued = out.tenant_add(0, "cleo", protocol::TenantClass::kExclusive);
  queued.state = protocol::TenantState::kQueued;
  queued.reason = protocol::QueueReason::kDrain;
  queued.asked_ns = 178 * kSecond;
  for (std::size_t gpu = 0; gpu < 2; ++gpu) {
    auto& vgpu = out.vgpu_add(3, gpu);
    vgpu.sm_kind = protocol::SmKind::kGuaranteed;
    vgpu.memory_max_bytes = kGiB;
    vgpu.memory_min_bytes = kGiB / 2;
    vgpu.held_bytes = 123456789;
    vgpu.peak_bytes = 223456789;
    vgpu.busy_ns = 6 * kSecond;
    vgpu.launches = 1000 + gpu;
    vgpu.graph_launches = 10;
    vgpu.gate_waits = 17;
    vgpu.gate_wait_ns = 20'000'000;
    vgpu.refused = 1;
    vgpu.lease_held_ns = 7 * kSecond;
    vgpu.movable_bytes = 100'000'000;
    vgpu.context_bytes = 20'000'000;
    vgpu.swapped_bytes = 90'000'000;
    vgpu.moved_out_bytes = 290'000'000;
    vgpu.moved_in_bytes = 200'000'000;
    vgpu.moves = 3;
    vgpu.moves_failed = 2;
    vgpu.moving_ns = 1'500'000'000;
    vgpu.suspending_ns = 250'000'000;
    vgpu.restoring_ns = 125'000'000;
  }
  auto& vgpu = out.vgpu_add(2, 0);
  vgpu.memory_max_bytes = 2 * kGiB;
  vgpu.sm_percent = 25;
  vgpu.held_bytes = 2 * kGiB + 1;
  vgpu.overruns = 1;
  vgpu.wants = 1;
  out.process_add(3, 4001);
  out.process_add(3, 4002);
  out.process_add(2, 4003);
  return out;
}

int memory_file(const std::vector<unsigned char>& bytes) {
  const int fd = memfd_create("snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  must(fd >= 0, "memfd_create");
  must(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "write");
  return fd;
}

Answer answer_snapshot(std::vector<unsigned char> bytes) {
  const std::uint64_t size = bytes.size();
  return answer_announced(std::move(bytes), size);
}

Answer answer_announced(std::vector<unsigned char> bytes, std::uint64_t announced) {
  return [bytes = std::move(bytes), announced](int fd) {
    const int file = memory_file(bytes);
    protocol::SnapshotReply reply;
    protocol::message_init(reply, protocol::MessageType::kSnapshotReply, 1);
    reply.bytes = announced;
    protocol::wire_send(fd, &reply, sizeof reply, &file, 1, true);
    close(file);
  };
}

Answer answer_refusal(const char* text) {
  return [text](int fd) {
    protocol::Refused refused;
    protocol::message_init(refused, protocol::MessageType::kRefused, 1);
    text_set(refused.text, text);
    protocol::wire_send(fd, &refused, sizeof refused, nullptr, 0, true);
  };
}

FakeBroker::FakeBroker(Answer answer) : answer_(std::move(answer)) {
  char folder[] = "/tmp/sluice-exporter-XXXXXX";
  must(mkdtemp(folder) != nullptr, "mkdtemp");
  folder_ = folder;
  path_ = folder_ + "/broker.sock";
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  text_set(address.sun_path, path_.c_str());
  must(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "bind");
  must(listen(listener_, 8) == 0, "listen");
  stop_ = eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { serve(); });
}

FakeBroker::~FakeBroker() {
  const std::uint64_t one = 1;
  must(write(stop_, &one, sizeof one) == sizeof one, "eventfd");
  thread_.join();
  close(listener_);
  close(stop_);
  unlink(path_.c_str());
  rmdir(folder_.c_str());
}

void FakeBroker::open_to_all() const {
  must(chmod(folder_.c_str(), 0755) == 0 && chmod(path_.c_str(), 0666) == 0, "chmod");
}

// The kernel notes at each listen() whose socket it is.
void FakeBroker::give_to(uid_t uid) const {
  must(seteuid(uid) == 0, "seteuid");
  const int rc = listen(listener_, 8);
  must(seteuid(0) == 0 && rc == 0, "listen");
}

void FakeBroker::serve() {
  for (;;) {
    pollfd waits[2] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(waits, 2, -1) < 0 || (waits[1].revents & POLLIN) != 0) return;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    protocol::Envelope request;
    const bool asked =
        protocol::wire_receive(fd, &request, 2000) == 1 &&
        request.is<protocol::SnapshotRequest>(protocol::MessageType::kSnapshotRequest);
    ++served_;  // before the answer: who has it finds it counted
    if (asked) answer_(fd);
    close(fd);
    ++closed_;
  }
}

}  // namespace sluice::exporter::test
