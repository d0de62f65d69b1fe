// The device's heap and printf buffer: the memory that a limit may take is reserved with the limit,
// so that no kernel that uses it takes more than the quota. Judged by the device's own account.
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/interpose/softgpu_residual.h"
#include "tests/interpose/softgpu_together.h"

namespace {

using namespace sluice::test;

// A limit, and a kernel that takes it with its load.
struct Taker {
  CUlimit limit;
  const char* user;
  const char* name;
};
constexpr Taker kHeap{CU_LIMIT_MALLOC_HEAP_SIZE, kHeapUser, "heap"};
constexpr Taker kBuffer{CU_LIMIT_PRINTF_FIFO_SIZE, kPrinter, "printf buffer"};

size_t limit_now(CUlimit limit) {
  size_t value = 0;
  EXPECT_EQ(cuCtxGetLimit(&value, limit), CUDA_SUCCESS);
  return value;
}

CUresult user_load(const Taker& taker, CUmodule* module) {
  CUfunction function = nullptr;
  const CUresult result = cuModuleLoadData(module, taker.user);
  return result == CUDA_SUCCESS ? cuModuleGetFunction(&function, *module, "k") : result;
}

class SoftGpuLimitsTest : public SoftGpuResidualTest {
 protected:
  explicit SoftGpuLimitsTest(bool listed = true)
      : SoftGpuResidualTest([listed] {
          Options o;
          o.listed = listed;
          return o;
        }()) {}
  uint64_t charged() { return held() + limits(); }
  void fills_up() {
    CUdeviceptr rest = 0;
    EXPECT_EQ(cuMemAlloc(&rest, kQuota - charged() + 1), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_EQ(cuMemAlloc(&rest, kQuota - charged()), CUDA_SUCCESS);
    EXPECT_EQ(charged(), kQuota);
  }
  // The taker's limit is refused in the driver's words, and nothing has changed.
  void refused(const Taker& taker, size_t value) {
    const size_t before = limit_now(taker.limit);
    const uint64_t charge = charged();
    testing::internal::CaptureStderr();
    EXPECT_EQ(cuCtxSetLimit(taker.limit, value), CUDA_ERROR_OUT_OF_MEMORY) << taker.name;
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(limit_now(taker.limit), before) << taker.name;
    EXPECT_EQ(charged(), charge) << taker.name;
    agrees(taker.name);
  }
  void too_large_is_refused();
  void reserved_and_replaced();
  void users_stay_within_the_quota();
};

class SoftGpuLimitsEstimatedTest : public SoftGpuLimitsTest {
 protected:
  SoftGpuLimitsEstimatedTest() : SoftGpuLimitsTest(false) {}
};

void SoftGpuLimitsTest::too_large_is_refused() {
  for (const Taker& taker : {kHeap, kBuffer}) {
    refused(taker, kQuota - kContext + 1);
    refused(taker, size_t{900} * kMiB);
    refused(taker, SIZE_MAX);
  }
  EXPECT_EQ(charged(), kContext);
  EXPECT_LE(device_peak(), kQuota);
}
TEST_F(SoftGpuLimitsTest, ALimitThatDoesNotFitIsRefused) { too_large_is_refused(); }
TEST_F(SoftGpuLimitsEstimatedTest, ALimitThatDoesNotFitIsRefused) { too_large_is_refused(); }

TEST_F(SoftGpuLimitsTest, ARefusalIsSaid) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 900 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: refused 900.0 MiB: you use 32.0 of your 100.0 MiB on GPU 0. The program sees "
            "CUDA out of memory.\n");
  EXPECT_EQ(broker->account().refused.load(), 1u);
}

