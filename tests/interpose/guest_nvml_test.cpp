// What the shim asks of NVML and what it lets programs see of it, over fakes that can say what real
// ones say and the software GPU does not: nothing of processes in a container, no samples,
// graphics.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tests/interpose/fake_nvml.h"
#include "tests/interpose/guest.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::test::eventually;
using sluice::test::kGiB;
using sluice::test::kMiB;
using sluice::test::TestBroker;

constexpr unsigned kNotSupported = 3;
constexpr unsigned kNotFound = 6;
constexpr unsigned kInsufficientSize = 7;
constexpr unsigned kStranger = 4242;

nvmlDevice_t other_device() { return reinterpret_cast<nvmlDevice_t>(1); }

class GuestNvmlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    broker = std::make_unique<TestBroker>(kGiB, 30 * kMiB);
    broker->environment_set();
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    ASSERT_NE(library, nullptr);
    nvml = static_cast<FakeNvml*>(dlsym(library, "fake_nvml"));
    ASSERT_NE(nvml, nullptr);
  }
  void cuda_start() {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    broker->lease_store(kLeaseOpen);
  }
  void listed(unsigned pid, unsigned long long bytes, unsigned sm_util = 0) {
    nvml->sm_util[nvml->process_count] = sm_util;
    nvml->processes[nvml->process_count++] = {pid, bytes, 1, 2};
  }
  template <class F>
  F* function(const char* name) {
    void* found = dlsym(library, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<F*>(found);
  }
  template <class F>
  F* function_of_driver(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<F*>(found);
  }
  unsigned long long held() { return broker->account().held_bytes.load(); }
  std::unique_ptr<TestBroker> broker;
  void* library = nullptr;
  FakeNvml* nvml = nullptr;
  CUcontext context = nullptr;
};

std::string folder_of(const void* address) {
  Dl_info file{};
  EXPECT_NE(dladdr(address, &file), 0);
  const std::string path = file.dli_fname == nullptr ? "" : file.dli_fname;
  return path.substr(0, path.rfind('/'));
}

CUresult work_a_little() {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, 0);
  return result == CUDA_SUCCESS ? cuModuleLoadData(&module, "") : result;
}

TEST(GuestWithoutNvmlTest, AProgramOfNobodysTenantDoesNotGetNvml) {
  setenv("SLUICE_SOCKET", "/nonexistent", 1);
  ASSERT_EQ(work_a_little(), CUDA_SUCCESS);
  EXPECT_EQ(dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD), nullptr);
}

TEST(GuestWithoutNvmlTest, ATenantsProgramGetsTheDriversNvmlWithItsFirstContext) {
  const TestBroker broker(kGiB, 30 * kMiB);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD), nullptr) << "not before";
  ASSERT_EQ(work_a_little(), CUDA_SUCCESS);
  void* loaded = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
  ASSERT_NE(loaded, nullptr);
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  EXPECT_EQ(folder_of(dlsym(loaded, "fake_nvml")), folder_of(dlsym(driver, "cuDeviceGetName")));
}

TEST_F(GuestNvmlTest, WhereNvmlListsNobodyAContextCostsWhatTheBrokerMeasured) {
  cuda_start();
  listed(kStranger, 500 * kMiB);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_GT(nvml->process_reads, 0u);
  EXPECT_EQ(held(), 30 * kMiB);
  EXPECT_EQ(broker->account().measured.load(), 0u);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
}

TEST_F(GuestNvmlTest, WhereThereIsNoNvmlAContextCostsWhatTheBrokerMeasured) {
  nvml->init_result = 9;
  listed(static_cast<unsigned>(getpid()), 500 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(nvml->process_reads, 0u);
  EXPECT_EQ(held(), 30 * kMiB);
}

TEST_F(GuestNvmlTest, AFigureThatIsNotAvailableIsNone) {
  listed(static_cast<unsigned>(getpid()), ~0ull);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 30 * kMiB);
  EXPECT_EQ(broker->account().measured.load(), 0u);
}

