// Where NVML lists nobody, as in containers: loads are charged by what the device has left, and
// while nobody else is on the GPU that is its own account to the byte.
#include <stdlib.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/interpose/softgpu_fixture.h"
#include "tests/interpose/softgpu_modules.h"

namespace {

using namespace sluice::test;

class SoftGpuEstimateTest : public SoftGpuTest {
 protected:
  SoftGpuEstimateTest() : SoftGpuTest({.listed = false}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  void broker_restart() {
    broker->die();
    auto next = std::make_unique<TestBroker>(kQuota, kContext);
    next->gpu_uuid_set(devices[0]->settings().uuid);
    next->host_pid_hide();
    next->lease_store(sluice::protocol::kLeaseOpen);
    next->path_take(*broker);
    broker = std::move(next);
    ASSERT_TRUE(eventually([&] { return broker->registrations() > 0; }));
  }
  void holds(size_t bytes, const char* when) {
    EXPECT_EQ(held(), kContext + bytes) << when;
    agrees(when);
    EXPECT_EQ(broker->account().measured.load(), 0u) << when;
  }
};

TEST_F(SoftGpuEstimateTest, AModuleIsChargedAndGivenBack) {
  CUmodule module = nullptr, other = nullptr;
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuModuleLoadData(&module, module_text(5 * kMiB).c_str()), CUDA_SUCCESS);
  holds(5 * kMiB, "loaded");
  ASSERT_EQ(cuMemAlloc(&pointer, 7 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleLoadData(&other, module_text(3 * kMiB).c_str()), CUDA_SUCCESS);
  holds(15 * kMiB, "a second one beside an allocation");
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  holds(10 * kMiB, "unloaded");
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleUnload(other), CUDA_SUCCESS);
  holds(0, "nothing left");
}

TEST_F(SoftGpuEstimateTest, AModuleThatDoesNotFitIsTakenBack) {
  auto* const untouched = reinterpret_cast<CUmodule>(0x77);
  CUmodule module = untouched;
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuModuleLoadData(&module, module_text(69 * kMiB).c_str()), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: refused 69.0 MiB: you use 32.0 of your 100.0 MiB on GPU 0. The program sees "
            "CUDA out of memory.\n");
  EXPECT_EQ(module, untouched);
  holds(0, "taken back");
  EXPECT_EQ(cuModuleLoadData(&module, module_text(68 * kMiB).c_str()), CUDA_SUCCESS);
  holds(68 * kMiB, "to the last byte");
}

