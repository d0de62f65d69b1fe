// See gang.h.
#include "trainer/job/gang.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "broker/protocol/ordinal.h"
#include "broker/protocol/question.h"
#include "broker/protocol/snapshot.h"
#include "broker/protocol/tenant_limits.h"
#include "trainer/base/failure.h"

namespace sluice::train {
namespace {

constexpr int kAnswerPatience_ms = 5000;  // for what the broker answers at once
constexpr int kLookGap_ms = 100;          // between looks at the wish to stop

std::string broker_socket() {
  const char* named = std::getenv(protocol::kSocketVariable);
  return named != nullptr && *named != '\0' ? named : protocol::kSystemSocket;
}

/// The broker's picture of itself, mapped.
class Snapshot {
 public:
  Snapshot(int fd, std::size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (memory_ == MAP_FAILED) throw errno_failure("mapping the broker's snapshot");
  }
  ~Snapshot() { munmap(memory_, bytes_); }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  bool is_whole() const {
    if (bytes_ < sizeof(protocol::SnapshotHeader)) return false;
    return header().magic == protocol::kSnapshotMagic && header().version == protocol::kVersion &&
           header().gpu_count <= 1024 && header().tenant_count <= 1 << 20 &&
           bytes_ >= sizeof(protocol::SnapshotHeader) +
                         header().gpu_count * sizeof(protocol::SnapshotGpu) +
                         header().tenant_count * sizeof(protocol::SnapshotTenant);
  }
  const protocol::SnapshotHeader& header() const {
    return *static_cast<const protocol::SnapshotHeader*>(memory_);
  }
  const protocol::SnapshotTenant* tenant(std::uint64_t id) const {
    const auto* gpus = reinterpret_cast<const protocol::SnapshotGpu*>(&header() + 1);
    const auto* tenants =
        reinterpret_cast<const protocol::SnapshotTenant*>(gpus + header().gpu_count);
    for (std::uint32_t i = 0; i < header().tenant_count; ++i) {
      if (tenants[i].tenant == id) return &tenants[i];
    }
    return nullptr;
  }

 private:
  void* memory_ = nullptr;
  const std::size_t bytes_;
};

std::unique_ptr<Snapshot> snapshot_take(int connection, const std::string& socket) {
  protocol::SnapshotRequest request;
  protocol::message_init(request, protocol::MessageType::kSnapshotRequest, 1);
  protocol::Envelope envelope;
  if (protocol::question_send(connection, &request, sizeof request, false) == 0 &&
      protocol::question_answer(connection, &envelope, kAnswerPatience_ms) == 1) {
    std::unique_ptr<Snapshot> taken;
    struct stat state {};
    if (envelope.is<protocol::SnapshotReply>(protocol::MessageType::kSnapshotReply) &&
        envelope.fd_count == 1 && fstat(envelope.fds[0], &state) == 0 && state.st_size > 0) {
      taken = std::make_unique<Snapshot>(envelope.fds[0], static_cast<std::size_t>(state.st_size));
    }
    for (int i = 0; i < envelope.fd_count; ++i) close(envelope.fds[i]);
    if (taken && taken->is_whole()) return taken;
  }
  throw Failure("the broker at " + socket +
                " does not tell what it has, or is of another version; is this trainer of the same "
                "installation?");
}

/// "GPU-01234567-89ab-...", as the driver takes it.
std::string gpu_text(const protocol::GpuUuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += text_format("%02x", uuid.bytes[i]);
  }
  return text;
}

}  // namespace

Gang::Gang(int gpu_count, StopSignal& stop, const std::function<void(const std::string&)>& say)
    : socket_(broker_socket()) {
  long owner = 0;
  fd_ = protocol::broker_connect(socket_.c_str(), kAnswerPatience_ms, &owner);
  if (owner != 0) {
    char text[protocol::kStrangerTextBytes];
    protocol::stranger_format(socket_.c_str(), owner, text);
    throw Failure(std::string("--exclusive: ") + text);
  }
  if (fd_ < 0) {
    throw Failure(text_format(
        "--exclusive: no broker at %s (%s), so nobody can give this job whole GPUs; start sluiced, "
        "name its socket in %s, or leave --exclusive out",
        socket_.c_str(), std::strerror(-fd_), protocol::kSocketVariable));
  }
  try {
    const char* member = std::getenv(protocol::kTenantVariable);
    std::uint64_t tenant = 0, key = 0;
    if (member != nullptr && protocol::tenant_parse(member, &tenant, &key)) {
      join(tenant);
    } else {
      const std::uint32_t all = gpu_count > 0 ? 0 : snapshot_take(fd_, socket_)->header().gpu_count;
      ask(gpu_count > 0 ? static_cast<std::uint32_t>(gpu_count)
                        : std::clamp<std::uint32_t>(all, 1, protocol::kTenantGpusMax),
          stop, say);
    }
  } catch (...) {
    close(fd_);
    throw;
  }
}

