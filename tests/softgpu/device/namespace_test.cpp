// Processes of several pid namespaces that share a device directory, as a host and its containers
// do: each knows which of the others live, whatever their pids are.
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "softgpu/nvml/nvml.h"
#include "tests/softgpu/driver/fixture.h"
#include "tests/softgpu/elsewhere.h"

namespace {

using softgpu::device::Device;
using softgpu_test::Elsewhere;
using softgpu_test::InChild;
using softgpu_test::kMiB;

constexpr int kRuns = 6;
constexpr unsigned kWords = 1024, kLaunches = 60;

class Namespaces : public softgpu_test::Driver {
 protected:
  void SetUp() override {
    const std::string missing = softgpu_test::namespaces_missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    setenv("SOFTGPU_PACING", "1", 1);
    std::string error;
    ASSERT_EQ(softgpu::device::directory_open(devices.path(), error).size(), 1U) << error;
  }
  /// The device as the calling process maps it.
  Device device() const {
    std::string error;
    return Device(softgpu::device::directory_look(devices.path(), error).at(0));
  }
};

/// One program: counts each word of a buffer up, and returns their sum.
long sum_of_program() {
  CUcontext context = nullptr;
  CUdeviceptr p = 0;
  std::vector<unsigned> words(kWords);
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate(&context, nullptr, 0, 0) != CUDA_SUCCESS) return -1;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  if (cuModuleLoadData(&module, softgpu_test::kKernels) != CUDA_SUCCESS ||
      cuModuleGetFunction(&add, module, "add_one") != CUDA_SUCCESS ||
      cuMemAlloc(&p, kWords * 4) != CUDA_SUCCESS)
    return -2;
  unsigned count = kWords;
  void* arguments[] = {&p, &count};
  // It checks nothing, as programs do.
  cuMemsetD32(p, 0, kWords);
  for (unsigned i = 0; i < kLaunches; ++i) {
    cuLaunchKernel(add, 8, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr);
    if (i % 10 == 0) cuCtxSynchronize();
  }
  cuMemcpyDtoH(words.data(), p, kWords * 4);
  return std::accumulate(words.begin(), words.end(), 0L);
}

void programs_run() {
  for (int run = 0; run < kRuns; ++run)
    InChild([run] { EXPECT_EQ(sum_of_program(), long{kWords} * kLaunches) << "run " << run; });
}

/// Looks at the device until it is killed, as monitors do.
bool look_for_ever(Device device) {
  for (unsigned i = 0;; ++i) {
    (void)device.snapshot();
    if (i % 16 == 0 && std::system(SOFTGPU_CTL " list > /dev/null") != 0) return false;
  }
}

TEST_F(Namespaces, AReaderOutsideLeavesAProgramInsideAlone) {
  const pid_t reader = fork();
  if (reader == 0) _exit(look_for_ever(device()) ? 0 : 1);
  Elsewhere inside([](Elsewhere&) {
    programs_run();
    return true;
  });
  EXPECT_TRUE(inside.finish());
  EXPECT_EQ(waitpid(reader, nullptr, WNOHANG), 0) << "it still looks";
  kill(reader, SIGKILL);
  waitpid(reader, nullptr, 0);
}

TEST_F(Namespaces, AReaderInsideLeavesAProgramOutsideAlone) {
  Elsewhere reader([this](Elsewhere& self) {
    (void)device().snapshot();
    return self.turn() && look_for_ever(device());
  });
  reader.meet();
  reader.go();
  programs_run();
  EXPECT_EQ(kill(reader.pid(), 0), 0) << "it still looks";
}

/// Holds `bytes` of the device until the other side says go.
bool hold(Device device, std::uint64_t bytes, Elsewhere& self) {
  return device.memory_take(device.client_open(), bytes) && self.turn();
}