TEST_F(GuestNvmlTest, TheOwnFigureCountsLessWhatIsKnown) {
  listed(kStranger, 500 * kMiB);
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 41 * kMiB);
  EXPECT_EQ(broker->account().measured.load(), 1u);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 10 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(held(), 51 * kMiB);
  // A module: the figure has grown by it and by the allocation.
  nvml->processes[1].usedGpuMemory = 54 * kMiB;
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
  EXPECT_EQ(held(), 54 * kMiB);
  EXPECT_EQ(broker->account().context_bytes.load(), 44 * kMiB);
  // Less than what is known (managed memory that is not on the device): the known stays charged.
  nvml->processes[1].usedGpuMemory = 4 * kMiB;
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(held(), 10 * kMiB);
}

TEST_F(GuestNvmlTest, GreenContextsAreMeasuredAndOneThatDoesNotFitIsTakenBack) {
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(held(), 41 * kMiB);
  auto green = reinterpret_cast<CUgreenCtx>(0x77);
  nvml->processes[0].usedGpuMemory = kGiB + kMiB;
  EXPECT_EQ(cuGreenCtxCreate(&green, nullptr, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(green, reinterpret_cast<CUgreenCtx>(0x77));
  nvml->processes[0].usedGpuMemory = 50 * kMiB;
  EXPECT_EQ(cuGreenCtxCreate(&green, nullptr, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 50 * kMiB);
  nvml->processes[0].usedGpuMemory = 42 * kMiB;
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  EXPECT_EQ(held(), 42 * kMiB);
}

TEST_F(GuestNvmlTest, VariablesThatComeLateAreWithheldAboveTheQuota) {
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  size_t bytes = 0;
  auto* const old_get = function_of_driver<CUresult(unsigned*, unsigned*, CUmodule, const char*)>(
      "cuModuleGetGlobal");
  unsigned old_pointer = 0, old_bytes = 0;
  const std::pair<const char*, std::function<CUresult()>> ways[] = {
      {"cuLibraryGetManaged", [&] { return cuLibraryGetManaged(&pointer, &bytes, nullptr, "v"); }},
      {"cuLibraryGetGlobal", [&] { return cuLibraryGetGlobal(&pointer, &bytes, nullptr, "v"); }},
      {"cuModuleGetGlobal_v2",
       [&] { return cuModuleGetGlobal_v2(&pointer, &bytes, nullptr, "v"); }},
      {"cuModuleGetGlobal", [&] { return old_get(&old_pointer, &old_bytes, nullptr, "v"); }},
  };
  unsigned next = 0x1000;
  for (const auto& [name, get] : ways) {
    pointer = old_pointer = ++next;
    bytes = old_bytes = 0x77;
    nvml->processes[0].usedGpuMemory = kGiB + kMiB;
    EXPECT_EQ(get(), CUDA_ERROR_OUT_OF_MEMORY) << name;
    EXPECT_EQ(held(), kGiB + kMiB) << name << ": it is there";
    EXPECT_TRUE(pointer == next && old_pointer == next && bytes == 0x77 && old_bytes == 0x77)
        << name;
    nvml->processes[0].usedGpuMemory = 42 * kMiB;
    EXPECT_EQ(get(), CUDA_SUCCESS) << name;
    EXPECT_EQ(held(), 42 * kMiB) << name;
    const unsigned long long reads = nvml->process_reads;
    EXPECT_EQ(get(), CUDA_SUCCESS) << name;
    EXPECT_EQ(nvml->process_reads, reads) << name << ": a known address asks nothing";
  }
}

TEST_F(GuestNvmlTest, AskingForTheSameFunctionAgainAsksNvmlNothing) {
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  auto handle = reinterpret_cast<CUfunction>(0x10);
  const unsigned long long before = nvml->process_reads;
  ASSERT_EQ(cuModuleGetFunction(&handle, nullptr, "f"), CUDA_SUCCESS);
  EXPECT_EQ(nvml->process_reads, before + 1);
  // The first look is over, and the helper has nothing to look for any more.
  ASSERT_TRUE(eventually([&] { return nvml->process_reads >= before + 2; }));
  const unsigned long long after = nvml->process_reads;
  for (int i = 0; i < 1000; ++i)
    ASSERT_EQ(cuModuleGetFunction(&handle, nullptr, "f"), CUDA_SUCCESS);
  EXPECT_EQ(nvml->process_reads, after);
  // After an unload the same handle may be another function's.
  ASSERT_EQ(cuModuleUnload(nullptr), CUDA_SUCCESS);
  const unsigned long long unloaded = nvml->process_reads;
  ASSERT_EQ(cuModuleGetFunction(&handle, nullptr, "f"), CUDA_SUCCESS);
  EXPECT_GT(nvml->process_reads, unloaded);
}

TEST_F(GuestNvmlTest, TheFirstLaunchAfterANewFunctionLooksWhatItLoaded) {
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  const auto launch = [] {
    return cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  };
  // A burst, until launches go the short way.
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(launch(), CUDA_SUCCESS);
  auto handle = reinterpret_cast<CUfunction>(0x10);
  const unsigned long long before = nvml->process_reads;
  ASSERT_EQ(cuModuleGetFunction(&handle, nullptr, "f"), CUDA_SUCCESS);
  // The helper's look is over.
  ASSERT_TRUE(eventually([&] { return nvml->process_reads >= before + 2; }));
  nvml->processes[0].usedGpuMemory = 47 * kMiB;
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(held(), 47 * kMiB);
}

// Every call that brings memory of others, or lends the own: afterwards the figure is read again.
struct Share {
  const char* name;
  CUresult (*call)();
};
const Share kShares[] = {
    {"cuIpcGetMemHandle", [] { return cuIpcGetMemHandle(nullptr, 0); }},
    {"cuIpcOpenMemHandle", [] { return cuIpcOpenMemHandle(nullptr, {}, 0); }},
    {"cuIpcOpenMemHandle_v2", [] { return cuIpcOpenMemHandle_v2(nullptr, {}, 0); }},
    {"cuIpcCloseMemHandle", [] { return cuIpcCloseMemHandle(0); }},
    {"cuMemExportToShareableHandle",
     [] { return cuMemExportToShareableHandle(nullptr, 0, CU_MEM_HANDLE_TYPE_NONE, 0); }},
    {"cuMemImportFromShareableHandle",
     [] { return cuMemImportFromShareableHandle(nullptr, nullptr, CU_MEM_HANDLE_TYPE_NONE); }},
    {"cuMemGetHandleForAddressRange",
     [] {
       return cuMemGetHandleForAddressRange(nullptr, 0, 0, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
     }},
    {"cuMemPoolExportPointer", [] { return cuMemPoolExportPointer(nullptr, 0); }},
    {"cuMemPoolImportPointer", [] { return cuMemPoolImportPointer(nullptr, nullptr, nullptr); }},
    {"cuImportExternalMemory", [] { return cuImportExternalMemory(nullptr, nullptr); }},
    {"cuExternalMemoryGetMappedBuffer",
     [] { return cuExternalMemoryGetMappedBuffer(nullptr, nullptr, nullptr); }},
    {"cuExternalMemoryGetMappedMipmappedArray",
     [] { return cuExternalMemoryGetMappedMipmappedArray(nullptr, nullptr, nullptr); }},
    {"cuDestroyExternalMemory", [] { return cuDestroyExternalMemory(nullptr); }},
};

TEST_F(GuestNvmlTest, WhatComesFromOutsideIsChargedByTheFigure) {
  listed(static_cast<unsigned>(getpid()), 30 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  for (const Share& share : kShares) {
    nvml->processes[0].usedGpuMemory += kMiB;
    ASSERT_EQ(share.call(), CUDA_SUCCESS) << share.name;
    EXPECT_EQ(held(), nvml->processes[0].usedGpuMemory) << share.name;
  }
}

bool sleeps_on_futex(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/syscall";
  FILE* file = fopen(path.c_str(), "r");
  if (file == nullptr) return false;
  long number = -1;
  const bool known = fscanf(file, "%ld", &number) == 1;
  fclose(file);
  return known && number == SYS_futex;
}

TEST_F(GuestNvmlTest, AHoldStopsReadingsTooAndWhatChangedIsMadeUpFor) {
  listed(static_cast<unsigned>(getpid()), 30 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  auto& hold = broker->lease().gpus[0].hold;
  hold.store(sluice::protocol::kHoldSet);
  std::atomic<pid_t> waiting[2]{};
  std::thread allocates([&] {
    CUdeviceptr pointer = 0;
    waiting[0] = gettid();
    EXPECT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_SUCCESS);
    nvml->processes[0].usedGpuMemory += kMiB;
  });
  std::thread loads([&] {
    auto handle = reinterpret_cast<CUfunction>(0x10);
    waiting[1] = gettid();
    EXPECT_EQ(cuModuleGetFunction(&handle, nullptr, "f"), CUDA_SUCCESS);
  });
  for (auto& thread : waiting)
    ASSERT_TRUE(eventually([&] { return thread != 0 && sleeps_on_futex(thread); }));
  // Nobody looks, the helper neither.
  nvml->processes[0].usedGpuMemory += 2 * kMiB;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(held(), 30 * kMiB);
  hold.store(0);
  allocates.join();
  loads.join();
  EXPECT_TRUE(eventually([&] { return held() == 33 * kMiB; })) << held();
}

TEST_F(GuestNvmlTest, ACheckpointedProcessKeepsItsCharge) {
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  nvml->processes[0].usedGpuMemory = 0;
  EXPECT_EQ(cuFuncLoad(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(held(), 41 * kMiB);
}

TEST_F(GuestNvmlTest, ARestartedBrokerGetsTheMeasuredResidualToo) {
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0, pooled = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&pooled, kMiB, nullptr), CUDA_SUCCESS);
  nvml->processes[0].usedGpuMemory = 44 * kMiB;
  EXPECT_EQ(held(), 44 * kMiB);
  TestBroker second(kGiB, 30 * kMiB);
  broker->die();
  second.path_take(*broker);
  ASSERT_TRUE(eventually([&] { return second.registrations() == 1; }));
  ASSERT_TRUE(eventually([&] { return second.account().held_bytes.load() == 44 * kMiB; }))
      << second.account().held_bytes.load() / kMiB;
  EXPECT_EQ(second.account().context_bytes.load(), 41 * kMiB);
}

TEST_F(GuestNvmlTest, AForkChildHasAFigureOfItsOwn) {
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  const pid_t pid = fork();
  if (pid == 0) {
    listed(static_cast<unsigned>(getpid()), 33 * kMiB);
    CUcontext own = nullptr;
    const bool good = cuInit(0) == CUDA_SUCCESS && cuCtxCreate_v2(&own, 0, 0) == CUDA_SUCCESS &&
                      broker->account(1).held_bytes.load() == 33 * kMiB;
    _exit(good ? 0 : 1);
  }
  int status = 1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(held(), 41 * kMiB);
}

TEST_F(GuestNvmlTest, AProgramThatOnlyMonitorsSeesTheTenantsProcesses) {
  // Another process of the tenant, in a PID namespace of its own.
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.own_pid.store(12);
  slot.gpus[0].held_bytes.store(77 * kMiB);
  listed(kStranger, 500 * kMiB);
  using List = decltype(nvmlDeviceGetComputeRunningProcesses_v2);
  for (const char* name :
       {"nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3"}) {
    nvmlProcessInfo_t infos[4] = {};
    unsigned count = 4;
    ASSERT_EQ(function<List>(name)(nullptr, &count, infos), 0u) << name;
    ASSERT_EQ(count, 1u) << name;
    EXPECT_EQ(infos[0].pid, 12u);
    EXPECT_EQ(infos[0].usedGpuMemory, 77 * kMiB);
    EXPECT_EQ(infos[0].gpuInstanceId, ~0u);
    EXPECT_EQ(infos[0].computeInstanceId, ~0u);
  }
  nvmlProcessInfo_v1_t first[4] = {};
  unsigned count = 4;
  ASSERT_EQ(function<decltype(nvmlDeviceGetComputeRunningProcesses)>(
                "nvmlDeviceGetComputeRunningProcesses")(nullptr, &count, first),
            0u);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(first[0].pid, 12u);
  EXPECT_EQ(first[0].usedGpuMemory, 77 * kMiB);
}

TEST_F(GuestNvmlTest, GraphicsAndMpsListsLoseTheStrangersInEveryVersion) {
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.own_pid.store(12);
  listed(kStranger, 500 * kMiB);
  listed(1000, 9 * kMiB);
  for (const char* kind : {"Graphics", "MPSCompute"}) {
    const std::string base = std::string("nvmlDeviceGet") + kind + "RunningProcesses";
    for (const char* version : {"_v2", "_v3"}) {
      const std::string name = base + version;
      const auto list = function<decltype(nvmlDeviceGetGraphicsRunningProcesses_v2)>(name.c_str());
      nvmlProcessInfo_t infos[4] = {};
      unsigned count = 4;
      ASSERT_EQ(list(nullptr, &count, infos), 0u) << name;
      ASSERT_EQ(count, 1u) << name;
      EXPECT_EQ(infos[0].pid, 12u) << name;
      EXPECT_EQ(infos[0].usedGpuMemory, 9 * kMiB) << name;
      count = 0;
      EXPECT_EQ(list(nullptr, &count, nullptr), kInsufficientSize) << name;
      EXPECT_EQ(count, 1u) << name;
    }
    nvmlProcessInfo_v1_t infos[4] = {};
    unsigned count = 4;
    ASSERT_EQ(function<decltype(nvmlDeviceGetGraphicsRunningProcesses)>(base.c_str())(
                  nullptr, &count, infos),
              0u);
    ASSERT_EQ(count, 1u) << base;
    EXPECT_EQ(infos[0].pid, 12u) << base;
  }
}

TEST_F(GuestNvmlTest, UtilizationIsScaledToTheSliceAndStrangersAreNotInIt) {
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.own_pid.store(12);
  broker->lease().gpus[0].sm_percent = 25;
  listed(kStranger, kMiB, 70);
  listed(1000, kMiB, 20);
  nvmlProcessUtilizationSample_t samples[4] = {};
  unsigned count = 4;
  const auto of_processes =
      function<decltype(nvmlDeviceGetProcessUtilization)>("nvmlDeviceGetProcessUtilization");
  ASSERT_EQ(of_processes(nullptr, samples, &count, 0), 0u);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(samples[0].pid, 12u);
  EXPECT_EQ(samples[0].smUtil, 80u);   // 20 of 25
  EXPECT_EQ(samples[0].memUtil, 40u);  // 10 of 25
  EXPECT_EQ(samples[0].encUtil, 7u);
  nvmlUtilization_t rates{};
  const auto of_device =
      function<decltype(nvmlDeviceGetUtilizationRates)>("nvmlDeviceGetUtilizationRates");
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 80u);
  EXPECT_EQ(rates.memory, 40u);
  nvml->sm_util[1] = 60;  // more than the slice: it is all of it
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 100u);
  nvml->sm_util[1] = 0;
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 0u);
  EXPECT_EQ(of_processes(nullptr, samples, &count, 0), kNotFound);
  ASSERT_EQ(of_device(other_device(), &rates), 0u);
  EXPECT_EQ(rates.gpu, 90u) << "not the tenant's: as it is";
}

TEST_F(GuestNvmlTest, WithoutSamplesTheMeterTells) {
  nvml->samples_result = kNotSupported;
  broker->lease().gpus[0].sm_percent = 100;
  nvmlUtilization_t rates{};
  const auto of_device =
      function<decltype(nvmlDeviceGetUtilizationRates)>("nvmlDeviceGetUtilizationRates");
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 0u);
  // An hour of GPU time since the last look, which is not as long ago.
  broker->account().busy_ns.store(3'600'000'000'000);
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 100u);
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 0u);
  nvmlProcessUtilizationSample_t samples[4] = {};
  unsigned count = 4;
  EXPECT_EQ(function<decltype(nvmlDeviceGetProcessUtilization)>("nvmlDeviceGetProcessUtilization")(
                nullptr, samples, &count, 0),
            kNotSupported);
}

