// A process that is stopped while it has the lock of a device: the others go on, and it is stopped
// when it has left the lock, as with a lock of the kernel's.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/softgpu/temporary.h"

namespace {

using namespace softgpu::device;
using softgpu_test::TemporaryDevices;
using std::chrono::steady_clock;

constexpr std::uint64_t kPiece = 1 << 20;
constexpr uid_t kUser = 20001, kOther = 20002;

class Stopped : public ::testing::Test {
 protected:
  Stopped() : devices({{"SOFTGPU_MEMORY", "64MiB"}, {"SOFTGPU_COUNT", "1"}}) {
    std::string error;
    chmod(devices.path().c_str(), 01777);
    segment = directory_open(devices.path(), error).at(0);
  }
  ~Stopped() override {
    if (holder > 0) kill(holder, SIGKILL);
    if (holder > 0) waitpid(holder, nullptr, 0);
  }
  bool in_lock() const { return (segment->lock & kLifeMask) == segment->clients[0].life; }
  /// Starts a process that takes and gives memory for ever.
  void holder_start(uid_t user) {
    holder = fork();
    if (holder != 0) return;
    if (user != 0 && (setgid(user) != 0 || setuid(user) != 0)) _exit(2);
    Device device(segment);
    const std::uint32_t client = device.client_open();
    for (;;)
      if (device.memory_take(client, kPiece)) device.memory_give(client, kPiece);
  }
  /// Stops it until that was within the lock.
  void holder_stop() {
    constexpr int kStopsMax = 10'000;
    for (int stops = 0; stops < kStopsMax; ++stops) {
      std::this_thread::sleep_for(std::chrono::microseconds(200 + stops % 7 * 100));
      kill(holder, SIGSTOP);
      ASSERT_EQ(waitpid(holder, nullptr, WUNTRACED), holder);
      if (segment->clients[0].life != 0 && in_lock()) return;
      kill(holder, SIGCONT);
    }
    FAIL() << "it is never stopped within the lock";
  }
  /// Whether the holder is stopped some time soon, and outside the lock.
  bool holder_stops() const {
    const auto end = steady_clock::now() + std::chrono::seconds(5);
    int status = 0;
    while (steady_clock::now() < end) {
      if (waitpid(holder, &status, WUNTRACED | WNOHANG) == holder) return WIFSTOPPED(status);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  /// How a process of `user` that looks at the device ends: 0 when it could, -1 after 20 s.
  int looker_result(pid_t looker) const {
    int status = 0;
    for (int i = 0; i < 20'000; ++i) {
      if (waitpid(looker, &status, WNOHANG) == looker) return status;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(looker, SIGKILL);
    waitpid(looker, nullptr, 0);
    return -1;
  }
  pid_t looker_start(uid_t user) {
    const pid_t looker = fork();
    if (looker != 0) return looker;
    if (user != 0 && (setgid(user) != 0 || setuid(user) != 0)) _exit(2);
    (void)Device(segment).used_bytes();
    _exit(0);
  }

  TemporaryDevices devices;
  Segment* segment = nullptr;
  pid_t holder = -1;
};

TEST_F(Stopped, WithinTheLockItStopsNoOtherAndStaysStopped) {
  holder_start(0);
  for (int round = 0; round < 3; ++round) {
    holder_stop();
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_EQ(looker_result(looker_start(0)), 0) << "the others wait for a stopped process";
    EXPECT_TRUE(holder_stops()) << "its stop is undone";
    EXPECT_FALSE(in_lock());
    EXPECT_EQ(looker_result(looker_start(0)), 0);
    EXPECT_EQ(waitpid(holder, nullptr, WUNTRACED | WNOHANG), 0) << "it has not been touched again";
    kill(holder, SIGCONT);
  }
}

// A program of another user may not signal it. The broker may, which asks the device every second.
TEST_F(Stopped, OfAnotherUserItIsHelpedOutByRoot) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  holder_start(kUser);
  holder_stop();
  ASSERT_FALSE(HasFatalFailure());
  const pid_t other = looker_start(kOther);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(waitpid(other, nullptr, WNOHANG), 0) << "it has no means to go on";
  EXPECT_EQ(looker_result(looker_start(0)), 0);
  EXPECT_EQ(looker_result(other), 0);
  EXPECT_TRUE(holder_stops());
}

TEST_F(Stopped, ByADebuggerItIsEnded) {
  holder_start(0);
  for (;;) {
    ASSERT_EQ(ptrace(PTRACE_SEIZE, holder, nullptr, nullptr), 0);
    ASSERT_EQ(ptrace(PTRACE_INTERRUPT, holder, nullptr, nullptr), 0);
    ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
    if (segment->clients[0].life != 0 && in_lock()) break;
    ASSERT_EQ(ptrace(PTRACE_DETACH, holder, nullptr, nullptr), 0);
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  const pid_t looker = looker_start(0);
  int status = 0;
  ASSERT_EQ(looker_result(looker), 0);
  ASSERT_EQ(waitpid(holder, &status, 0), holder);
  EXPECT_TRUE(WIFSIGNALED(status));
  holder = -1;
  EXPECT_EQ(Device(segment).used_bytes(), 0U);
}

TEST_F(Stopped, OutsideTheLockItIsLeftAlone) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  holder = fork();
  if (holder == 0) {
    Device device(segment);
    if (!device.memory_take(device.client_open(), kPiece) || write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(holder, SIGSTOP);
  ASSERT_EQ(waitpid(holder, nullptr, WUNTRACED), holder);
  EXPECT_EQ(Device(segment).used_bytes(), kPiece);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(Device(segment).used_bytes(), kPiece);
  EXPECT_EQ(waitpid(holder, nullptr, WCONTINUED | WNOHANG), 0);
  for (const int end : ready) close(end);
}

}  // namespace