TEST_F(Namespaces, TheDeadHoldNothingWhereverTheyDied) {
  Elsewhere inside([this](Elsewhere& self) { return hold(device(), 30 * kMiB, self); });
  inside.meet();
  Device here = device();
  EXPECT_EQ(here.used_bytes(), 30 * kMiB);
  inside.end();
  EXPECT_EQ(here.used_bytes(), 0U);

  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t outside = fork();
  if (outside == 0) {
    Device own = device();
    if (!own.memory_take(own.client_open(), 20 * kMiB) || write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Elsewhere reader([this](Elsewhere& self) {
    Device there = device();
    EXPECT_EQ(there.used_bytes(), 20 * kMiB);
    if (!self.turn()) return false;
    EXPECT_EQ(there.used_bytes(), 0U);
    return true;
  });
  reader.meet();
  kill(outside, SIGKILL);
  waitpid(outside, nullptr, 0);
  reader.go();
  EXPECT_TRUE(reader.finish());
  for (const int end : ready) close(end);
}

// Both are pid 1 of theirs.
TEST_F(Namespaces, EqualPidsAreDifferentProcesses) {
  Elsewhere first([this](Elsewhere& self) { return hold(device(), 10 * kMiB, self); });
  first.meet();
  Elsewhere second([this](Elsewhere& self) {
    if (!hold(device(), 20 * kMiB, self)) return false;
    EXPECT_EQ(device().used_bytes(), 20 * kMiB);
    programs_run();
    return true;
  });
  second.meet();
  EXPECT_EQ(device().used_bytes(), 30 * kMiB);
  first.end();
  EXPECT_EQ(device().used_bytes(), 20 * kMiB);
  second.go();
  EXPECT_TRUE(second.finish());
}

/// Waits until the process sleeps on a futex, as one that waits for a lock does.
bool waits_for_a_lock(pid_t pid) {
  constexpr int kLooksMax = 1000000;
  const std::string futex = std::to_string(SYS_futex) + " ";
  for (int i = 0; i < kLooksMax; ++i) {
    std::ifstream call("/proc/" + std::to_string(pid) + "/syscall");
    std::string text;
    std::getline(call, text);
    if (text.starts_with(futex)) return true;
    sched_yield();
  }
  return false;
}

// The kernel's robust futexes take a thread that dies waiting for the holder when the two threads
// have equal numbers in their namespaces.
TEST_F(Namespaces, AWaiterThatDiesDoesNotOpenTheLock) {
  Elsewhere holder([this](Elsewhere& self) {
    Device there = device();
    const softgpu::device::Lock lock(there);
    return self.turn();
  });
  holder.meet();
  for (int i = 0; i < 3; ++i) {
    Elsewhere waiter([this](Elsewhere& self) {
      Device there = device();
      if (!self.turn()) return false;
      (void)there.used_bytes();
      return true;
    });
    waiter.meet();
    waiter.go();
    ASSERT_TRUE(waits_for_a_lock(waiter.pid()));
    waiter.end();
  }
  int entered[2];
  ASSERT_EQ(pipe(entered), 0);
  const pid_t third = fork();
  if (third == 0) {
    Device here = device();
    (void)here.used_bytes();
    _exit(write(entered[1], "x", 1) == 1 ? 0 : 1);
  }
  constexpr int kPatienceMs = 100;  // several looks of a waiter at the holder
  pollfd sign{entered[0], POLLIN, 0};
  EXPECT_EQ(poll(&sign, 1, kPatienceMs), 0) << "entered while the holder was inside";
  holder.go();
  EXPECT_TRUE(holder.finish());
  int status = -1;
  waitpid(third, &status, 0);
  EXPECT_EQ(status, 0);
  for (const int end : entered) close(end);
}

TEST_F(Namespaces, ADeadHoldersLockIsTakenOver) {
  Elsewhere holder([this](Elsewhere& self) {
    Device there = device();
    const softgpu::device::Lock lock(there);
    return self.turn();
  });
  holder.meet();
  holder.end();
  EXPECT_EQ(device().used_bytes(), 0U);
}

std::vector<unsigned> pids_listed() {
  nvmlDevice_t gpu = nullptr;
  std::array<nvmlProcessInfo_t, 64> infos{};
  unsigned count = infos.size();
  EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &gpu), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(gpu, &count, infos.data()), NVML_SUCCESS);
  std::vector<unsigned> pids;
  for (unsigned i = 0; i < count; ++i) pids.push_back(infos[i].pid);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  return pids;
}

std::string list_of_ctl() {
  std::FILE* out = popen(SOFTGPU_CTL " list", "r");
  std::array<char, 4096> part{};
  std::string text;
  for (std::size_t got = 0; (got = std::fread(part.data(), 1, part.size(), out)) > 0;)
    text.append(part.data(), got);
  EXPECT_EQ(pclose(out), 0);
  return text;
}

TEST_F(Namespaces, PidsAreThoseOfTheReader) {
  Device here = device();
  const std::uint32_t client = here.client_open();
  ASSERT_TRUE(here.memory_take(client, kMiB));
  Elsewhere inside([this](Elsewhere& self) {
    if (!hold(device(), kMiB, self)) return false;
    EXPECT_EQ(pids_listed(), std::vector<unsigned>{1}) << "the process outside has no pid here";
    const std::string list = list_of_ctl();
    EXPECT_NE(list.find(" of another pid namespace"), std::string::npos) << list;
    return true;
  });
  inside.meet();
  std::vector<unsigned> expected{static_cast<unsigned>(getpid()),
                                 static_cast<unsigned>(inside.pid())};
  std::vector<unsigned> found = pids_listed();
  std::sort(expected.begin(), expected.end());
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, expected);
  const std::string list = list_of_ctl();
  EXPECT_NE(list.find(" " + std::to_string(inside.pid()) + " "), std::string::npos) << list;
  EXPECT_EQ(list.find("another pid namespace"), std::string::npos) << list;
  EXPECT_TRUE(here.weight_set(inside.pid(), 2)) << "control takes them, too";
  inside.go();
  EXPECT_TRUE(inside.finish());
  here.client_close(client);
}