// A limit is charged once, from its call on, whatever becomes of it.
void SoftGpuLimitsTest::reserved_and_replaced() {
  for (const Taker& taker : {kHeap, kBuffer}) {
    const uint64_t before = charged();
    ASSERT_EQ(cuCtxSetLimit(taker.limit, 20 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(charged(), before + 20 * kMiB) << taker.name;
    agrees("reserved");
    CUmodule module = nullptr;
    ASSERT_EQ(user_load(taker, &module), CUDA_SUCCESS) << taker.name;
    EXPECT_EQ(limits(), 0u) << taker.name;
    EXPECT_GE(device_bytes(), before + 20 * kMiB) << "nothing was taken for the " << taker.name;
    agrees("taken");
    // The driver fixes it from then on, and says so whatever the quota says.
    EXPECT_EQ(cuCtxSetLimit(taker.limit, 10 * kMiB), CUDA_ERROR_INVALID_VALUE) << taker.name;
    EXPECT_EQ(cuCtxSetLimit(taker.limit, 900 * kMiB), CUDA_ERROR_INVALID_VALUE) << taker.name;
    ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
    EXPECT_EQ(charged(), before + 20 * kMiB) << "the context keeps the " << taker.name;
    agrees("its user is unloaded");
  }
  EXPECT_LE(device_peak(), kQuota);
}
TEST_F(SoftGpuLimitsTest, WhatTheDriverTakesReplacesTheReservation) { reserved_and_replaced(); }
TEST_F(SoftGpuLimitsEstimatedTest, WhatTheDriverTakesReplacesTheReservation) {
  reserved_and_replaced();
}

void SoftGpuLimitsTest::users_stay_within_the_quota() {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 30 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 10 * kMiB), CUDA_SUCCESS);
  CUmodule heap = nullptr, buffer = nullptr;
  ASSERT_EQ(cuModuleLoadData(&heap, kHeapUser), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleLoadData(&buffer, kPrinter), CUDA_SUCCESS);
  fills_up();
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&function, heap, "k"), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleGetFunction(&function, buffer, "k"), CUDA_SUCCESS);
  EXPECT_EQ(held(), kQuota);
  EXPECT_EQ(device_peak(), kQuota);
  agrees("all is taken");
}
TEST_F(SoftGpuLimitsTest, WhatIsReservedIsNotGivenToOthers) { users_stay_within_the_quota(); }
TEST_F(SoftGpuLimitsEstimatedTest, WhatIsReservedIsNotGivenToOthers) {
  users_stay_within_the_quota();
}

// A module that is loaded meanwhile is not taken for the heap.
TEST_F(SoftGpuLimitsTest, WhatElseGrowsDoesNotReplaceTheReservation) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 20 * kMiB), CUDA_SUCCESS);
  CUmodule other = nullptr, user = nullptr;
  ASSERT_EQ(cuModuleLoadData(&other, module_text(20 * kMiB).c_str()), CUDA_SUCCESS);
  EXPECT_EQ(limits(), 20 * kMiB);
  EXPECT_EQ(held(), kContext + 20 * kMiB);
  ASSERT_EQ(cuModuleUnload(other), CUDA_SUCCESS);
  EXPECT_EQ(limits(), 20 * kMiB);
  EXPECT_EQ(held(), kContext);
  ASSERT_EQ(user_load(kHeap, &user), CUDA_SUCCESS);
  EXPECT_EQ(limits(), 0u);
  holds(20 * kMiB, "taken");
}

TEST_F(SoftGpuLimitsTest, ALowerLimitGivesTheRestBack) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kQuota - kContext), CUDA_SUCCESS);
  EXPECT_EQ(charged(), kQuota);
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(charged(), kContext + 8 * kMiB);
  fills_up();
}

// A limit that its context has not taken ends with the context.
TEST_F(SoftGpuLimitsTest, AContextsEndGivesItsLimitsBack) {
  for (const bool taken : {false, true}) {
    CUcontext own = nullptr;
    CUmodule module = nullptr;
    ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 20 * kMiB), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 5 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(charged(), 2 * kContext + 25 * kMiB);
    if (taken) {
      ASSERT_EQ(user_load(kHeap, &module), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
    EXPECT_EQ(limits(), 0u) << taken;
    holds(0, "destroyed");
  }
}

TEST_F(SoftGpuLimitsTest, AResetOfThePrimaryContextGivesItsLimitsBack) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 60 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  EXPECT_EQ(charged(), 0u);
  agrees("reset");
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(limit_now(CU_LIMIT_MALLOC_HEAP_SIZE), 8 * kMiB);
  EXPECT_EQ(charged(), kContext);
}

TEST_F(SoftGpuLimitsTest, EachContextsLimitsCount) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 20 * kMiB), CUDA_SUCCESS);
  CUcontext own = nullptr;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  refused(kHeap, kQuota - 2 * kContext - 20 * kMiB + 1);
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kQuota - 2 * kContext - 20 * kMiB),
            CUDA_SUCCESS);
  CUmodule module = nullptr;
  ASSERT_EQ(user_load(kHeap, &module), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(user_load(kHeap, &module), CUDA_SUCCESS);
  EXPECT_EQ(limits(), 0u);
  EXPECT_EQ(held(), kQuota);
  EXPECT_LE(device_peak(), kQuota);
  agrees("both have their heap");
}

class SoftGpuEagerLimitsTest : public SoftGpuLimitsTest {
 protected:
  void SetUp() override {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    SoftGpuLimitsTest::SetUp();
  }
};