TEST_F(SoftGpuEstimateTest, WhatComesLateIsItsLibrarys) {
  CUlibrary library = nullptr, large = nullptr;
  CUkernel kernel = nullptr;
  CUdeviceptr variable = 0x77;
  const auto load = [](CUlibrary* out, size_t bytes) {
    return cuLibraryLoadData(out, module_text(bytes).c_str(), nullptr, nullptr, 0, nullptr, nullptr,
                             0);
  };
  ASSERT_EQ(load(&library, 3 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_SUCCESS);
  holds(3 * kMiB, "its variable");
  ASSERT_EQ(load(&large, 66 * kMiB), CUDA_SUCCESS);
  variable = 0x77;
  EXPECT_EQ(cuLibraryGetGlobal(&variable, nullptr, large, "room"), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(variable, 0x77u);
  holds(3 * kMiB, "it surely does not fit");
  ASSERT_EQ(cuLibraryUnload(large), CUDA_SUCCESS);
  // That is not known of an image that does not tell its size.
  ASSERT_EQ(cuLibraryLoadData(&large, unsized_image(66 * kMiB).data(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryGetGlobal(&variable, nullptr, large, "room"), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(variable, 0x77u);
  holds(69 * kMiB, "it is there");
  EXPECT_EQ(cuLibraryGetGlobal(&variable, nullptr, large, "room"), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryGetGlobal(&variable, nullptr, large, "room"), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryUnload(large), CUDA_SUCCESS);
  holds(0, "unloaded");
}

// Whatever is asked for, and with whatever handle: it goes with its library.
TEST_F(SoftGpuEstimateTest, WhatAKernelLoadsGoesWithItsLibrary) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  for (int i = 0; i < 3; ++i) {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    ASSERT_EQ(cuLibraryLoadData(&library, module_text(20 * kMiB).c_str(), nullptr, nullptr, 0,
                                nullptr, nullptr, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
    ASSERT_EQ(cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
    ASSERT_EQ(cuFuncLoad(function), CUDA_SUCCESS);
    holds(20 * kMiB, "its function");
    ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    holds(0, "unloaded");
  }
}

// A kernel belongs to no context: asked about, it is loaded into the current one.
TEST_F(SoftGpuEstimateTest, WhatAQuestionAboutAKernelLoadsGoesWithItsLibrary) {
  const auto blocks = [](CUkernel kernel, int* count) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(count, reinterpret_cast<CUfunction>(kernel),
                                                       32, 0);
  };
  for (int i = 0; i < 3; ++i) {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    ASSERT_EQ(cuLibraryLoadData(&library, module_text(15 * kMiB).c_str(), nullptr, nullptr, 0,
                                nullptr, nullptr, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
    holds(0, "loaded into no context");
    int count = 0;
    EXPECT_EQ(blocks(kernel, nullptr), CUDA_ERROR_INVALID_VALUE);
    holds(15 * kMiB, "asked about");
    ASSERT_EQ(blocks(kernel, &count), CUDA_SUCCESS);
    EXPECT_GT(count, 0);
    ASSERT_EQ(blocks(kernel, &count), CUDA_SUCCESS);
    holds(15 * kMiB, "asked again");
    // Each context has its own.
    CUcontext own = nullptr;
    ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(blocks(kernel, &count), CUDA_SUCCESS);
    EXPECT_GT(held(), kContext + 30 * kMiB);
    agrees("asked about in a second context");
    ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
    holds(15 * kMiB, "the second context is gone");
    ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    holds(0, "unloaded");
  }
}

TEST_F(SoftGpuEstimateTest, EachContextHasItsOwn) {
  CUlibrary library = nullptr;
  CUdeviceptr variable = 0;
  CUcontext own = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, module_text(3 * kMiB).c_str(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1536), CUDA_SUCCESS);
    EXPECT_GT(held(), 2 * kContext + 6 * kMiB);
    agrees("loaded in a second context, with a limit of its own");
    ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
    holds(3 * kMiB, "the second context is gone");
  }
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  holds(kContext, "unloaded from both");
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
}

// Threads that allocate, and threads that load, at the same time: each load is charged what it
// takes and no more.
TEST_F(SoftGpuEstimateTest, LoadsAreChargedRightBesideOthers) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      for (int i = 0; !stop; ++i) {
        CUdeviceptr pointer = 0;
        EXPECT_EQ(cuMemAlloc(&pointer, static_cast<size_t>(1 + (i * 37 + t) % 5000)), CUDA_SUCCESS);
        EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
      }
    });
  }
  std::vector<CUmodule> modules(8);
  std::vector<std::thread> loading;
  for (CUmodule& module : modules) {
    loading.emplace_back([&] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(cuModuleLoadData(&module, module_text(2 * kMiB).c_str()), CUDA_SUCCESS);
        if (i == 4) break;
        EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
      }
    });
  }
  for (std::thread& thread : loading) thread.join();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  holds(16 * kMiB, "eight modules");
  for (const CUmodule module : modules) EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  holds(0, "unloaded");
}

TEST_F(SoftGpuEstimateTest, WhatAContextHadGoesWithIt) {
  CUcontext own = nullptr;
  CUmodule module = nullptr;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleLoadData(&module, module_text(5 * kMiB).c_str()), CUDA_SUCCESS);
  holds(kContext + 5 * kMiB, "loaded");
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  holds(0, "destroyed");
}

TEST_F(SoftGpuEstimateTest, LimitsAreChargedLoweredAndSetBack) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_SUCCESS);
  const uint64_t taken = held() - kContext;
  EXPECT_GT(taken, 0u);
  holds(taken, "raised");
  CUdeviceptr rest = 0;
  ASSERT_EQ(cuMemAlloc(&rest, kQuota - held()), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096), CUDA_ERROR_OUT_OF_MEMORY);
  size_t value = 0;
  ASSERT_EQ(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  EXPECT_EQ(value, 2048u);
  ASSERT_EQ(cuMemFree(rest), CUDA_SUCCESS);
  holds(taken, "set back");
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), CUDA_SUCCESS);
  holds(0, "lowered");
}

// A restarted broker gets the whole account again.
TEST_F(SoftGpuEstimateTest, TheEstimateIsInTheAccountThatANewBrokerGets) {
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, module_text(5 * kMiB).c_str()), CUDA_SUCCESS);
  broker_restart();
  EXPECT_TRUE(eventually([this] { return held() == kContext + 5 * kMiB; })) << held();
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  holds(0, "unloaded");
}

}  // namespace
