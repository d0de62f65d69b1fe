// Death at any instant: no stuck lock, no leaked memory, accounts kept, shared memory passed on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/softgpu/temporary.h"

namespace {

using namespace softgpu::device;
using softgpu_test::TemporaryDevices;

constexpr std::uint64_t kMiB = 1 << 20;

class Death : public ::testing::Test {
 protected:
  Death() : devices({{"SOFTGPU_MEMORY", "64MiB"}, {"SOFTGPU_COUNT", "1"}}) {
    std::string error;
    segment = directory_open(devices.path(), error).at(0);
  }
  TemporaryDevices devices;
  Segment* segment = nullptr;
};

/// Takes and gives memory and device time for ever.
[[noreturn]] void busy_child(Segment* segment) {
  Device device(segment);
  const std::uint32_t client = device.client_open();
  const std::uint32_t queue = device.queue_open(client, clock_ns());
  const std::atomic<bool> stop{false};
  for (;;) {
    const bool taken = device.memory_take(client, kMiB);
    const std::uint64_t number =
        device.work_open(queue, {WorkKind::kCompute, 16, clock_ns()}, stop);
    device.work_charge(queue, number, 1000, stop);
    device.work_close(queue, number);
    if (taken) device.memory_give(client, kMiB);
  }
}

// Users share the GPUs of a directory that they all may write, and what one of them had comes back
// like anybody's.
TEST(SeveralUsers, ShareTheGpusOfADirectoryThatAllMayWrite) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  constexpr uid_t kNobody = 65534;
  const TemporaryDevices devices({{"SOFTGPU_MEMORY", "64MiB"}, {"SOFTGPU_COUNT", "1"}});
  const auto other = [&](const std::function<bool()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(2);
      _exit(body() ? 0 : 1);
    }
    return child;
  };
  const auto ended = [](pid_t child) {
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  std::string error;
  // The directory of one user is that user's alone.
  ASSERT_EQ(chmod(devices.path().c_str(), 0755), 0);
  ASSERT_EQ(directory_open(devices.path(), error).size(), 1U) << error;
  EXPECT_TRUE(ended(other([&] {
    std::string refused;
    return directory_open(devices.path(), refused).empty() &&
           refused.find("all may write") != std::string::npos;
  })));
  ASSERT_TRUE(directory_remove(devices.path(), error)) << error;
  ASSERT_EQ(chmod(devices.path().c_str(), 01777), 0);
  const auto segments = directory_open(devices.path(), error);
  ASSERT_EQ(segments.size(), 1U) << error;
  int taken[2], ends[2];
  ASSERT_EQ(pipe(taken), 0);
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = other([&] {
    std::string text;
    const auto same = directory_open(devices.path(), text);
    if (same.empty()) return false;
    Device device(same[0]);
    const bool has = device.memory_take(device.client_open(), 40 * kMiB);
    char byte = has ? 'y' : 'n';
    return write(taken[1], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1 && has;
  });
  Device device(segments[0]);
  const std::uint32_t client = device.client_open();
  char byte = 0;
  ASSERT_EQ(read(taken[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_FALSE(device.memory_take(client, 40 * kMiB)) << "the other user has them";
  ASSERT_EQ(write(ends[1], &byte, 1), 1);
  EXPECT_TRUE(ended(child));
  EXPECT_TRUE(device.memory_take(client, 40 * kMiB)) << "of a user who has ended";
  for (const int end : {taken[0], taken[1], ends[0], ends[1]}) close(end);
}

TEST_F(Death, KilledAtRandomMomentsNothingStays) {
  std::mt19937 random(20240607);
  Device device(segment);
  for (int round = 0; round < 100; ++round) {
    pid_t children[2];
    for (pid_t& child : children) {
      child = fork();
      if (child == 0) busy_child(segment);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    for (const pid_t child : children) kill(child, SIGKILL);
    // Not yet waited for: a zombie holds nothing either.
    while (process_start_ticks(children[0]) != 0 || process_start_ticks(children[1]) != 0)
      std::this_thread::yield();
    ASSERT_EQ(device.used_bytes(), 0U) << "round " << round;
    ASSERT_EQ(device.users(), 0U);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
  }
  for (const std::uint64_t word : segment->active) EXPECT_EQ(word, 0U);
}

TEST_F(Death, AccountsOfTheDeadAreKept) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    Device device(segment);
    const std::uint32_t client = device.client_open();
    const std::uint32_t queue = device.queue_open(client, clock_ns());
    const std::atomic<bool> stop{false};
    WorkRequest request;
    request.counted = true;
    device.work_close(queue, device.work_open(queue, request, stop));
    if (!device.memory_take(client, 3 * kMiB) || write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Device device(segment);
  EXPECT_EQ(device.used_bytes(), 3 * kMiB);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const Snapshot snapshot = device.snapshot();
  EXPECT_EQ(snapshot.used_bytes, 0U);
  ASSERT_EQ(snapshot.processes.size(), 1U);
  EXPECT_EQ(snapshot.processes[0].account.pid, child);
  EXPECT_FALSE(snapshot.processes[0].alive);
  EXPECT_EQ(snapshot.processes[0].account.launches, 1U);
}

// Its descriptors of the driver are closed with the program that opened them.
TEST_F(Death, WhoExecutesAnotherProgramHoldsNothing) {
  int ready[2], executed[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe2(executed, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    Device device(segment);
    const bool taken = device.memory_take(device.client_open(), 40 * kMiB);
    if (!taken || write(ready[1], "x", 1) != 1) _exit(1);
    execl("/bin/sleep", "sleep", "60", nullptr);
    _exit(127);
  }
  close(executed[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(read(executed[0], &byte, 1), 0);
  Device device(segment);
  // The old program's memory goes after its descriptors, and before the new program begins.
  constexpr int kLooksMax = 1000000;
  for (int i = 0; i < kLooksMax && device.used_bytes() != 0; ++i) std::this_thread::yield();
  EXPECT_EQ(device.used_bytes(), 0U);
  EXPECT_EQ(device.users(), 0U);
  EXPECT_EQ(kill(child, 0), 0) << "it lives";
  EXPECT_TRUE(device.memory_take(device.client_open(), 64 * kMiB));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (const int end : {ready[0], ready[1], executed[0]}) close(end);
}

/// A process of `body`, which has taken `mib` MiB and come to its end when this returns.
pid_t holder_start(Segment* segment, std::uint64_t mib, const std::function<void(int)>& body) {
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    Device device(segment);
    if (!device.memory_take(device.client_open(), mib * kMiB)) _exit(1);
    body(ready[1]);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  for (const int end : ready) close(end);
  return child;
}

// Daemons and shells close all that they do not know. On a filesystem of memory, because overlayfs,
// which the one of the other tests may be, cannot keep the promise (life.h).
TEST(Lives, AProgramThatClosesAllItsDescriptorsLives) {
  const char* before = std::getenv("TMPDIR");
  const std::string temporary = before == nullptr ? "" : before;
  setenv("TMPDIR", "/dev/shm", 1);
  const TemporaryDevices devices({{"SOFTGPU_MEMORY", "64MiB"}, {"SOFTGPU_COUNT", "1"}});
  temporary.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", temporary.c_str(), 1);
  std::string error;
  Segment* const segment = directory_open(devices.path(), error).at(0);
  const pid_t child = holder_start(segment, 3, [](int kept) {
    for (int file = 3; file < 1024; ++file)
      if (file != kept) close(file);
  });
  Device device(segment);
  EXPECT_EQ(device.used_bytes(), 3 * kMiB);
  EXPECT_EQ(device.users(), 1U);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(device.used_bytes(), 0U);
}

// What a program prints to a standard stream that is closed must not come to a device's file.
TEST_F(Death, NothingHasTheNumberOfAStandardStream) {
  const pid_t child = fork();
  if (child == 0) {
    for (int file = 0; file <= STDERR_FILENO; ++file) close(file);
    std::string ignored;
    Segment* const again = directory_open(devices.path(), ignored).at(0);
    Device device(again);
    const bool asked = device.users() < UINT32_MAX;
    for (int file = 0; file <= STDERR_FILENO; ++file)
      if (!asked || write(file, "printed", 7) != -1 || errno != EBADF) _exit(1);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(Death, AForkedChildDoesNotKeepItsParent) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = holder_start(segment, 3, [&](int) {
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      pause();
      _exit(0);
    }
    if (write(told[1], &grandchild, sizeof grandchild) != sizeof grandchild) _exit(1);
  });
  pid_t grandchild = -1;
  ASSERT_EQ(read(told[0], &grandchild, sizeof grandchild), static_cast<ssize_t>(sizeof grandchild));
  Device device(segment);
  EXPECT_EQ(device.used_bytes(), 3 * kMiB);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(device.used_bytes(), 0U);
  EXPECT_EQ(kill(grandchild, SIGKILL), 0) << "it lives";
  for (const int end : told) close(end);
}

TEST_F(Death, AThreadThatEndsTakesNothingAlong) {
  const pid_t child = holder_start(segment, 3, [this](int) {
    std::thread([this] {
      Device device(segment);
      if (!device.memory_take(device.client_open(), 2 * kMiB)) _exit(1);
    }).join();
  });
  Device device(segment);
  EXPECT_EQ(device.used_bytes(), 5 * kMiB);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(device.used_bytes(), 0U);
}

TEST_F(Death, CapacityIsCommonAndTheDeadGiveWay) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    Device device(segment);
    if (!device.memory_take(device.client_open(), 40 * kMiB) || write(ready[1], "x", 1) != 1)
      _exit(1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Device device(segment);
  const std::uint32_t client = device.client_open();
  EXPECT_FALSE(device.memory_take(client, 24 * kMiB + 1));
  EXPECT_TRUE(device.memory_take(client, 24 * kMiB));
  EXPECT_FALSE(device.memory_take(client, 1));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(device.memory_take(client, 40 * kMiB));
  device.client_close(client);
  EXPECT_EQ(device.used_bytes(), 0U);
}

// The most that was held is noted when it is taken, nobody has to look; what the dead left counts
// for nothing.
TEST_F(Death, TheMostThatWasEverHeldIsKept) {
  Device device(segment);
  const std::uint32_t client = device.client_open();
  EXPECT_TRUE(device.memory_take(client, 5 * kMiB));
  EXPECT_TRUE(device.shared_create(client, 77, 2 * kMiB));
  device.memory_give(client, 5 * kMiB);
  EXPECT_TRUE(device.memory_take(client, 3 * kMiB));
  EXPECT_EQ(device.snapshot().used_bytes, 5 * kMiB);
  EXPECT_EQ(device.snapshot().peak_bytes, 7 * kMiB);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    Device own(segment);
    if (!own.memory_take(own.client_open(), 10 * kMiB) || write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(device.memory_take(client, 11 * kMiB));
  EXPECT_EQ(device.snapshot().peak_bytes, 16 * kMiB) << "and not 26, nobody had looked meanwhile";
  device.client_close(client);
}

TEST_F(Death, SharedMemoryPassesToTheNextHolder) {
  int ready[2], go[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    Device device(segment);
    if (!device.shared_create(device.client_open(), 77, 8 * kMiB) || write(ready[1], "x", 1) != 1)
      _exit(1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Device device(segment);
  const std::uint32_t client = device.client_open();
  ASSERT_TRUE(device.shared_hold(client, 77));
  EXPECT_FALSE(device.shared_hold(client, 78));
  EXPECT_EQ(device.used_bytes(), 8 * kMiB) << "charged once";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(device.used_bytes(), 8 * kMiB);
  EXPECT_EQ(device.snapshot().processes[0].account.memory_bytes, 8 * kMiB);
  device.shared_release(client, 77);
  EXPECT_EQ(device.used_bytes(), 0U);
  device.client_close(client);
}

}  // namespace