// The load takes the heap with it.
TEST_F(SoftGpuEagerLimitsTest, AnEagerLoadReplacesTheReservation) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kQuota - kContext), CUDA_SUCCESS);
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kHeapUser), CUDA_SUCCESS);
  EXPECT_EQ(held(), kQuota);
  agrees("loaded");
}

TEST_F(SoftGpuLimitsTest, TheChargeDoesNotDrift) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, static_cast<size_t>(8 + i % 40) * kMiB),
              CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, static_cast<size_t>(1 + i % 5) * 1234),
              CUDA_SUCCESS);
  }
  CUcontext own = nullptr;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * kMiB), CUDA_SUCCESS);
    CUmodule module = nullptr;
    if (i % 2 == 0) {
      ASSERT_EQ(user_load(kHeap, &module), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
    ASSERT_EQ(held(), kContext) << i;
    ASSERT_EQ(limits(), 8 * kMiB + 8192) << i;
  }
}

// Eight threads raise the limits of eight contexts at one moment, and then load what uses them.
class SoftGpuManyLimitsTest : public SoftGpuTest {
 protected:
  static constexpr size_t kOwners = 8;
  static constexpr size_t kEach = 60 * kMiB;
  // Contexts for all, and heaps for three.
  SoftGpuManyLimitsTest(bool uses_cuda = true)
      : SoftGpuTest([uses_cuda] {
          Options o;
          o.quota = (kOwners + 1) * kContext + 3 * kEach + kEach / 2;
          o.device_bytes = 2048 * kMiB;
          o.uses_cuda = uses_cuda;
          return o;
        }()) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
};

TEST_F(SoftGpuManyLimitsTest, ThreadsThatRaiseThemAtOnceStayWithinTheQuota) {
  std::vector<CUresult> raised(kOwners), used(kOwners);
  together(kOwners, [&](size_t i, Together& others) {
    CUcontext own = nullptr;
    CUmodule module = nullptr;
    ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
    others.meet();
    raised[i] = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kEach);
    others.meet();
    used[i] = raised[i] == CUDA_SUCCESS ? user_load(kHeap, &module) : CUDA_SUCCESS;
  });
  EXPECT_EQ(std::count(raised.begin(), raised.end(), CUDA_SUCCESS), 3);
  EXPECT_EQ(std::count(raised.begin(), raised.end(), CUDA_ERROR_OUT_OF_MEMORY), 5);
  EXPECT_EQ(std::count(used.begin(), used.end(), CUDA_SUCCESS), 8);
  EXPECT_LE(device_peak(), options.quota);
}

class SoftGpuManyProcessesTest : public SoftGpuManyLimitsTest {
 protected:
  SoftGpuManyProcessesTest() : SoftGpuManyLimitsTest(false) {}
};

TEST_F(SoftGpuManyProcessesTest, ProcessesThatRaiseThemAtOnceStayWithinTheQuota) {
  const auto fitted = processes_together(kOwners, [](Together& others) {
    CUcontext own = nullptr;
    CUmodule module = nullptr;
    if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate(&own, nullptr, 0, 0) != CUDA_SUCCESS) return -1;
    others.meet();
    const CUresult raised = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kEach);
    others.meet();
    const CUresult used = raised == CUDA_SUCCESS ? user_load(kHeap, &module) : raised;
    others.meet();  // all have what they get
    if (raised == CUDA_ERROR_OUT_OF_MEMORY) return 0;
    return used == CUDA_SUCCESS ? 1 : -1;
  });
  // There is no primary context: a fourth heap fits in its place.
  EXPECT_EQ(std::count(fitted.begin(), fitted.end(), 1), 4);
  EXPECT_EQ(std::count(fitted.begin(), fitted.end(), 0), 4);
  EXPECT_LE(device_peak(), options.quota);
}

// What a parent has reserved is not its child's, and stays the parent's when the child ends.
TEST_F(SoftGpuLimitsTest, AChildBeginsWithoutReservations) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 20 * kMiB), CUDA_SUCCESS);
  const pid_t child = fork();
  if (child == 0) _exit(limits() == 0 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(limits(), 20 * kMiB);
  fills_up();
}

// A limit of the time before the quota was narrowed stays charged.
TEST_F(SoftGpuLimitsTest, ANarrowerQuotaCountsWhatIsReserved) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 40 * kMiB), CUDA_SUCCESS);
  broker->lease().gpus[0].memory_max_bytes = kContext + 40 * kMiB;
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
  refused(kBuffer, 2 * kMiB);
  CUmodule module = nullptr;
  EXPECT_EQ(user_load(kHeap, &module), CUDA_SUCCESS);
  holds(40 * kMiB, "taken");
}

}  // namespace
