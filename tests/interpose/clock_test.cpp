// What a time namespace adds to this process's clock.
#include "interpose/clock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace sluice::interpose {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int kNewTime = 0x80;  // CLONE_NEWTIME

TEST(Clock, Offsets) {
  EXPECT_EQ(clock_offset_read("monotonic           0         0\nboottime            0         0\n"),
            0);
  EXPECT_EQ(clock_offset_read("monotonic      172800 500000000\n"),
            172800 * kSecondNs + 500'000'000);
  EXPECT_EQ(clock_offset_read("monotonic         -10 250000000\n"), -10 * kSecondNs + 250'000'000);
  for (const char* nothing : {"", "boottime 5 0\n", "monotonic"})
    EXPECT_EQ(clock_offset_read(nothing), 0) << nothing;
}

int ended(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    clock_reset_after_fork();
    _exit(body());
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

bool ahead_by_1000s() {
  constexpr char kAhead[] = "monotonic 1000 0";
  const int file = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
  const bool written = file >= 0 && write(file, kAhead, strlen(kAhead)) > 0;
  if (file >= 0) close(file);
  return written;
}

// Who makes a namespace is not in it, its children are; they all know one time.
TEST(Clock, IsOneForAllNamespaces) {
  constexpr int kNone = 77;
  const int64_t own_ns = clock_offset_ns();
  const uint64_t begin_ns = clock_common_ns(clock_now_ns());
  const auto child = [&] {
    const uint64_t now_ns = clock_common_ns(clock_now_ns());
    const bool one = now_ns >= begin_ns && now_ns < begin_ns + 100 * uint64_t{kSecondNs};
    return clock_offset_ns() == 1000 * kSecondNs && one ? 0 : 2;
  };
  const int result = ended([&] {
    if (unshare(kNewTime) != 0 || !ahead_by_1000s()) return kNone;
    if (clock_offset_ns() != own_ns) return 1;
    return ended(child);
  });
  if (result == kNone) GTEST_SKIP() << "only root can make time namespaces, with Linux 5.6";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace sluice::interpose
