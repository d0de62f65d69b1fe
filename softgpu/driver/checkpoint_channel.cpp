// The socket between a process that is checkpointed and whoever asks; see checkpoint.h.
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "softgpu/device/directory.h"
#include "softgpu/device/own_file.h"
#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/thread.h"

namespace softgpu::driver {
namespace {

/// How long a caller may take to say what it wants.
constexpr std::chrono::seconds kPatience{1};
/// Callers that have said nothing yet; with one more the oldest goes.
constexpr std::size_t kSilentMax = 64;

std::atomic<device::OwnFile*> listening{nullptr};

/// Closed with its scope.
struct Socket {
  explicit Socket(int opened) : fd(opened) {}
  ~Socket() {
    if (fd >= 0) close(fd);
  }
  Socket(Socket&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd, other.fd);
    return *this;
  }
  int fd;
};

/// A caller that may ask, and has not yet.
struct Caller {
  Socket connection;
  std::chrono::steady_clock::time_point until;
};

/// The name of `pid`, a pid of this namespace, among the users of these devices.
socklen_t address_make(int pid, sockaddr_un& address) {
  const device::ProcessName process = device::process_named(pid);
  const std::string name = "softgpu-checkpoint/" +
                           device::uuid_text(Process::get().segments().front()->uuid) + "/" +
                           std::to_string(process.space) + "/" + std::to_string(process.pid);
  address = {};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path) return 0;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // abstract: begins with a null byte
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool peer_may(int connection) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

bool peer_gone(int connection) {
  pollfd watched{connection, POLLRDHUP, 0};
  return poll(&watched, 1, 0) > 0 && (watched.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

CheckpointReply reply_make(const CheckpointRequest& request, int connection) {
  CheckpointReply reply;
  reply.result = CUDA_SUCCESS;
  switch (request.operation) {
    case CheckpointOperation::kState:
      reply.value = checkpoint_state();
      break;
    case CheckpointOperation::kThread:
      reply.value = static_cast<std::int32_t>(syscall(SYS_gettid));
      break;
    case CheckpointOperation::kLock:
      reply.result = checkpoint_lock(request.timeout_ms, [&] { return peer_gone(connection); });
      break;
    case CheckpointOperation::kCheckpoint:
      reply.result = checkpoint_take();
      break;
    case CheckpointOperation::kRestore:
      reply.result = checkpoint_restore(request);
      break;
    case CheckpointOperation::kUnlock:
      reply.result = checkpoint_unlock();
      break;
    default:
      reply.result = CUDA_ERROR_INVALID_VALUE;
  }
  return reply;
}

void reply_send(int connection, const CheckpointReply& reply) {
  (void)!send(connection, &reply, sizeof reply, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// What has been said, if anything has.
void connection_answer(int connection) {
  CheckpointRequest request;
  if (recv(connection, &request, sizeof request, MSG_DONTWAIT) != sizeof request) return;
  CheckpointReply reply;
  if (request.pair_count > device::kDevicesMax)
    reply.result = CUDA_ERROR_INVALID_VALUE;
  else
    reply = reply_make(request, connection);
  reply_send(connection, reply);
}

/// Another user is answered before it has said anything, so that its connections keep no place and
/// no descriptor.
void caller_admit(int connection, std::vector<Caller>& callers) {
  Socket opened(connection);
  if (!peer_may(connection)) {
    CheckpointReply refused;
    refused.result = CUDA_ERROR_NOT_PERMITTED;
    return reply_send(connection, refused);
  }
  if (callers.size() == kSilentMax) callers.erase(callers.begin());
  callers.push_back({std::move(opened), std::chrono::steady_clock::now() + kPatience});
}

/// Accepts the connections that wait, a bounded number of them. False: the program has closed the
/// socket.
bool callers_take(const device::OwnFile& server, std::vector<Caller>& callers) {
  for (std::size_t taken = 0; taken < kSilentMax; ++taken) {
    const int connection = accept4(server.number(), nullptr, nullptr, SOCK_CLOEXEC);
    if (connection >= 0)
      caller_admit(connection, callers);
    else if (errno == EAGAIN)
      return true;
    else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
      return std::this_thread::sleep_for(kPatience / 10), true;
    else if (errno != EINTR && errno != ECONNABORTED)
      return false;
  }
  return true;
}

/// Sleeps until a caller comes or says something, or for a while if one may have been silent for
/// too long.
void callers_wait(const device::OwnFile& server, const std::vector<Caller>& callers,
                  std::vector<pollfd>& watched) {
  watched.assign(1, {server.number(), POLLIN, 0});
  for (const Caller& caller : callers) watched.push_back({caller.connection.fd, POLLIN, 0});
  poll(watched.data(), watched.size(), callers.empty() ? -1 : 100);
}

/// One request at a time: an operation is not looked at from the side while it is under way.
void requests_answer(const device::OwnFile& server) {
  // Never destroyed: a forked child has them without this thread.
  static auto& callers = *new std::vector<Caller>;
  static auto& watched = *new std::vector<pollfd>;
  while (server.number() >= 0 && callers_take(server, callers)) {
    callers_wait(server, callers, watched);
    const auto now = std::chrono::steady_clock::now();
    for (std::size_t i = callers.size(); i-- > 0;) {
      const bool spoke = watched[i + 1].revents != 0;
      if (spoke) connection_answer(callers[i].connection.fd);
      if (spoke || now > callers[i].until)
        callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

}  // namespace

void checkpoint_serve() {
  sockaddr_un address;
  const socklen_t length = address_make(getpid(), address);
  const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  auto* const server = new device::OwnFile(made);
  if (length == 0 || bind(server->number(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(server->number(), SOMAXCONN) != 0) {
    delete server;
    return;
  }
  listening = server;
  if (thread_start("softgpu-restore", [server] { requests_answer(*server); }) != 0)
    delete listening.exchange(nullptr);
}

void checkpoint_forked() { delete listening.exchange(nullptr); }

CUresult checkpoint_ask(int pid, const CheckpointRequest& request, CheckpointReply& reply) {
  sockaddr_un address;
  const socklen_t length = pid > 0 ? address_make(pid, address) : 0;
  if (length == 0) return CUDA_ERROR_INVALID_VALUE;
  const Socket connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (connection.fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (connect(connection.fd, reinterpret_cast<sockaddr*>(&address), length) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  // The answer to another user is there before the request, which then has no reader.
  if (send(connection.fd, &request, sizeof request, MSG_NOSIGNAL) != sizeof request &&
      errno != EPIPE && errno != ECONNRESET)
    return CUDA_ERROR_INVALID_VALUE;
  ssize_t got = 0;
  do {
    got = recv(connection.fd, &reply, sizeof reply, 0);
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  return got == sizeof reply ? static_cast<CUresult>(reply.result) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace softgpu::driver
