// What the shim asks of NVML for its account, over a fake that can say what real ones say and the
// software GPU does not.
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
#include <string>
#include <thread>

#include "tests/interpose/guest_nvml.h"

namespace {

using sluice::protocol::kLeaseOpen;
using namespace sluice::test;

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

// NVML's figure may not have managed memory, and while its pages are elsewhere it does not.
TEST_F(GuestNvmlTest, ManagedMemoryThatTheFigureHasNotHidesNoContext) {
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CUdeviceptr plain = 0, managed = 0;
  ASSERT_EQ(cuMemAlloc_v2(&plain, 4 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocManaged(&managed, 50 * kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  const auto figure = [&](unsigned long long bytes) {
    nvml->processes[0].usedGpuMemory = nvml->used_more = bytes;
    EXPECT_EQ(cuIpcGetMemHandle(nullptr, 0), CUDA_SUCCESS);  // reads it
    return held() / kMiB;
  };
  EXPECT_EQ(figure((41 + 4 + 50) * kMiB), 41u + 4 + 50) << "all of it is counted";
  EXPECT_EQ(figure((41 + 4 + 45) * kMiB), 41u + 4 + 45) << "nearly all of it";
  EXPECT_EQ(figure((41 + 4) * kMiB), 30u + 4 + 50) << "none: a context is what the broker said";
  EXPECT_EQ(figure((20 + 4) * kMiB), 20u + 4 + 50) << "or what there can be";
  ASSERT_EQ(cuMemFree_v2(managed), CUDA_SUCCESS);
  EXPECT_EQ(figure((20 + 4) * kMiB), 20u + 4) << "by the figure again";
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

// Memory that comes back in stream order is looked for more and more seldom.
TEST_F(GuestNvmlTest, QueriesReadTheFigureSeldomWhileMemoryIsToComeBack) {
  constexpr unsigned long long kLarge = 600 * kMiB;
  listed(static_cast<unsigned>(getpid()), 41 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, kLarge), CUDA_SUCCESS);
  nvml->processes[0].usedGpuMemory = 41 * kMiB + kLarge;
  ASSERT_EQ(cuMemFreeAsync(pointer, nullptr), CUDA_SUCCESS);
  const unsigned long long before = nvml->process_reads;
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(500))
    ASSERT_EQ(cuEventQuery(nullptr), CUDA_SUCCESS);
  EXPECT_LT(nvml->process_reads - before, 120u);
  EXPECT_EQ(held(), 41 * kMiB + kLarge);
  nvml->processes[0].usedGpuMemory = 41 * kMiB;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, kLarge), CUDA_SUCCESS);
  EXPECT_EQ(held(), 41 * kMiB + kLarge);
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
    std::atomic_ref(nvml->processes[0].usedGpuMemory) += kMiB;
  });
  std::thread loads([&] {
    auto handle = reinterpret_cast<CUfunction>(0x10);
    waiting[1] = gettid();
    EXPECT_EQ(cuModuleGetFunction(&handle, nullptr, "f"), CUDA_SUCCESS);
  });
  for (auto& thread : waiting)
    ASSERT_TRUE(eventually([&] { return thread != 0 && sleeps_on_futex(thread); }));
  // Nobody looks, the helper neither.
  std::atomic_ref(nvml->processes[0].usedGpuMemory) += 2 * kMiB;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(held(), 30 * kMiB);
  hold.store(0);
  allocates.join();
  loads.join();
  EXPECT_TRUE(eventually([&] { return held() == 33 * kMiB; })) << held();
}

// What a pool has just given back is still in the figure. Nobody calls anything afterwards.
TEST_F(GuestNvmlTest, AFigureThatComesLateIsReadAgain) {
  listed(static_cast<unsigned>(getpid()), 30 * kMiB);
  cuda_start();
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_TRUE(eventually([&] { return held() == 30 * kMiB; }));
  nvml->late_bytes = 2 * kMiB;
  std::atomic_ref(nvml->late_reads) = 1;
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_TRUE(eventually([&] { return std::atomic_ref(nvml->late_reads) == 0; }));
  EXPECT_TRUE(eventually([&] { return held() == 30 * kMiB; })) << held();
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

// A device of unlearnt kind takes more than its tenant has room for, which the reading behind the
// call finds.
TEST_F(GuestNvmlTest, ARefusalAfterAReadingSaysWhatWasAskedFor) {
  cuda_start();
  listed(static_cast<unsigned>(getpid()), 30 * kMiB);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CUdeviceptr most = 0, small = 7;
  ASSERT_EQ(cuMemAlloc_v2(&most, 992 * kMiB), CUDA_SUCCESS);
  nvml->processes[0].usedGpuMemory = 1022 * kMiB;
  static FakeNvml* figures;
  figures = nvml;
  fake.on_enter = [](const char* function) {
    if (function != std::string("an allocation")) return;
    fake.used_bytes += 3 * kMiB;
    figures->processes[0].usedGpuMemory += 4 * kMiB;
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuMemAlloc_v2(&small, 64 << 10), CUDA_ERROR_OUT_OF_MEMORY);
  fake.on_enter = nullptr;
  EXPECT_EQ(small, 7U);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("sluice: refused 64.0 KiB: you use "), std::string::npos) << said;
}

}  // namespace