// Limits of the user's own, and nobody who says by which pid NVML knows this process.
class AloneNvmlTest : public GuestNvmlTest {
 protected:
  void SetUp() override {
    GuestNvmlTest::SetUp();
    broker.reset();
    setenv("SLUICE_SOCKET", "/nonexistent/sluice.sock", 1);
    setenv("SLUICE_MEMORY", "100MiB", 1);
    pid = static_cast<unsigned>(getpid());
  }
  void context_make() {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  size_t free_mib() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, 100 * kMiB);
    return free / kMiB;
  }
  unsigned pid = 0;
};

TEST_F(AloneNvmlTest, WhoIsListedFromItsContextOnIsThisProcess) {
  listed(pid, 41 * kMiB);
  nvml->hidden_reads = 1;
  context_make();
  EXPECT_EQ(free_mib(), 59u);
}

TEST_F(AloneNvmlTest, WhoWasListedBeforeIsSomebodyElseWithTheSameNumber) {
  listed(pid, 41 * kMiB);
  context_make();
  EXPECT_EQ(free_mib(), 100u) << "a process of another PID namespace";
}

TEST_F(AloneNvmlTest, WhereNobodyIsListedContextsCostNothing) {
  context_make();
  EXPECT_EQ(free_mib(), 100u);
}

}  // namespace
