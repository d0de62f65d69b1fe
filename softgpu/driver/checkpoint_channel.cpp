// The socket between a process that is checkpointed and whoever asks; see checkpoint.h.
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "softgpu/device/descriptor.h"
#include "softgpu/device/directory.h"
#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/thread.h"

namespace softgpu::driver {
namespace {

std::atomic<int> listening{-1};

/// Closed with its scope.
struct Socket {
  explicit Socket(int opened) : fd(opened) {}
  ~Socket() {
    if (fd >= 0) close(fd);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd;
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

void connection_answer(int connection) {
  const timeval patience{1, 0};  // with someone who connects and says nothing
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  CheckpointRequest request;
  if (recv(connection, &request, sizeof request, 0) != sizeof request) return;
  CheckpointReply reply;
  if (!peer_may(connection))
    reply.result = CUDA_ERROR_NOT_PERMITTED;
  else if (request.pair_count > device::kDevicesMax)
    reply.result = CUDA_ERROR_INVALID_VALUE;
  else
    reply = reply_make(request, connection);
  (void)!send(connection, &reply, sizeof reply, MSG_NOSIGNAL);
}

/// One at a time: an operation is not looked at from the side while it is under way.
void requests_answer(int server) {
  for (;;) {
    const Socket connection(accept4(server, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.fd >= 0)
      connection_answer(connection.fd);
    else if (errno != EINTR && errno != ECONNABORTED)
      return;
  }
}

}  // namespace

void checkpoint_serve() {
  sockaddr_un address;
  const socklen_t length = address_make(getpid(), address);
  const int server = device::above_standard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (server < 0) return;
  if (length == 0 || bind(server, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(server, SOMAXCONN) != 0) {
    close(server);
    return;
  }
  listening = server;
  thread_start("softgpu-restore", [server] { requests_answer(server); });
}

void checkpoint_forked() {
  const int server = listening.exchange(-1);
  if (server >= 0) close(server);
}

CUresult checkpoint_ask(int pid, const CheckpointRequest& request, CheckpointReply& reply) {
  sockaddr_un address;
  const socklen_t length = pid > 0 ? address_make(pid, address) : 0;
  if (length == 0) return CUDA_ERROR_INVALID_VALUE;
  const Socket connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (connection.fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (connect(connection.fd, reinterpret_cast<sockaddr*>(&address), length) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (send(connection.fd, &request, sizeof request, MSG_NOSIGNAL) != sizeof request)
    return CUDA_ERROR_INVALID_VALUE;
  ssize_t got = 0;
  do {
    got = recv(connection.fd, &reply, sizeof reply, 0);
  } while (got < 0 && errno == EINTR);
  return got == sizeof reply ? static_cast<CUresult>(reply.result) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace softgpu::driver
