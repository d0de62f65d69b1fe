// What no driver call tells: contexts, modules, functions that are loaded late, limits. The ledger
// has it from the device's own figure, so it is right whatever the broker said of contexts.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/interpose/softgpu_launch.h"
#include "tests/interpose/softgpu_modules.h"

namespace {

using namespace sluice::test;

class SoftGpuResidualTest : public SoftGpuTest {
 protected:
  using SoftGpuTest::SoftGpuTest;
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  void holds(size_t bytes, const char* when) {
    EXPECT_EQ(held(), kContext + bytes) << when;
    agrees(when);
  }
};

// A kernel that allocates: the device's heap is taken when it is loaded.
constexpr char kPrinter[] = R"(
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf(.param .b64 vprintf_param_0, .param .b64 vprintf_param_1);
.global .align 1 .b8 text[3] = {104, 10, 0};
.visible .entry k()
{
  .reg .b64 %rd<3>;
  mov.u64 %rd1, text;
  cvta.global.u64 %rd1, %rd1;
  mov.u64 %rd2, 0;
  {
    .param .b64 param0;
    st.param.b64 [param0], %rd1;
    .param .b64 param1;
    st.param.b64 [param1], %rd2;
    .param .b32 retval0;
    call (retval0), vprintf, (param0, param1);
  }
  ret;
}
)";

constexpr char kHeapUser[] = R"(
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 func_retval0) malloc(.param .b64 malloc_param_0);
.visible .entry k(.param .u64 p0)
{
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p0];
  cvta.to.global.u64 %rd2, %rd1;
  {
    .param .b64 param0;
    st.param.b64 [param0], 16;
    .param .b64 retval0;
    call (retval0), malloc, (param0);
    ld.param.b64 %rd3, [retval0];
  }
  st.global.u64 [%rd2], %rd3;
  ret;
}
)";

// Its threads need more local memory than a stack has by default.
constexpr char kStackUser[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry deep(.param .u64 p0)
{
  .local .align 8 .b8 room[1536];
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [p0];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, 3;
  st.local.u32 [room], %r1;
  ld.local.u32 %r1, [room];
  st.global.u32 [%rd2], %r1;
  ret;
}
)";

CUresult launch_of(CUfunction function, CUdeviceptr out) {
  void* parameters[] = {&out};
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
}

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
        EXPECT_EQ(held(), kContext + mib * kMiB) << loader.name;
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

TEST_F(SoftGpuResidualTest, ALibraryIsChargedWhereverItsCodeIsLoaded) {
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, module_text(3 * kMiB).c_str(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  agrees("loaded");
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
  agrees("a kernel");
  ASSERT_EQ(cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
  holds(3 * kMiB, "its function in this context");
  ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  holds(0, "unloaded");
}

TEST_F(SoftGpuResidualTest, AKernelThatIsLoadedByItsFirstLaunchIsChargedThen) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, module_text(3 * kMiB).c_str(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  CUdeviceptr out = 0;
  ASSERT_EQ(cuMemAlloc(&out, 4), CUDA_SUCCESS);
  // A burst of others, until launches go the short way.
  CUmodule module = nullptr;
  CUfunction other = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, module_text(4).c_str()), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&other, module, "store"), CUDA_SUCCESS);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(launch_of(other, out), CUDA_SUCCESS);
  holds(4 + 4, "before");
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
  ASSERT_EQ(launch_of(reinterpret_cast<CUfunction>(kernel), out), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  holds(3 * kMiB + 4 + 4, "launched");
}

TEST_F(SoftGpuResidualTest, UnderAnExclusiveLeaseTheHelperNoticesWhatALaunchLoads) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUdeviceptr out = 0;
  broker->lease_store(sluice::protocol::kLeaseOpen | sluice::protocol::kLeaseExclusive);
  ASSERT_EQ(cuMemAlloc(&out, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryLoadData(&library, module_text(3 * kMiB).c_str(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
  ASSERT_EQ(launch_of(reinterpret_cast<CUfunction>(kernel), out), CUDA_SUCCESS);
  EXPECT_TRUE(eventually([&] { return held() == kContext + 3 * kMiB + 4; })) << held();
}

TEST_F(SoftGpuResidualTest, FunctionsThatAreListedOrLoadedOnRequest) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), CUDA_SUCCESS);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kHeapUser), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleEnumerateFunctions(&function, 1, module), CUDA_SUCCESS);
  agrees("listed");
  ASSERT_EQ(cuFuncLoad(function), CUDA_SUCCESS);
  holds(8 * kMiB, "loaded");
}

TEST_F(SoftGpuResidualTest, AHeapThatDoesNotFitIsChargedAndItsUserIsWithheld) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 80 * kMiB), CUDA_SUCCESS);
  holds(0, "the limit alone");
  CUmodule module = nullptr;
  auto* const untouched = reinterpret_cast<CUfunction>(0x77);
  CUfunction function = untouched;
  CUdeviceptr rest = 0;
  ASSERT_EQ(cuModuleLoadData(&module, kHeapUser), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleGetFunction(&function, module, "k"), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(function, untouched);
  holds(80 * kMiB, "nothing but the context's end takes it back");
  // What comes later is refused, and the view shows nothing left.
  EXPECT_EQ(cuModuleGetFunction(&function, module, "k"), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&rest, 1), CUDA_ERROR_OUT_OF_MEMORY);
  size_t free_bytes = 1, total_bytes = 0;
  ASSERT_EQ(cuMemGetInfo(&free_bytes, &total_bytes), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, 0u);
  EXPECT_EQ(total_bytes, kQuota);
}

