// What comes after the load: functions and variables that are loaded late, memory that comes back
// late, and readings beside threads that are busy.
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/interpose/softgpu_launch.h"
#include "tests/interpose/softgpu_residual.h"

namespace {

using namespace sluice::test;

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

// A launch that a capture of another stream forbids is refused after its code was loaded.
TEST_F(SoftGpuResidualTest, ALaunchThatIsRefusedMayHaveLoadedItsCode) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUstream capturing = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, module_text(3 * kMiB).c_str(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&capturing, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  usleep(100'000);  // what the handle's coming made the helper look for is looked for
  ASSERT_EQ(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(reinterpret_cast<CUfunction>(kernel), 0), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  ASSERT_EQ(device_bytes(), kContext + 3 * kMiB) << "nothing was loaded";
  EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
  EXPECT_EQ(cuStreamEndCapture(capturing, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
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

// A heap of the default size, which nothing has reserved.
TEST_F(SoftGpuResidualTest, AHeapThatDoesNotFitIsChargedAndItsUserIsWithheld) {
  CUdeviceptr room = 0;
  ASSERT_EQ(cuMemAlloc(&room, kQuota - kContext - 8 * kMiB + 1), CUDA_SUCCESS);
  CUmodule module = nullptr;
  auto* const untouched = reinterpret_cast<CUfunction>(0x77);
  CUfunction function = untouched;
  CUdeviceptr rest = 0;
  ASSERT_EQ(cuModuleLoadData(&module, kHeapUser), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleGetFunction(&function, module, "k"), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(function, untouched);
  holds(kQuota - kContext + 1, "nothing but the context's end takes it back");
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

CUlibrary library_make(const void* image) {
  CUlibrary library = nullptr;
  EXPECT_EQ(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  return library;
}
CUlibrary sized_make(size_t bytes) { return library_make(module_text(bytes).c_str()); }
// No image tells before what it takes.
CUlibrary unsized_make(size_t bytes) { return library_make(unsized_image(bytes).data()); }

// Loads the library into the current context, as a question about one of its kernels does.
void kernel_ask(CUlibrary library) {
  CUkernel kernel = nullptr;
  int blocks = 0;
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
  ASSERT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &blocks, reinterpret_cast<CUfunction>(kernel), 32, 0),
            CUDA_SUCCESS);
}

TEST_F(SoftGpuResidualTest, WhatComesLateAndDoesNotFitIsChargedAndWithheld) {
  void* const untouched = reinterpret_cast<void*>(0x77);
  for (const Late& late : kLate) {
    CUdeviceptr room = 0;
    ASSERT_EQ(cuMemAlloc(&room, 10 * kMiB), CUDA_SUCCESS);
    CUlibrary library = unsized_make(60 * kMiB);
    void* out = untouched;
    const uint64_t refused = broker->account().refused.load();
    kernel_ask(library);
    EXPECT_EQ(broker->account().refused.load(), refused + 1) << late.name;
    holds(70 * kMiB, late.name);
    // It is there, and withheld as long as the tenant is above its quota.
    EXPECT_EQ(late.get(library, &out), CUDA_ERROR_OUT_OF_MEMORY) << late.name;
    EXPECT_EQ(out, untouched) << late.name;
    holds(70 * kMiB, late.name);
    ASSERT_EQ(cuMemFree(room), CUDA_SUCCESS);
    EXPECT_EQ(late.get(library, &out), CUDA_SUCCESS) << late.name;
    EXPECT_NE(out, untouched) << late.name;
    holds(60 * kMiB, late.name);
    ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    holds(0, late.name);
  }
}

TEST_F(SoftGpuResidualTest, WhatSurelyComesLateAndDoesNotFitIsRefusedBefore) {
  void* const untouched = reinterpret_cast<void*>(0x77);
  for (const Late& late : kLate) {
    CUdeviceptr room = 0;
    ASSERT_EQ(cuMemAlloc(&room, 10 * kMiB), CUDA_SUCCESS);
    CUlibrary library = sized_make(60 * kMiB);
    void* out = untouched;
    const uint64_t refused = broker->account().refused.load();
    for (uint64_t i = 1; i <= 2; ++i) {
      EXPECT_EQ(late.get(library, &out), CUDA_ERROR_OUT_OF_MEMORY) << late.name;
      EXPECT_EQ(out, untouched) << late.name;
      EXPECT_EQ(broker->account().refused.load(), refused + i) << late.name;
      holds(10 * kMiB, late.name);
    }
    EXPECT_LE(device_peak(), kQuota) << late.name;
    ASSERT_EQ(cuMemFree(room), CUDA_SUCCESS);
    EXPECT_EQ(late.get(library, &out), CUDA_SUCCESS) << late.name;
    holds(60 * kMiB, late.name);
    // What is there is no more to be asked for.
    ASSERT_EQ(cuMemAlloc(&room, kQuota - held()), CUDA_SUCCESS);
    CUmodule module = nullptr;
    EXPECT_EQ(cuLibraryGetModule(&module, library), CUDA_SUCCESS) << late.name;
    ASSERT_EQ(cuMemFree(room), CUDA_SUCCESS);
    ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    holds(0, late.name);
  }
}

TEST_F(SoftGpuResidualTest, AHandleThatIsKnownIsGivenOutAboveTheQuota) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, module_text(4).c_str()), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&function, module, "store"), CUDA_SUCCESS);
  kernel_ask(unsized_make(69 * kMiB));
  EXPECT_EQ(cuModuleGetFunction(&function, module, "store"), CUDA_SUCCESS);
}

TEST_F(SoftGpuResidualTest, AFunctionLoadedOnRequestThatDoesNotFitIsRefused) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  CUdeviceptr room = 0;
  ASSERT_EQ(cuMemAlloc(&room, kQuota - kContext - 8 * kMiB + 1), CUDA_SUCCESS);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kHeapUser), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleEnumerateFunctions(&function, 1, module), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncLoad(function), CUDA_ERROR_OUT_OF_MEMORY);
  holds(kQuota - kContext + 1, "charged");
}