void Gang::join(std::uint64_t tenant) {
  const auto snapshot = snapshot_take(fd_, socket_);
  const protocol::SnapshotTenant* row = snapshot->tenant(tenant);
  if (row != nullptr && row->tenant_class == protocol::TenantClass::kExclusive) return;
  throw Failure(
      "--exclusive: this job runs in a vGPU that is not exclusive; start it by sluice run --class "
      "exclusive, or without sluice run");
}

void Gang::ask(std::uint32_t gpu_count, StopSignal& stop,
               const std::function<void(const std::string&)>& say) {
  if (gpu_count > protocol::kTenantGpusMax) {
    throw Failure(text_format("--exclusive: %u GPUs, and a job may have %u; give a smaller --nproc",
                              gpu_count, protocol::kTenantGpusMax));
  }
  protocol::Admit message;
  protocol::message_init(message, protocol::MessageType::kAdmit, 1);
  message.tenant_class = protocol::TenantClass::kExclusive;
  message.gpu_count = gpu_count;
  std::snprintf(message.name, sizeof message.name, "sluice-train");
  if (protocol::question_send(fd_, &message, sizeof message, false) != 0)
    throw Failure("--exclusive: the broker at " + socket_ + " closed the connection");
  char limits[protocol::kTenantLimitsTextBytes];
  for (std::uint32_t place = 0;;) {
    protocol::Envelope envelope;
    const int got = protocol::question_answer(fd_, &envelope, kLookGap_ms);
    if (stop.asked()) throw Failure("--exclusive: left the line for whole GPUs");
    if (got == -EAGAIN) continue;
    if (got != 1) throw Failure("--exclusive: the broker at " + socket_ + " went away");
    if (envelope.is<protocol::Queued>(protocol::MessageType::kQueued)) {
      const auto& queued = envelope.as<protocol::Queued>();
      if (queued.position != place) {
        say(text_format("waiting for %u whole GPU%s; %u%s in line (reason: %s)", gpu_count,
                        gpu_count == 1 ? "" : "s", queued.position,
                        protocol::ordinal_ending(queued.position),
                        protocol::queue_reason_name(queued.reason)));
      }
      place = queued.position;
    } else if (envelope.is<protocol::Refused>(protocol::MessageType::kRefused)) {
      const auto& refused = envelope.as<protocol::Refused>();
      throw Failure("--exclusive: the broker at " + socket_ + " refuses: " +
                    std::string(refused.text, strnlen(refused.text, sizeof refused.text)));
    } else if (envelope.is<protocol::Admitted>(protocol::MessageType::kAdmitted)) {
      const auto& admitted = envelope.as<protocol::Admitted>();
      tenant_ = admitted.tenant;
      key_ = admitted.key;
      protocol::tenant_limits_format(protocol::tenant_limits_of(admitted), limits);
      std::string visible;
      for (std::uint32_t i = 0; i < std::min(admitted.gpu_count, protocol::kTenantGpusMax); ++i)
        visible += (i == 0 ? "" : ",") + gpu_text(admitted.gpus[i]);
      setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
      break;
    }
  }
  char text[protocol::kTenantTextBytes];
  protocol::tenant_format(tenant_, key_, text);
  setenv(protocol::kTenantVariable, text, 1);
  setenv(protocol::kTenantLimitsVariable, limits, 1);
}

Gang::~Gang() {
  if (tenant_ != 0) {
    protocol::Release release;
    protocol::message_init(release, protocol::MessageType::kRelease, 1);
    release.tenant = tenant_;
    release.key = key_;
    protocol::Envelope answer;
    if (protocol::question_send(fd_, &release, sizeof release, false) == 0 &&
        protocol::question_answer(fd_, &answer, kAnswerPatience_ms) == 1) {
      for (int i = 0; i < answer.fd_count; ++i) close(answer.fds[i]);
    }
  }
  close(fd_);
}

}  // namespace sluice::train
