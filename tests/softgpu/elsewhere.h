// A process in a new pid namespace with a /proc of its own, as a container has one, started by a
// test that shares its device directory with it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

namespace softgpu_test {

inline bool text_write(const char* path, const std::string& text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  return written;
}

/// Gives the calling process mounts of its own and, unless `pids` is false, its children a new pid
/// namespace. Uses a user namespace where the user is not root. False with errno.
inline bool namespace_enter(bool pids = true) {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWNS | (pids ? CLONE_NEWPID : 0) | (user == 0 ? 0 : CLONE_NEWUSER)) != 0)
    return false;
  if (user != 0 && (!text_write("/proc/self/setgroups", "deny") ||
                    !text_write("/proc/self/uid_map", "0 " + std::to_string(user) + " 1") ||
                    !text_write("/proc/self/gid_map", "0 " + std::to_string(group) + " 1")))
    return false;
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

inline bool namespace_proc() { return mount("proc", "/proc", "proc", 0, nullptr) == 0; }

/// Why no namespaces can be made here; empty if they can.
inline std::string namespaces_missing() {
  const pid_t child = fork();
  if (child == 0) {
    if (!namespace_enter()) _exit(errno);
    const pid_t first = fork();
    if (first == 0) _exit(namespace_proc() ? 0 : errno);
    int status = 0;
    waitpid(first, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const int error = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  return error == 0 ? "" : std::string("pid namespaces cannot be made here: ") + strerror(error);
}

/// Runs `body` as the first process (pid 1) of a namespace. The two sides stop for each other with
/// turn() in the body and meet() and go() in the test. Killed at the latest with this object.
class Elsewhere {
 public:
  explicit Elsewhere(const std::function<bool(Elsewhere&)>& body) {
    EXPECT_EQ(pipe2(there_, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(back_, O_CLOEXEC), 0);
    int told[2];
    EXPECT_EQ(pipe2(told, O_CLOEXEC), 0);
    between_ = fork();
    if (between_ == 0) {
      if (!namespace_enter()) _exit(9);
      const pid_t first = fork();
      if (first == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(namespace_proc() && body(*this) && !::testing::Test::HasFailure() ? 0 : 1);
      }
      close(there_[0]);
      close(back_[1]);
      int status = 0;
      if (write(told[1], &first, sizeof first) != sizeof first) _exit(9);
      waitpid(first, &status, 0);
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
    }
    close(there_[0]);
    close(back_[1]);
    EXPECT_EQ(read(told[0], &pid_, sizeof pid_), static_cast<ssize_t>(sizeof pid_));
    close(told[0]);
    close(told[1]);
  }
  ~Elsewhere() {
    end();
    close(there_[1]);
    close(back_[0]);
  }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;

  /// In the body: lets the test's meet() return, and waits for its go().
  bool turn() {
    char byte = 0;
    return write(back_[1], "x", 1) == 1 && read(there_[0], &byte, 1) == 1;
  }
  void meet() {
    char byte = 0;
    ASSERT_EQ(read(back_[0], &byte, 1), 1) << "the process has ended";
  }
  void go() { ASSERT_EQ(write(there_[1], "x", 1), 1); }
  /// Waits for the end of the body; true if it returned true and expected nothing in vain.
  bool finish() {
    int status = -1;
    waitpid(between_, &status, 0);
    between_ = pid_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  /// Kills the process, and with it its namespace.
  void end() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (between_ > 0) waitpid(between_, nullptr, 0);
    between_ = pid_ = -1;
  }
  /// As the test's namespace knows it.
  pid_t pid() const { return pid_; }
  /// Readable when the body has come to turn().
  int signs() const { return back_[0]; }

 private:
  pid_t between_ = -1, pid_ = -1;
  int there_[2] = {-1, -1}, back_[2] = {-1, -1};
};

}  // namespace softgpu_test
