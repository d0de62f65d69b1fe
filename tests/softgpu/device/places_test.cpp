// The places for clients of a device: a process that has nothing there keeps none from others.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/softgpu/driver/fixture.h"

namespace {

using namespace softgpu::device;
using softgpu_test::InChild;

constexpr std::uint64_t kTaken = 4096;

class Places : public softgpu_test::Driver {
 protected:
  ~Places() override {
    for (const pid_t child : children) kill(child, SIGKILL);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
  }
  Segment* segment() const {
    std::string error;
    return directory_open(devices.path(), error).at(0);
  }
  /// Starts a process that is a client, does `body` and stays.
  void client_start(Segment* on, const std::function<bool(Device&, std::uint32_t)>& body) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    children.push_back(fork());
    if (children.back() == 0) {
      Device device(on);
      const std::uint32_t client = device.client_open();
      if (client == kNone || !body(device, client) || write(ready[1], "x", 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1) << "client " << children.size();
    close(ready[0]);
  }
  static bool memory(Device& device, std::uint32_t client) {
    return device.memory_take(client, kTaken);
  }
  static bool context_no_more(Device& device, std::uint32_t client) {
    if (!device.context_take(client)) return false;
    device.context_give(client);
    return true;
  }
  std::vector<pid_t> children;
};

void rest() {
  std::this_thread::sleep_for(std::chrono::nanoseconds(2 * static_cast<long>(kTakeNs)));
}

TEST_F(Places, ProcessesThatHaveNothingKeepNoneFromOthers) {
  Segment* const on = segment();
  client_start(on, memory);
  for (std::uint32_t i = 1; i < kClientsMax; ++i) client_start(on, context_no_more);
  ASSERT_FALSE(HasFailure());
  rest();
  constexpr std::uint32_t kMore = 20;
  for (std::uint32_t i = 0; i < kMore; ++i) client_start(on, memory);
  Device device(on);
  EXPECT_EQ(device.used_bytes(), (kMore + 1) * kTaken) << "a place was given that was in use";
  const Snapshot now = device.snapshot();
  const auto ended = std::count_if(now.processes.begin(), now.processes.end(),
                                   [](const auto& process) { return !process.alive; });
  EXPECT_EQ(ended, kMore) << "each account is kept";
}

TEST_F(Places, AFullTableIsSaidAndAPlaceIsFoundAgain) {
  Segment* const on = segment();
  InChild([&] {
    CUcontext context = nullptr;
    ASSERT_CU(cuInit(0));
    ASSERT_CU(cuCtxCreate(&context, nullptr, 0, 0));
    ASSERT_CU(cuCtxDestroy(context));
    rest();
    for (std::uint32_t i = 0; i < kClientsMax; ++i) client_start(on, memory);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(cuCtxCreate(&context, nullptr, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("256 processes have contexts or memory on GPU 0"), std::string::npos)
        << said;
    kill(children.back(), SIGKILL);
    waitpid(children.back(), nullptr, 0);
    children.pop_back();
    CUdeviceptr p = 0;
    ASSERT_CU(cuCtxCreate(&context, nullptr, 0, 0));
    ASSERT_CU(cuMemAlloc(&p, 1 << 20));
    EXPECT_CU(cuMemsetD8(p, 1, 1 << 20));
    EXPECT_CU(cuCtxSynchronize());
    const Snapshot now = Device(on).snapshot();
    std::uint64_t own = 0;
    for (const auto& process : now.processes)
      if (process.alive && process.account.pid == getpid()) own += process.account.memory_bytes;
    EXPECT_EQ(own, on->context_bytes + (1 << 20));
    EXPECT_CU(cuCtxDestroy(context));
    for (const pid_t child : children) kill(child, SIGKILL);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    children.clear();
  });
}

}  // namespace