// What comes late with one call: its name, what it takes, and the call, whose output is untouched
// when it is refused.
struct Late {
  const char* name;
  CUresult (*get)(CUlibrary library, void** out);
};
const Late kLate[] = {
    {"cuLibraryGetGlobal",
     [](CUlibrary library, void** out) {
       return cuLibraryGetGlobal(reinterpret_cast<CUdeviceptr*>(out), nullptr, library, "room");
     }},
    {"cuLibraryGetModule",
     [](CUlibrary library, void** out) {
       return cuLibraryGetModule(reinterpret_cast<CUmodule*>(out), library);
     }},
    {"cuKernelGetFunction",
     [](CUlibrary library, void** out) {
       CUkernel kernel = nullptr;
       const CUresult result = cuLibraryGetKernel(&kernel, library, "store");
       if (result != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;  // it loads nothing
       return cuKernelGetFunction(reinterpret_cast<CUfunction*>(out), kernel);
     }},
};

CUlibrary library_make(size_t bytes) {
  CUlibrary library = nullptr;
  EXPECT_EQ(cuLibraryLoadData(&library, module_text(bytes).c_str(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  return library;
}

TEST_F(SoftGpuResidualTest, WhatComesLateAndDoesNotFitIsChargedAndWithheld) {
  void* const untouched = reinterpret_cast<void*>(0x77);
  for (const Late& late : kLate) {
    CUdeviceptr room = 0;
    ASSERT_EQ(cuMemAlloc(&room, 10 * kMiB), CUDA_SUCCESS);
    CUlibrary library = library_make(60 * kMiB);
    void* out = untouched;
    const uint64_t refused = broker->account().refused.load();
    EXPECT_EQ(late.get(library, &out), CUDA_ERROR_OUT_OF_MEMORY) << late.name;
    EXPECT_EQ(out, untouched) << late.name;
    EXPECT_EQ(broker->account().refused.load(), refused + 1) << late.name;
    holds(70 * kMiB, late.name);
    // Another time it is there already, and withheld as long as the tenant is above its quota.
    EXPECT_EQ(late.get(library, &out), CUDA_ERROR_OUT_OF_MEMORY) << late.name;
    EXPECT_EQ(out, untouched) << late.name;
    ASSERT_EQ(cuMemFree(room), CUDA_SUCCESS);
    EXPECT_EQ(late.get(library, &out), CUDA_SUCCESS) << late.name;
    EXPECT_NE(out, untouched) << late.name;
    holds(60 * kMiB, late.name);
    ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    holds(0, late.name);
  }
}

TEST_F(SoftGpuResidualTest, AHandleThatIsKnownIsGivenOutAboveTheQuota) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, module_text(4).c_str()), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&function, module, "store"), CUDA_SUCCESS);
  CUlibrary library = library_make(69 * kMiB);
  CUdeviceptr out = 0;
  EXPECT_EQ(cuLibraryGetGlobal(&out, nullptr, library, "room"), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuModuleGetFunction(&function, module, "store"), CUDA_SUCCESS);
}

TEST_F(SoftGpuResidualTest, AFunctionLoadedOnRequestThatDoesNotFitIsRefused) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 80 * kMiB), CUDA_SUCCESS);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kHeapUser), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleEnumerateFunctions(&function, 1, module), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncLoad(function), CUDA_ERROR_OUT_OF_MEMORY);
  holds(80 * kMiB, "charged");
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

// A thread that frees behind a long kernel is within its call for as long as that takes, and no
// reading is of one instant meanwhile. What surely does not fit is refused all the same.
class SoftGpuBusyNeighbourTest : public SoftGpuLaunchTest {
 protected:
  static constexpr unsigned kLong = 2'000'000;
  void SetUp() override {
    SoftGpuLaunchTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
    kernel_load();
    ASSERT_EQ(cuMemAlloc(&blocked, 10 * kMiB), CUDA_SUCCESS);
    ASSERT_EQ(launch(kLong), CUDA_SUCCESS);
    freer = std::thread([this] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      EXPECT_EQ(cuMemFree(blocked), CUDA_SUCCESS);
      freed = true;
    });
    usleep(100'000);
  }
  void TearDown() override {
    freer.join();
    EXPECT_TRUE(eventually([this] { return difference().empty(); })) << difference();
    SoftGpuLaunchTest::TearDown();
  }
  void still_busy() { EXPECT_FALSE(freed) << "the kernel was too short to say anything"; }
  CUdeviceptr blocked = 0;
  std::atomic<bool> freed{false};
  std::thread freer;
};

TEST_F(SoftGpuBusyNeighbourTest, ALoadThatDoesNotFitIsTakenBack) {
  auto* const untouched = reinterpret_cast<CUmodule>(0x77);
  CUmodule module = untouched;
  CUmodule fits = nullptr;
  ASSERT_EQ(cuModuleLoadData(&fits, module_text(50 * kMiB).c_str()), CUDA_SUCCESS);
  const uint64_t charged = held();
  still_busy();
  EXPECT_EQ(charged, kContext + 4 + 10 * kMiB + 50 * kMiB) << "what is surely there";
  EXPECT_EQ(cuModuleLoadData(&module, module_text(20 * kMiB).c_str()), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(module, untouched);
}

TEST_F(SoftGpuBusyNeighbourTest, WhatComesLateAndDoesNotFitIsWithheld) {
  CUlibrary library = library_make(60 * kMiB);
  CUdeviceptr variable = 0x77;
  EXPECT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(variable, 0x77u);
  still_busy();
  freer.join();
  EXPECT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_SUCCESS);
  freer = std::thread([] {});
}

}  // namespace
