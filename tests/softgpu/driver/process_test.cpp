// Processes on one device: fork, exit with work that never ends, shares of time, lag, and what the
// accounts say of it.
#include <signal.h>

#include <chrono>
#include <thread>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/softgpu/driver/fixture.h"

namespace {

using Driver = softgpu_test::Driver;
using softgpu::device::Snapshot;
using softgpu_test::InChild;

Snapshot snapshot(const std::string& directory) {
  std::string error;
  const auto segments = softgpu::device::directory_look(directory, error);
  EXPECT_EQ(error, "");
  return segments.empty() ? Snapshot{} : softgpu::device::Device(segments[0]).snapshot();
}

TEST_F(Driver, AForkedChildOfAUserCannotUseTheDevice) {
  WithContext([](CUcontext) {
    InChild([] {
      CUdeviceptr p = 0;
      EXPECT_EQ(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
      EXPECT_EQ(cuMemAlloc(&p, 16), CUDA_ERROR_NOT_INITIALIZED);
    });
    CUdeviceptr p = 0;
    EXPECT_CU(cuMemAlloc(&p, 16)) << "the parent goes on";
  });
}

/// What programs and libraries do in handlers and destructors of the process.
void leave_from_a_handler() {
  CUdevice device = -1;
  CUdeviceptr memory = 0;
  if (cuCtxGetDevice(&device) != CUDA_SUCCESS || device != 0) _exit(3);
  if (cuMemAlloc(&memory, 16) != CUDA_SUCCESS || cuMemFree(memory) != CUDA_SUCCESS) _exit(4);
}

TEST_F(Driver, HandlersOfTheExitStillHaveTheirContext) {
  WithContext([](CUcontext) { EXPECT_EQ(std::atexit(leave_from_a_handler), 0); });
}

/// Loads a module and runs a kernel of it.
void work_from_a_handler() {
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUdeviceptr p = 0;
  unsigned n = 1, value = 0;
  void* arguments[] = {&p, &n};
  if (cuModuleLoadData(&module, softgpu_test::kKernels) != CUDA_SUCCESS) _exit(5);
  if (cuModuleGetFunction(&add, module, "add_one") != CUDA_SUCCESS) _exit(6);
  if (cuMemAlloc(&p, 4) != CUDA_SUCCESS || cuMemsetD32(p, 4, 1) != CUDA_SUCCESS) _exit(7);
  if (cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr) != CUDA_SUCCESS)
    _exit(8);
  if (cuMemcpyDtoH(&value, p, 4) != CUDA_SUCCESS || value != 5) _exit(9);
}

// Handlers run after the destructors of what was made after their registration.
TEST_F(Driver, HandlersOfTheExitLoadAndLaunch) {
  WithContext([](CUcontext) {
    EXPECT_EQ(std::atexit(work_from_a_handler), 0);
    work_from_a_handler();
  });
}

/// PCI bus number of each device as this process numbers them.
std::vector<int> bus_numbers() {
  std::vector<int> out;
  int count = 0;
  EXPECT_CU(cuInit(0));
  EXPECT_CU(cuDeviceGetCount(&count));
  for (CUdevice device = 0; device < count; ++device) {
    int bus = -1;
    EXPECT_CU(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device));
    out.push_back(bus);
  }
  return out;
}

TEST_F(Driver, TheFastestDeviceIsFirstUnlessBusOrderIsAsked) {
  setenv("SOFTGPU_COUNT", "3", 1);
  setenv("SOFTGPU_RATE", "20e6,80e6,40e6", 1);
  InChild([] {
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    const std::vector<int> bus = bus_numbers();
    ASSERT_EQ(bus.size(), 3U);
    EXPECT_TRUE(bus[0] < bus[1] && bus[1] < bus[2]);
  });
  InChild([] {
    const std::vector<int> bus = bus_numbers();
    ASSERT_EQ(bus.size(), 3U);
    EXPECT_TRUE(bus[2] < bus[0] && bus[0] < bus[1]) << "speeds 80, 40, 20";
  });
  InChild([] {
    setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);  // counted in the order of speed
    const std::vector<int> bus = bus_numbers();
    ASSERT_EQ(bus.size(), 2U);
    EXPECT_LT(bus[0], bus[1]);
  });
  unsetenv("SOFTGPU_RATE");
}

TEST_F(Driver, NothingWorksBeforeInitialisation) {
  InChild([] {
    int count = 0;
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuInit(0));
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, 16), CUDA_ERROR_INVALID_CONTEXT);
  });
}

/// Starts `grid` blocks of a loop of `turns` turns; 0 turns never end.
void spin(CUfunction function, unsigned grid, unsigned turns) {
  void* params[] = {&turns};
  EXPECT_CU(cuLaunchKernel(function, grid, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
}

TEST_F(Driver, AProcessEndsThoughItsKernelDoesNot) {
  setenv("SOFTGPU_PACING", "1", 1);
  WithContext([](CUcontext) {
    // A counter that starts at 1 and looks for 0 goes all round: minutes of modelled time.
    spin(function("spin"), 16, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  const Snapshot after = snapshot(devices.path());
  EXPECT_EQ(after.used_bytes, 0U);
  ASSERT_EQ(after.processes.size(), 1U);
  EXPECT_FALSE(after.processes[0].alive);
  EXPECT_GT(after.processes[0].account.busy_ns, 0);
}

TEST_F(Driver, TwoProcessesShareTheDeviceHalfAndHalf) {
  setenv("SOFTGPU_PACING", "1", 1);
  pid_t children[2];
  for (pid_t& child : children) {
    child = fork();
    if (child != 0) continue;
    CUcontext context = nullptr;
    if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate(&context, nullptr, 0, 0) != CUDA_SUCCESS) _exit(1);
    spin(function("spin"), 16, 0);
    pause();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const Snapshot begin = snapshot(devices.path());
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const Snapshot end = snapshot(devices.path());
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  ASSERT_EQ(begin.processes.size(), 2U);
  ASSERT_EQ(end.processes.size(), 2U);
  const double first = end.processes[0].account.busy_ns - begin.processes[0].account.busy_ns;
  const double second = end.processes[1].account.busy_ns - begin.processes[1].account.busy_ns;
  const double slice = 2e6;
  EXPECT_NEAR(first, second, 2 * slice);
  EXPECT_NEAR(first + second, end.busy_ns - begin.busy_ns, slice);
}

TEST_F(Driver, TheCalendarOfALaunchIsItsCost) {
  WithContext([this](CUcontext) {
    const CUfunction function = Driver::function("spin");
    spin(function, 16, 100000);
    ASSERT_CU(cuCtxSynchronize());
    const Snapshot s = snapshot(devices.path());
    ASSERT_EQ(s.processes.size(), 1U);
    EXPECT_EQ(s.processes[0].account.launches, 1U);
    EXPECT_NEAR(s.busy_ns, 16 * 3 * 100000 / 40e6 * 1e9, 1e6);
    EXPECT_NEAR(s.sm_ns, s.busy_ns * 16, 1e3);
    EXPECT_EQ(s.lag_ns, 0);
  });
}

TEST_F(Driver, CtlRefusesToResetWhatIsInUse) {
  WithContext([](CUcontext) {
    EXPECT_NE(std::system(SOFTGPU_CTL " reset 2>/dev/null"), 0);
    EXPECT_EQ(std::system(SOFTGPU_CTL " accounts --json > /dev/null"), 0);
  });
  EXPECT_EQ(std::system(SOFTGPU_CTL " reset"), 0);
  EXPECT_FALSE(std::filesystem::exists(devices.path() + "/gpu0"));
}

}  // namespace
