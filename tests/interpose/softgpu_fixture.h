// What the tests of the shim over the software GPU share: GPUs in a directory of their own, a
// broker that gives the tenant all of them, and the device's own account to compare with. After
// each test both accounts must be equal for every process of the tenant, byte for byte.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "softgpu/device/device.h"
#include "tests/interpose/test_broker.h"

namespace sluice::test {

inline constexpr size_t kMiB = 1 << 20;
inline constexpr size_t kContext = 32 * kMiB;
inline constexpr size_t kQuota = 100 * kMiB;

/// Waits for a condition that another thread or process makes true.
bool eventually(const std::function<bool()>& condition, int timeout_ms = kPatience_ms);

/// The driver's function of that name, found in the library's own table: every question to the
/// loader or to the driver has the shim's answer.
void* unhooked(const char* symbol);

/// Both accounts of all processes of the tenant, on its GPUs, which are the first of `devices`, as
/// text that says where they differ; empty = equal.
std::string accounts_difference(
    TestBroker& broker, const std::vector<std::unique_ptr<softgpu::device::Device>>& devices,
    size_t gpus);

class SoftGpuTest : public ::testing::Test {
 protected:
  struct Options {
    int gpus = 1;
    int gpus_of_tenant = 0;  // the first of them; 0 = all
    size_t quota = kQuota;
    size_t device_bytes = 256 * kMiB;  // of each GPU
    size_t context_told = kContext;    // what the broker says that a context costs
    size_t page = 0;                   // memory is given out in such pages; 0 = to the byte
    bool swap = false;                 // the tenant's memory is movable
    bool listed = true;                // NVML has a figure for the tenant's processes
    bool uses_cuda = true;  // this process is one of the tenant's, with a context on the first GPU
  };
  SoftGpuTest() : SoftGpuTest(Options{}) {}
  explicit SoftGpuTest(const Options& chosen) : options(chosen) {}

  void SetUp() override;
  void TearDown() override;

  // The device's own account of a process. It is not asked through the driver or NVML, which the
  // shim stands in front of.
  softgpu::device::Account device_account(int pid = getpid(), int gpu = 0);
  uint64_t device_bytes(int pid = getpid(), int gpu = 0);
  uint64_t device_total(int gpu = 0);
  // The most that it ever held, at every moment.
  uint64_t device_peak(int gpu = 0);
  // What the ledger says of a process, less what is in host memory and what limits() says; 0 when
  // it has no slot.
  uint64_t held(int pid = getpid(), int gpu = 0);
  // What the ledger has reserved for limits of a process's contexts. The device does not have it.
  uint64_t limits(int pid = getpid(), int gpu = 0);
  uint64_t held_total(int gpu = 0);
  std::string difference();  // accounts_difference()
  void agrees(const char* when) { EXPECT_EQ(difference(), "") << when; }

  const Options options;
  std::string directory;
  std::vector<std::unique_ptr<softgpu::device::Device>> devices;
  std::unique_ptr<TestBroker> broker;
  CUcontext context = nullptr;
};

}  // namespace sluice::test
