// What no driver call tells: contexts, modules, limits. The ledger has it from the device's own
// figure, so it is right whatever the broker said of contexts.
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <thread>

#include "tests/interpose/softgpu_residual.h"

namespace {

using namespace sluice::test;

TEST_F(SoftGpuResidualTest, AModulesVariablesAreChargedAndComeBack) {
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, module_text(5 * kMiB).c_str()), CUDA_SUCCESS);
  holds(5 * kMiB, "loaded");
  EXPECT_EQ(broker->account().context_bytes.load(), kContext + 5 * kMiB);
  EXPECT_EQ(broker->account().measured.load(), 1u);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc(&pointer, kQuota - kContext - 5 * kMiB + 1), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAlloc(&pointer, kQuota - kContext - 5 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(held(), kQuota);
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(held(), kQuota - 5 * kMiB);
  agrees("unloaded");
}

TEST_F(SoftGpuResidualTest, AModuleThatDoesNotFitIsTakenBack) {
  auto* const untouched = reinterpret_cast<CUmodule>(0x77);
  CUmodule module = untouched;
  const std::string fits = module_text(kQuota - kContext), too_much = module_text(69 * kMiB);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuModuleLoadData(&module, too_much.c_str()), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: refused 69.0 MiB: you use 32.0 of your 100.0 MiB on GPU 0. The program sees "
            "CUDA out of memory.\n");
  EXPECT_EQ(module, untouched);
  EXPECT_EQ(broker->account().refused.load(), 1u);
  holds(0, "taken back");
  EXPECT_EQ(cuModuleLoadDataEx(&module, too_much.c_str(), 0, nullptr, nullptr),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(module, untouched);
  ASSERT_EQ(cuModuleLoadData(&module, fits.c_str()), CUDA_SUCCESS);
  holds(kQuota - kContext, "to the last byte");
  CUdeviceptr pointer = 5;
  EXPECT_EQ(cuMemAlloc(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pointer, 5u);
}

// Every call that loads code.
struct Loader {
  const char* name;
  bool library;
  CUresult (*load)(const char* text, const char* path, void** out);
};
const Loader kLoaders[] = {
    {"cuModuleLoad", false,
     [](const char*, const char* path, void** out) {
       return cuModuleLoad(reinterpret_cast<CUmodule*>(out), path);
     }},
    {"cuModuleLoadData", false,
     [](const char* text, const char*, void** out) {
       return cuModuleLoadData(reinterpret_cast<CUmodule*>(out), text);
     }},
    {"cuModuleLoadDataEx", false,
     [](const char* text, const char*, void** out) {
       return cuModuleLoadDataEx(reinterpret_cast<CUmodule*>(out), text, 0, nullptr, nullptr);
     }},
    {"cuModuleLoadFatBinary", false,
     [](const char* text, const char*, void** out) {
       return cuModuleLoadFatBinary(reinterpret_cast<CUmodule*>(out), text);
     }},
    {"cuLibraryLoadData", true,
     [](const char* text, const char*, void** out) {
       return cuLibraryLoadData(reinterpret_cast<CUlibrary*>(out), text, nullptr, nullptr, 0,
                                nullptr, nullptr, 0);
     }},
    {"cuLibraryLoadFromFile", true,
     [](const char*, const char* path, void** out) {
       return cuLibraryLoadFromFile(reinterpret_cast<CUlibrary*>(out), path, nullptr, nullptr, 0,
                                    nullptr, nullptr, 0);
     }},
};

TEST_F(SoftGpuResidualTest, EveryCallThatLoadsIsMeasured) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const std::string path = directory + "/code.ptx";
  for (const Loader& loader : kLoaders) {
    for (const size_t mib : {5, 69}) {
      const std::string text = module_text(mib * kMiB);
      FILE* file = fopen(path.c_str(), "w");
      ASSERT_NE(file, nullptr);
      fputs(text.c_str(), file);
      fclose(file);
      auto* const untouched = reinterpret_cast<void*>(0x77);
      void* out = untouched;
      const CUresult result = loader.load(text.c_str(), path.c_str(), &out);
      // A library's variables are in no context before something of it is asked for there.
      if (result == CUDA_SUCCESS && loader.library) {
        CUdeviceptr at = 0;
        EXPECT_EQ(cuLibraryGetGlobal(&at, nullptr, static_cast<CUlibrary>(out), "room"),
                  mib == 5 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY)
            << loader.name;
      }
      agrees(loader.name);
      if (result != CUDA_SUCCESS) {
        EXPECT_EQ(mib, 69u) << loader.name;
        EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY) << loader.name;
        EXPECT_EQ(out, untouched) << loader.name;
      } else if (loader.library) {
        EXPECT_EQ(held(), kContext + (mib == 5 ? mib * kMiB : 0)) << loader.name;
        ASSERT_EQ(cuLibraryUnload(static_cast<CUlibrary>(out)), CUDA_SUCCESS);
      } else {
        EXPECT_EQ(mib, 5u) << loader.name << " passed the quota";
        EXPECT_EQ(held(), kContext + mib * kMiB) << loader.name;
        ASSERT_EQ(cuModuleUnload(static_cast<CUmodule>(out)), CUDA_SUCCESS);
      }
      holds(0, loader.name);
    }
  }
}

