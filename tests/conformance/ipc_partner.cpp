// See ipc_partner.h.
#include "tests/conformance/ipc_partner.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "tests/conformance/harness.h"

namespace conformance {
namespace {

constexpr int kPatienceMs = 20000;

}  // namespace

void Channel::put_file(int file) {
  const char mark = 'f';
  send(&mark, sizeof mark, file);
}

int Channel::get_file() {
  char mark = 0;
  int file = -1;
  receive(&mark, sizeof mark, &file);
  EXPECT_GE(file, 0) << "no descriptor came along";
  return file;
}

void Channel::send(const void* data, std::size_t bytes, int file) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof file)] = {};
  if (file >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof file);
    std::memcpy(CMSG_DATA(header), &file, sizeof file);
  }
  EXPECT_EQ(sendmsg(socket_, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes))
      << "the other process is gone";
}

void Channel::receive(void* data, std::size_t bytes, int* file) {
  pollfd waiting{socket_, POLLIN, 0};
  if (poll(&waiting, 1, kPatienceMs) != 1) {
    ADD_FAILURE() << "the other process says nothing";
    return;
  }
  iovec part{data, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  EXPECT_EQ(recvmsg(socket_, &message, MSG_CMSG_CLOEXEC), static_cast<ssize_t>(bytes))
      << "the other process is gone, or says something else";
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (file != nullptr && header != nullptr && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(file, CMSG_DATA(header), sizeof *file);
}

void Channel::hang_up() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

Partner::Started Partner::start(const std::function<void(Channel&)>& body) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  std::fflush(nullptr);
  const int pid = fork();
  if (pid == 0) {
    close(ends[0]);
    Channel channel(ends[1]);
    body(channel);
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  EXPECT_GT(pid, 0);
  close(ends[1]);
  return {ends[0], pid};
}

Partner::Partner(const std::function<void(Channel&)>& body) : Partner(start(body)) {}

Partner::Partner(Started started) : Channel(started.socket), pid_(started.pid) {}

Partner::~Partner() {
  hang_up();
  int status = 0;
  for (int waited_ms = 0; pid_ > 0 && waited_ms < kPatienceMs; waited_ms += 5) {
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      EXPECT_EQ(status, 0) << "what the other process expected did not hold";
      return;
    }
    usleep(5000);
  }
  EXPECT_LE(pid_, 0) << "the other process does not end";
  kill();
}

void Partner::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace conformance
