// A started sluice-exporter and what a client asks it, for tests of the program as a whole.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace sluice::exporter::test {

/// A started exporter; its stdout and stderr come through pipes.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments, const char* path = SLUICE_EXPORTER) {
    int out_ends[2], err_ends[2];
    EXPECT_EQ(pipe2(out_ends, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err_ends, O_CLOEXEC), 0);
    arguments.insert(arguments.begin(), path);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out_ends[1], 1);
      dup2(err_ends[1], 2);
      unsetenv("SLUICE_SOCKET");
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(out_ends[1]);
    close(err_ends[1]);
    out_fd_ = out_ends[0];
    err_fd_ = err_ends[0];
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_fd_);
    close(err_fd_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Waits for the end; the exit status, or -signal.
  int finish() {
    out = rest_read(out_fd_);
    err += rest_read(err_fd_);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  /// Reads stderr up to the line with `text`.
  void err_wait(const std::string& text) {
    char c;
    while (err.find(text) == err.npos || err.back() != '\n') {
      pollfd ready{err_fd_, POLLIN, 0};
      if (poll(&ready, 1, 20'000) != 1 || read(err_fd_, &c, 1) != 1) break;
      err += c;
    }
  }
  void end() const { kill(pid_, SIGTERM); }
  pid_t pid() const { return pid_; }

  std::string out;
  std::string err;

 private:
  static std::string rest_read(int fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(count));
    return text;
  }

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
};

/// From 127.0.0.1 or, with `family` AF_INET6, from ::1.
inline int http_connect(int port, int family = AF_INET) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<std::uint16_t>(port));
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  v6.sin6_addr = in6addr_loopback;
  const auto* address = family == AF_INET ? reinterpret_cast<const sockaddr*>(&v4)
                                          : reinterpret_cast<const sockaddr*>(&v6);
  if (connect(fd, address, family == AF_INET ? sizeof v4 : sizeof v6) == 0) return fd;
  close(fd);
  return -1;
}

/// What comes until the server closes; nothing more after `patience_ms` of silence.
inline std::string http_rest(int fd, int patience_ms = 20'000) {
  std::string reply;
  char buffer[4096];
  pollfd ready{fd, POLLIN, 0};
  while (poll(&ready, 1, patience_ms) == 1) {
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count <= 0) break;
    reply.append(buffer, static_cast<std::size_t>(count));
  }
  return reply;
}

/// The answer to `request`, empty if there is none.
inline std::string http_ask(int port, const std::string& request, int family = AF_INET) {
  const int fd = http_connect(port, family);
  if (fd < 0) return {};
  (void)!send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  std::string reply = http_rest(fd);
  close(fd);
  return reply;
}

inline std::string http_get(int port, const std::string& path, int family = AF_INET) {
  return http_ask(port, "GET " + path + " HTTP/1.0\r\n\r\n", family);
}

inline bool has_ipv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool good =
      fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (fd >= 0) close(fd);
  return good;
}

inline int port_of(const std::string& line, const std::string& host = "127.0.0.1") {
  const std::string before = "serving http://" + host + ":";
  const auto at = line.find(before);
  return at == line.npos ? -1 : std::stoi(line.substr(at + before.size()));
}

}  // namespace sluice::exporter::test
