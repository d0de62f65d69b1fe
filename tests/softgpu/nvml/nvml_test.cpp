// The management library shows what the device's accounts say, for all devices, without becoming a
// client.
#include "softgpu/nvml/nvml.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/softgpu/temporary.h"

namespace {

using namespace softgpu::device;

/// The library, up, and its first device.
struct Nvml {
  Nvml() {
    EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
  }
  ~Nvml() { EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS); }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  nvmlDevice_t device = nullptr;
};

TEST(Nvml, EqualsTheAccount) {
  const softgpu_test::TemporaryDevices devices(
      {{"SOFTGPU_COUNT", "2"}, {"SOFTGPU_MEMORY", "64MiB"}, {"CUDA_VISIBLE_DEVICES", ""}});
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetCount(&count), NVML_ERROR_UNINITIALIZED);
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetCount(&count), NVML_SUCCESS);
  EXPECT_EQ(count, 2U) << "all devices, whatever is visible to CUDA";

  std::string error;
  const auto segments = directory_look(devices.path(), error);
  ASSERT_EQ(segments.size(), 2U) << "created by the management library";
  Device device(segments[1]);
  EXPECT_EQ(device.users(), 0U) << "looking is not using";

  nvmlDevice_t handle = nullptr, same = nullptr;
  char uuid[80];
  ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(1, &handle), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(2, &same), NVML_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(nvmlDeviceGetUUID(handle, uuid, sizeof uuid), NVML_SUCCESS);
  EXPECT_EQ(uuid, uuid_text(segments[1]->uuid));
  EXPECT_EQ(nvmlDeviceGetUUID(handle, uuid, 10), NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(nvmlDeviceGetHandleByUUID(uuid_text(segments[1]->uuid).c_str(), &same), NVML_SUCCESS);
  EXPECT_EQ(same, handle);
  nvmlPciInfo_t pci;
  ASSERT_EQ(nvmlDeviceGetPciInfo_v3(handle, &pci), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &same), NVML_SUCCESS);
  EXPECT_EQ(same, handle);

  const std::uint32_t client = device.client_open();
  ASSERT_TRUE(device.memory_take(client, 12345));
  nvmlMemory_t memory;
  ASSERT_EQ(nvmlDeviceGetMemoryInfo(handle, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used, 12345U);
  EXPECT_EQ(memory.total, 64U << 20);
  nvmlMemory_v2_t versioned{};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(handle, &versioned), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  versioned.version = NVML_MEMORY_V2;
  ASSERT_EQ(nvmlDeviceGetMemoryInfo_v2(handle, &versioned), NVML_SUCCESS);
  EXPECT_EQ(versioned.free, memory.total - 12345);

  unsigned processes = 0;
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(handle, &processes, nullptr),
            NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(processes, 1U);
  nvmlProcessInfo_t info;
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(handle, &processes, &info), NVML_SUCCESS);
  EXPECT_EQ(info.pid, static_cast<unsigned>(getpid()));
  EXPECT_EQ(info.usedGpuMemory, 12345U);
  device.client_close(client);
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(handle, &processes, &info), NVML_SUCCESS);
  EXPECT_EQ(processes, 0U);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(handle, &memory), NVML_ERROR_UNINITIALIZED);
}

TEST(Nvml, AccountsAreKept) {
  const softgpu_test::TemporaryDevices devices(
      {{"SOFTGPU_COUNT", "1"}, {"SOFTGPU_MEMORY", "64MiB"}, {"SOFTGPU_PACING", "0"}});
  std::string error;
  const auto segments = directory_open(devices.path(), error);
  ASSERT_EQ(segments.size(), 1U) << error;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    Device device(segments[0]);
    const std::atomic<bool> stop{false};
    const std::uint32_t client = device.client_open(),
                        queue = device.queue_open(client, softgpu::device::clock_ns());
    bool good = device.memory_take(client, 5000);
    const auto work = device.work_open(queue, {WorkKind::kCompute, 16, clock_ns()}, stop);
    good = good && device.work_charge(queue, work, 16 * 30e6, stop);
    device.work_close(queue, work);
    device.memory_give(client, 4000);
    if (!good || write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Nvml nvml;
  unsigned mode = 0, count = 0, pid = 0;
  EXPECT_EQ(nvmlDeviceGetAccountingMode(nvml.device, &mode), NVML_SUCCESS);
  EXPECT_EQ(mode, 1U);
  EXPECT_EQ(nvmlDeviceGetAccountingPids(nvml.device, &count, nullptr),
            NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(count, 1U);
  ASSERT_EQ(nvmlDeviceGetAccountingPids(nvml.device, &count, &pid), NVML_SUCCESS);
  EXPECT_EQ(pid, static_cast<unsigned>(child));
  nvmlAccountingStats_t stats{};
  ASSERT_EQ(nvmlDeviceGetAccountingStats(nvml.device, pid, &stats), NVML_SUCCESS);
  EXPECT_EQ(stats.isRunning, 1U);
  EXPECT_EQ(stats.maxMemoryUsage, 5000U);
  EXPECT_GT(stats.gpuUtilization, 0U) << "30 ms, of a life that has hardly begun";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ASSERT_EQ(nvmlDeviceGetAccountingStats(nvml.device, pid, &stats), NVML_SUCCESS);
  EXPECT_EQ(stats.isRunning, 0U);
  EXPECT_EQ(stats.maxMemoryUsage, 5000U);
  EXPECT_EQ(nvmlDeviceGetAccountingStats(nvml.device, 1, &stats), NVML_ERROR_NOT_FOUND);
}

TEST(Nvml, TheLaterFormOfProcessUtilization) {
  const softgpu_test::TemporaryDevices devices({{"SOFTGPU_COUNT", "1"}});
  Nvml nvml;
  nvmlProcessesUtilizationInfo_t info{};
  EXPECT_EQ(nvmlDeviceGetProcessesUtilizationInfo(nvml.device, &info),
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  info.version = NVML_PROCESSES_UTILIZATION_V1;
  EXPECT_EQ(nvmlDeviceGetProcessesUtilizationInfo(nvml.device, &info), NVML_ERROR_NOT_FOUND);
}

}  // namespace
