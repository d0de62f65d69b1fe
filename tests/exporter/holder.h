// A child that has a device open, or not, and makes calls of its descriptors when told to.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdint>

namespace sluice::exporter {

/// Stands for a GPU's: a character device that everybody may open.
inline constexpr char kHeldDevice[] = "/dev/null";
inline constexpr std::uint32_t kHeldMajor = 1;  // mem, Documentation/admin-guide/devices.txt

class Holder {
 public:
  static constexpr int kManyCalls = 100'000;

  /// `others`: descriptors that it has as well, of no device.
  explicit Holder(bool holds, int others = 0) {
    int to[2], from[2];
    EXPECT_EQ(pipe(to), 0);
    EXPECT_EQ(pipe(from), 0);
    pid_ = fork();
    if (pid_ == 0) serve(to[0], from[1], holds, others);
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
    ask('n');
  }
  ~Holder() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(to_);
    close(from_);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  std::uint32_t pid() const { return static_cast<std::uint32_t>(pid_); }
  void open_again() const { ask('o'); }
  void call_once() const { ask('c'); }
  /// As libraries do that prepare descriptors for children: a call that no driver hears of.
  void mark_closing() const { ask('m'); }
  void call_often() const { ask('C'); }
  void call_others_often() const { ask('P'); }

 private:
  void ask(char what) const {
    EXPECT_EQ(write(to_, &what, 1), 1);
    EXPECT_EQ(read(from_, &what, 1), 1);
  }

  [[noreturn]] static void serve(int in, int out, bool holds, int others) {
    // Nothing but its two pipes, wherever the test's own descriptors lead.
    const int low = 100, high = 101;
    if (dup2(in, low) < 0 || dup2(out, high) < 0) _exit(1);
    syscall(SYS_close_range, 0U, low - 1U, 0U);
    syscall(SYS_close_range, high + 1U, UINT_MAX, 0U);
    for (int i = 0; i < others; ++i) (void)!dup(low);
    const int device = holds ? open(kHeldDevice, O_RDWR) : -1;
    int bytes = 0;
    for (char what; read(low, &what, 1) == 1;) {
      if (what == 'o') close(open(kHeldDevice, O_RDWR));
      if (what == 'm') ioctl(device, FIOCLEX);
      const int calls = what == 'c' ? 1 : what == 'C' || what == 'P' ? kManyCalls : 0;
      for (int i = 0; i < calls; ++i) ioctl(what == 'P' ? low : device, FIONREAD, &bytes);
      (void)!write(high, &what, 1);
    }
    _exit(0);
  }

  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
};

}  // namespace sluice::exporter