TEST_F(SoftGpuResidualTest, WhatTheDriverDoesNotLoadIsNotCharged) {
  auto* const untouched = reinterpret_cast<CUmodule>(0x77);
  CUmodule module = untouched;
  EXPECT_NE(cuModuleLoadData(&module, "not a module"), CUDA_SUCCESS);
  EXPECT_EQ(module, untouched);
  EXPECT_EQ(cuModuleLoadData(nullptr, "not a module"), CUDA_ERROR_INVALID_VALUE);
  holds(0, "refused by the driver");
}

TEST_F(SoftGpuResidualTest, ThePrintfBufferComesWithItsFirstUser) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 8 * kMiB), CUDA_SUCCESS);
  holds(0, "the limit alone");
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kPrinter), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&function, module, "k"), CUDA_SUCCESS);
  agrees("its user is loaded");
  EXPECT_GE(held(), kContext + 8 * kMiB);
}

TEST_F(SoftGpuResidualTest, StacksAreChargedWhenTheLimitTakesThem) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_SUCCESS);
  const uint64_t more = held() - kContext;
  EXPECT_GT(more, 0u);
  agrees("raised");
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), CUDA_SUCCESS);
  holds(0, "lowered");
  EXPECT_NE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, size_t{1} << 40), CUDA_SUCCESS);
  holds(0, "refused by the driver");
}

TEST_F(SoftGpuResidualTest, AStackLimitThatDoesNotFitIsSetBack) {
  size_t before = 0, value = 0;
  ASSERT_EQ(cuCtxGetLimit(&before, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  CUdeviceptr rest = 0;
  ASSERT_EQ(cuMemAlloc(&rest, kQuota - held()), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  EXPECT_EQ(value, before);
  EXPECT_EQ(held(), kQuota);
  agrees("set back");
  ASSERT_EQ(cuMemFree(rest), CUDA_SUCCESS);
  holds(0, "as before");
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_SUCCESS);
  EXPECT_GT(held(), kContext);
  agrees("it fits now");
}

TEST_F(SoftGpuResidualTest, LocalMemoryThatALaunchTakesIsCharged) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr out = 0;
  ASSERT_EQ(cuMemAlloc(&out, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleLoadData(&module, kStackUser), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&function, module, "deep"), CUDA_SUCCESS);
  const uint64_t before = held();
  ASSERT_EQ(launch_of(function, out), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_GT(held(), before + kMiB);
  agrees("launched");
}

// The broker's probe was wrong, or there was none.
class SoftGpuWrongProbeTest : public SoftGpuResidualTest {
 protected:
  SoftGpuWrongProbeTest() : SoftGpuResidualTest({.context_told = 20 * kMiB}) {}
};

TEST_F(SoftGpuWrongProbeTest, AContextCostsWhatTheDeviceSays) {
  holds(0, "the primary context");
  CUcontext own = nullptr;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  holds(kContext, "a second one");
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  holds(0, "destroyed");
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  EXPECT_EQ(held(), 0u);
  agrees("reset");
}

TEST_F(SoftGpuResidualTest, AContextThatDoesNotFitIsNotMade) {
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc(&pointer, kQuota - 2 * kContext + 1), CUDA_SUCCESS);
  auto* const untouched = reinterpret_cast<CUcontext>(0x77);
  CUcontext own = untouched;
  EXPECT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(own, untouched);
  holds(kQuota - 2 * kContext + 1, "refused");
}

TEST_F(SoftGpuResidualTest, APrimaryContextThatDoesNotFitIsNotMade) {
  ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  CUcontext own = nullptr;
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&pointer, kQuota - 2 * kContext + 1), CUDA_SUCCESS);
  auto* const untouched = reinterpret_cast<CUcontext>(0x77);
  CUcontext primary = untouched;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(primary, untouched);
  holds(kQuota - 2 * kContext + 1, "refused");
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
  holds(kContext, "it fits now");
}

// Others of the process allocate all the time: each reading is of one instant all the same.
TEST_F(SoftGpuResidualTest, LoadsAreChargedRightWhileOthersAllocate) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int t = 0; t < 3; ++t) {
    others.emplace_back([&, t] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      for (int i = 0; !stop; ++i) {
        CUdeviceptr pointer = 0;
        EXPECT_EQ(cuMemAlloc(&pointer, static_cast<size_t>(1 + (i * 37 + t) % 5000)), CUDA_SUCCESS);
        EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, module_text(kMiB).c_str()), CUDA_SUCCESS);
    if (broker->account().context_bytes.load() != kContext + kMiB) {
      EXPECT_TRUE(
          eventually([&] { return broker->account().context_bytes.load() == kContext + kMiB; }));
    }
    ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  }
  stop = true;
  for (auto& other : others) other.join();
}

}  // namespace