class SoftGpuDeferredTest : public SoftGpuLaunchTest {
 protected:
  void SetUp() override {
    SoftGpuLaunchTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
    kernel_load();
  }
};

// Freed in stream order behind a long kernel that nobody waits for: the helper finds out when the
// device has it back.
TEST_F(SoftGpuDeferredTest, WhatNobodyWaitsForComesBackAllTheSame) {
  CUdeviceptr plain = 0;
  ASSERT_EQ(cuMemAlloc(&plain, 10 * kMiB), CUDA_SUCCESS);
  const uint64_t with = held();
  ASSERT_EQ(launch(2'000'000), CUDA_SUCCESS);  // a second and more
  ASSERT_EQ(cuMemFreeAsync(plain, nullptr), CUDA_SUCCESS);
  usleep(200'000);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY) << "the kernel was too short";
  EXPECT_EQ(held(), with) << "the device has it still";
  EXPECT_TRUE(eventually([&] { return held() == with - 10 * kMiB; })) << held();
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
  CUlibrary library = unsized_make(60 * kMiB);
  CUdeviceptr variable = 0x77;
  kernel_ask(library);
  EXPECT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(variable, 0x77u);
  still_busy();
  freer.join();
  EXPECT_EQ(cuLibraryGetGlobal(&variable, nullptr, library, "room"), CUDA_SUCCESS);
  freer = std::thread([] {});
}

// A thread that frees behind a kernel is within its call meanwhile. What the device has back, the
// others get as soon as that can be read, however many of them ask at the same time.
class SoftGpuStoppedNeighbourTest : public SoftGpuBusyNeighbourTest {
 protected:
  static constexpr size_t kFreed = 20 * kMiB;
  void SetUp() override {
    SoftGpuBusyNeighbourTest::SetUp();
    const CUstream other = stream_make();
    for (CUdeviceptr& one : freed_behind) {
      ASSERT_EQ(cuMemAlloc(&one, kFreed), CUDA_SUCCESS);
      ASSERT_EQ(cuMemFreeAsync(one, other), CUDA_SUCCESS);
    }
  }
  static CUstream stream_make() {
    CUstream stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
  }
  CUdeviceptr freed_behind[2] = {};
};

TEST_F(SoftGpuStoppedNeighbourTest, WhatTheDeviceHasBackIsNotRefused) {
  CUdeviceptr again = 0;
  still_busy();
  EXPECT_EQ(cuMemAlloc(&again, 2 * kFreed), CUDA_SUCCESS);
}

TEST_F(SoftGpuStoppedNeighbourTest, NorToSeveralThatAskAtOnce) {
  std::vector<std::thread> askers;
  for (int i = 0; i < 3; ++i) {
    askers.emplace_back([this] {
      CUdeviceptr again = 0;
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      EXPECT_EQ(cuMemAlloc(&again, kFreed), CUDA_SUCCESS);
    });
  }
  still_busy();
  for (std::thread& asker : askers) asker.join();
}

}  // namespace