// It has another pid there than the one that it tells.
TEST_F(Namespaces, AProcessStoppedWithinTheLockIsHelpedOutFromOutside) {
  Elsewhere inside([this](Elsewhere& self) {
    Device own = device();
    const std::uint32_t client = own.client_open();
    if (!self.turn()) return false;
    for (;;)
      if (own.memory_take(client, kMiB)) own.memory_give(client, kMiB);
  });
  inside.meet();
  const softgpu::device::Segment& segment = *device().segment();
  const auto in_lock = [&] {
    return (segment.lock & softgpu::device::kLifeMask) == segment.clients[0].life;
  };
  inside.go();
  const auto runs = [&] {
    return softgpu::device::process_stop(inside.pid()) == softgpu::device::ProcessStop::kRuns;
  };
  for (int stops = 0; stops == 0 || !in_lock(); ++stops) {
    ASSERT_LT(stops, 10'000) << "it is never stopped within the lock";
    kill(inside.pid(), SIGCONT);
    usleep(300);
    kill(inside.pid(), SIGSTOP);
    while (runs()) usleep(100);
  }
  EXPECT_LE(device().used_bytes(), kMiB);
}

// As in a container, whose /dev/shm has 64 MiB by default.
TEST_F(Namespaces, ADirectoryWithoutRoomIsSaid) {
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (!softgpu_test::namespace_enter(false) ||
        mount("tmpfs", devices.path().c_str(), "tmpfs", 0, "size=8m") != 0)
      _exit(77);
    std::string error;
    const bool none = softgpu::device::directory_open(devices.path(), error).empty();
    (void)!write(said[1], error.data(), error.size());
    _exit(none && std::filesystem::is_empty(devices.path()) ? 0 : 1);
  }
  close(said[1]);
  char text[1000] = {};
  (void)!read(said[0], text, sizeof text - 1);
  close(said[0]);
  int status = -1;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no tmpfs can be mounted";
  EXPECT_EQ(status, 0);
  EXPECT_NE(std::string(text).find("No space left on device; each GPU needs "), std::string::npos)
      << text;
}

// The lock lasts as long as a descriptor there. What must not happen is silence.
TEST_F(Namespaces, AProcessTakenForDeadOnOverlayfsFails) {
  const pid_t child = fork();
  if (child == 0) {
    const std::string base = devices.path();
    const auto at = [&](const char* name) { return base + "/" + name; };
    bool made = softgpu_test::namespace_enter(false) &&
                mount("tmpfs", base.c_str(), "tmpfs", 0, nullptr) == 0;
    for (const char* name : {"lower", "upper", "work", "merged"})
      made = made && mkdir(at(name).c_str(), 0700) == 0;
    const std::string options =
        "lowerdir=" + at("lower") + ",upperdir=" + at("upper") + ",workdir=" + at("work");
    if (!made || mount("overlay", at("merged").c_str(), "overlay", 0, options.c_str()) != 0)
      _exit(77);
    setenv("SOFTGPU_DIR", at("merged").c_str(), 1);
    int closed[2], looked[2];
    if (pipe(closed) != 0 || pipe(looked) != 0) _exit(1);
    const pid_t reader = fork();
    if (reader == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      char byte = 0;
      const bool come = read(closed[0], &byte, 1) == 1;
      std::string error;
      const auto segments = softgpu::device::directory_look(at("merged"), error);
      const bool seen = come && !segments.empty() && Device(segments[0]).users() == 0;
      _exit(seen && write(looked[1], "x", 1) == 1 ? 0 : 1);
    }
    CUcontext context = nullptr;
    char byte = 0;
    bool good = cuInit(0) == CUDA_SUCCESS && cuCtxCreate(&context, nullptr, 0, 0) == CUDA_SUCCESS;
    for (int file = 3; file < 1024; ++file)
      if (file != closed[1] && file != looked[0]) close(file);
    good = good && write(closed[1], "x", 1) == 1 && read(looked[0], &byte, 1) == 1;
    const CUresult result = cuCtxSynchronize();
    _exit(good && result == CUDA_ERROR_UNKNOWN ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no overlayfs can be mounted";
  EXPECT_EQ(status, 0);
}

}  // namespace
