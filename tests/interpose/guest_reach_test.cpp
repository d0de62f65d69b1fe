// Two GPUs, one of which is above its quota: who is refused when others read the figures, or keep
// them from being read, in the middle of a load. Over a driver and an NVML that do as told.
#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/interpose/guest_nvml.h"

namespace {

using namespace sluice::test;

const auto kKept = reinterpret_cast<void*>(0x77);  // what an output was

class GuestReachTest : public GuestNvmlTest {
 protected:
  void SetUp() override {
    GuestNvmlTest::SetUp();
    unsigned char uuid[16];
    memset(uuid, kFakeUuidBase + 1, sizeof uuid);
    broker->gpu_add(uuid);
    fake.device_count = 2;
    listed(static_cast<unsigned>(getpid()), 30 * kMiB);
    nvml->second_bytes = 30 * kMiB;
    cuda_start();
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxCreate_v2(&there, 0, 1), CUDA_SUCCESS);
    of_test = this;
    fake.on_enter = [](const char* function) { of_test.load()->entered(function); };
  }
  void TearDown() override { fake.on_enter = nullptr; }

  void figure(int gpu, unsigned long long bytes) {
    const std::atomic_ref figure(gpu == 0 ? nvml->processes[0].usedGpuMemory : nvml->second_bytes);
    std::atomic_ref(nvml->used_more) += bytes - figure;
    figure = bytes;
  }
  unsigned long long held_on(unsigned gpu) { return broker->account(0, gpu).held_bytes.load(); }
  // Another thread's call after which all is charged that is there.
  static void others_read() {
    std::thread([] { EXPECT_EQ(cuIpcGetMemHandle(nullptr, 0), CUDA_SUCCESS); }).join();
  }
  void above_make(int gpu) {
    figure(gpu, kGiB + kMiB);
    others_read();
    ASSERT_EQ(held_on(static_cast<unsigned>(gpu)), kGiB + kMiB);
  }
  // In the middle of the next call of that function the figure grows, and another thread reads it.
  void grows_in(const char* function, int gpu) {
    loads = function;
    grows = gpu;
  }
  void entered(const char* function) {
    if (blocked && strcmp(function, "cuMemFree_v2") == 0) {
      waits = true;
      while (blocked) sleep_ms(1);
    }
    if (strcmp(function, "cuLibraryUnload") == 0) figure(1, 30 * kMiB);
    const char* const name = loads;
    if (name == nullptr || strcmp(function, name) != 0) return;
    loads = nullptr;
    above_make(grows);
  }
  static CUresult code_load(CUlibrary* code) {
    return cuLibraryLoadData(code, "", nullptr, nullptr, 0, nullptr, nullptr, 0);
  }

  CUcontext there = nullptr;
  int grows = 0;
  // What each call of the driver looks at, those of the shim's own thread included, which goes on
  // when the test has ended.
  static inline std::atomic<GuestReachTest*> of_test{nullptr};
  static inline std::atomic<const char*> loads{nullptr};
  static inline std::atomic<bool> blocked{false}, waits{false};
};

TEST_F(GuestReachTest, AGreenContextIsRefusedByTheGpuThatItIsMadeOn) {
  for (const int above : {0, 1}) {
    auto green = static_cast<CUgreenCtx>(kKept);
    above_make(above);
    EXPECT_EQ(cuGreenCtxCreate(&green, nullptr, above, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(green, kKept);
    EXPECT_EQ(cuGreenCtxCreate(&green, nullptr, 1 - above, 0), CUDA_SUCCESS);
    figure(above, 30 * kMiB);
    others_read();
  }
}

TEST_F(GuestReachTest, WhatAnotherThreadFoundOfALibraryIsTheLibrarys) {
  auto code = static_cast<CUlibrary>(kKept);
  grows_in("cuLibraryLoadData", 1);
  EXPECT_EQ(code_load(&code), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(code, kKept);
  EXPECT_EQ(held_on(1), 30 * kMiB) << "it was unloaded";
  // What was there before it is not.
  above_make(1);
  EXPECT_EQ(code_load(&code), CUDA_SUCCESS);
  EXPECT_EQ(held_on(1), kGiB + kMiB);
}

TEST_F(GuestReachTest, WhatAnotherThreadFoundOnTheOtherGpuIsNoModules) {
  auto module = static_cast<CUmodule>(kKept);
  grows_in("cuModuleLoadData", 1);
  EXPECT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
  EXPECT_EQ(held_on(1), kGiB + kMiB);
  grows_in("cuModuleLoadData", 0);
  EXPECT_EQ(cuModuleLoadData(&module, ""), CUDA_ERROR_OUT_OF_MEMORY);
}

// The figure of a module's load shows another thread's on the other GPU: it is charged there, and
// that one's own to answer for.
TEST_F(GuestReachTest, WhatAModulesReadingFindsOnTheOtherGpuIsChargedThere) {
  CUmodule module = nullptr;
  figure(1, kGiB + kMiB);
  EXPECT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
  EXPECT_EQ(held_on(1), kGiB + kMiB);
  EXPECT_EQ(broker->account(0, 0).refused.load() + broker->account(0, 1).refused.load(), 0u);
}

// While another thread is within a call that changes the account, nobody can tell what a library
// has taken.
TEST_F(GuestReachTest, AboveTheQuotaALibraryThatCannotBeReadIsRefused) {
  auto code = static_cast<CUlibrary>(kKept);
  CUmodule module = nullptr;
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_SUCCESS);
  figure(0, 31 * kMiB);
  above_make(1);
  blocked = true;
  std::thread frees([&] { EXPECT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS); });
  ASSERT_TRUE(eventually([&] { return waits.load(); }));
  EXPECT_EQ(code_load(&code), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(code, kKept);
  figure(1, kGiB + kMiB);  // it was another's
  EXPECT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
  blocked = false;
  frees.join();
}

}  // namespace
