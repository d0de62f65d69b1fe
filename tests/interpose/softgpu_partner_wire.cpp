// See softgpu_partner.h: the side of the test, and what both sides send.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "tests/interpose/softgpu_partner.h"

namespace sluice::test {

bool partner_send(int socket, const PartnerMessage& message, int fd) {
  PartnerMessage copy = message;
  iovec part{&copy, sizeof copy};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL) == sizeof copy;
}

bool partner_receive(int socket, PartnerMessage* message, int* fd) {
  iovec part{message, sizeof *message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof *fd)] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  *fd = -1;
  if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != sizeof *message) return false;
  const cmsghdr* rights = CMSG_FIRSTHDR(&header);
  if (rights != nullptr) memcpy(fd, CMSG_DATA(rights), sizeof *fd);
  return true;
}

namespace {

// Executes the partner, which talks over `socket`.
[[noreturn]] void partner_execute(int socket) {
  const std::string number = std::to_string(fcntl(socket, F_DUPFD, 3));
  execl(SOFTGPU_PARTNER, SOFTGPU_PARTNER, number.c_str(), nullptr);
  _exit(127);
}

// A process of a job is known by what it inherits and by its parents. So one of no job has another
// parent, and nothing but its socket; its number goes into `told`.
[[noreturn]] void stranger_execute(int socket, int told) {
  if (fork() != 0) _exit(0);
  const pid_t number = getpid();
  if (write(told, &number, sizeof number) != sizeof number) _exit(127);
  unsetenv("SLUICE_TENANT");
  setenv("SLUICE_SOCKET", "/nonexistent", 1);
  dup2(socket, 3);
  close_range(4, ~0U, 0);
  partner_execute(3);
}

// The first child has ended when this returns, so that the stranger's parent is another process.
pid_t stranger_start(int socket) {
  int told[2];
  if (pipe2(told, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  const pid_t child = fork();
  if (child == 0) stranger_execute(socket, told[1]);
  close(told[1]);
  waitpid(child, nullptr, 0);
  pid_t number = -1;
  const bool read_whole = read(told[0], &number, sizeof number) == sizeof number;
  close(told[0]);
  if (!read_whole) throw std::runtime_error("fork");
  return number;
}

}  // namespace

void Partner::start(bool stranger) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("socketpair");
  pid_ = stranger ? stranger_start(ends[1]) : fork();
  if (pid_ == 0) partner_execute(ends[1]);
  life_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  close(ends[1]);
  socket_ = ends[0];
}

Partner::~Partner() {
  if (pid_ > 0) end(SIGKILL);
  if (socket_ >= 0) close(socket_);
  if (fd >= 0) close(fd);
}

void Partner::send(const PartnerMessage& request, int fd_sent) {
  partner_send(socket_, request, fd_sent);
}

PartnerMessage Partner::receive() {
  if (fd >= 0) close(fd);
  PartnerMessage answer;
  if (!partner_receive(socket_, &answer, &fd)) answer.result = CUDA_ERROR_UNKNOWN;
  return answer;
}

PartnerMessage Partner::ask(PartnerMessage request, int fd_sent) {
  send(request, fd_sent);
  return receive();
}

void Partner::end(int signal) {
  if (signal != 0) kill(pid_, signal);
  pollfd ended{life_, POLLIN, 0};
  while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
  close(life_);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace sluice::test
