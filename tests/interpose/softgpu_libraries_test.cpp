// Libraries that are loaded lazily: whatever call loads one into a context first, the size of its
// variables is asked of the quota before the driver has taken it. Judged by the most that the
// device ever held.
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/interpose/softgpu_first_uses.h"
#include "tests/interpose/softgpu_together.h"

namespace {

using namespace sluice::test;

CUlibrary library_of(size_t bytes) {
  CUlibrary library = nullptr;
  EXPECT_EQ(cuLibraryLoadData(&library, module_text(bytes).c_str(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            CUDA_SUCCESS);
  return library;
}

CUfunction kernel_of(CUlibrary library) {
  CUkernel kernel = nullptr;
  EXPECT_EQ(cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
  return reinterpret_cast<CUfunction>(kernel);
}

class SoftGpuLibrariesTest : public SoftGpuFirstUsesTest {
 protected:
  explicit SoftGpuLibrariesTest(bool listed = true)
      : SoftGpuFirstUsesTest(listed, module_text(4)) {}
  void SetUp() override {
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    SoftGpuFirstUsesTest::SetUp();
  }
  Given given(size_t bytes) {
    CUlibrary library = library_of(bytes);
    return {library, kernel_of(library), out_, context, other_};
  }
  void end(const Given& g) {
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryUnload(g.library), CUDA_SUCCESS);
  }
  void each_way_is_refused();
  void each_way_fits_to_the_last_byte();

  static constexpr size_t kOwn = kContext + kOut + 4;
};

class SoftGpuLibrariesEstimatedTest : public SoftGpuLibrariesTest {
 protected:
  SoftGpuLibrariesEstimatedTest() : SoftGpuLibrariesTest(false) {}
};

void SoftGpuLibrariesTest::each_way_is_refused() {
  for (const FirstUse& way : kFirstUses) {
    const Given g = given(options.quota - kOwn + 1);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(way.use(g), CUDA_ERROR_OUT_OF_MEMORY) << way.name;
    EXPECT_EQ(launch_of(other_, out_), CUDA_SUCCESS) << way.name;
    EXPECT_LE(device_peak(), options.quota) << way.name;
    EXPECT_EQ(held(), kOwn) << way.name;
    agrees(way.name);
    end(g);
  }
}
TEST_F(SoftGpuLibrariesTest, WhatSurelyDoesNotFitIsRefusedWhateverCallNeedsIt) {
  each_way_is_refused();
}
TEST_F(SoftGpuLibrariesEstimatedTest, WhatSurelyDoesNotFitIsRefusedWhateverCallNeedsIt) {
  each_way_is_refused();
}

void SoftGpuLibrariesTest::each_way_fits_to_the_last_byte() {
  for (const FirstUse& way : kFirstUses) {
    if (std::string(way.name) == "a launch of a thread without a context") continue;  // one more
    const Given g = given(options.quota - kOwn);
    EXPECT_EQ(way.use(g), CUDA_SUCCESS) << way.name;
    EXPECT_EQ(held(), options.quota) << way.name;
    agrees(way.name);
    // It is there: nothing is asked for any more.
    for (const FirstUse& next : {kFirstUses[0], kFirstUses[9], kFirstUses[11]})
      EXPECT_EQ(next.use(g), CUDA_SUCCESS) << next.name << " after " << way.name;
    EXPECT_EQ(held(), options.quota) << way.name;
    end(g);
    EXPECT_EQ(held(), kOwn) << way.name;
  }
  EXPECT_LE(device_peak(), options.quota);
}
TEST_F(SoftGpuLibrariesTest, WhatFitsIsLoadedWhateverCallNeedsIt) {
  each_way_fits_to_the_last_byte();
}
TEST_F(SoftGpuLibrariesEstimatedTest, WhatFitsIsLoadedWhateverCallNeedsIt) {
  each_way_fits_to_the_last_byte();
}

TEST_F(SoftGpuLibrariesTest, KernelsThatWereListedAreAskedForToo) {
  CUlibrary library = library_of(options.quota);
  CUkernel kernels[2] = {};
  ASSERT_EQ(cuLibraryEnumerateKernels(kernels, 2, library), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(reinterpret_cast<CUfunction>(kernels[0]), out_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(device_peak(), options.quota);
}

TEST_F(SoftGpuLibrariesTest, AnExclusiveLeasePassesNothingEither) {
  broker->lease_store(sluice::protocol::kLeaseOpen | sluice::protocol::kLeaseExclusive);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(launch_of(other_, out_), CUDA_SUCCESS);
  const Given large = given(options.quota), small = given(kMiB);
  EXPECT_EQ(launch_of(large.kernel, out_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(launch_of(small.kernel, out_), CUDA_SUCCESS);
  EXPECT_EQ(held(), kOwn + kMiB);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(launch_of(other_, out_), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(large.kernel, out_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(device_peak(), options.quota);
}

// Each context has variables of its own.
TEST_F(SoftGpuLibrariesTest, EachContextIsAskedForItsOwn) {
  const size_t bytes = 20 * kMiB;
  const Given g = given(bytes);
  ASSERT_EQ(launch_of(g.kernel, out_), CUDA_SUCCESS);
  CUcontext own = nullptr;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(g.kernel, out_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(held(), kOwn + kContext + bytes);
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(g.kernel, out_), CUDA_ERROR_OUT_OF_MEMORY) << "with the ended one's handle";
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(g.kernel, out_), CUDA_SUCCESS);
  EXPECT_LE(device_peak(), options.quota);
  agrees("in one of them");
}

// A library of an ended one's handle is not taken for that one.
TEST_F(SoftGpuLibrariesTest, TheNextLibraryIsAskedForAgain) {
  for (int i = 0; i < 20; ++i) {
    const Given fits = given(kMiB);
    ASSERT_EQ(launch_of(fits.kernel, out_), CUDA_SUCCESS);
    end(fits);
    const Given large = given(options.quota);
    ASSERT_EQ(launch_of(large.kernel, out_), CUDA_ERROR_OUT_OF_MEMORY);
    end(large);
  }
  EXPECT_LE(device_peak(), options.quota);
  EXPECT_EQ(held(), kOwn);
}

TEST_F(SoftGpuLibrariesTest, TheChargeDoesNotDrift) {
  for (int i = 0; i < 100; ++i) {
    const Given g = given(static_cast<size_t>(1 + i % 60) * kMiB);
    const FirstUse& way =
        kFirstUses[static_cast<size_t>(i) % (sizeof kFirstUses / sizeof *kFirstUses)];
    if (std::string(way.name) != "a launch of a thread without a context") {
      ASSERT_EQ(way.use(g), CUDA_SUCCESS) << way.name;
    }
    end(g);
    ASSERT_EQ(held(), kOwn) << i;
  }
  agrees("unloaded");
}

// Eight libraries, and one graph that launches a kernel of each.
TEST_F(SoftGpuLibrariesTest, AGraphOfManyLibrariesStaysWithinTheQuota) {
  CUgraph graph = graph_make();
  int added = 0;
  for (int i = 0; i < 8; ++i) {
    CUgraphNode node = nullptr;
    const Given g = given(20 * kMiB);
    const CUresult result = node_add(g, graph, &node, g.kernel);
    EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    added += result == CUDA_SUCCESS ? 1 : 0;
  }
  EXPECT_EQ(added, 3);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(held(), kOwn + 60 * kMiB);
  EXPECT_LE(device_peak(), options.quota);
}

TEST_F(SoftGpuLibrariesTest, ThreadsThatLoadAtOnceStayWithinTheQuota) {
  constexpr size_t kThreads = 8;
  std::vector<CUfunction> kernels;
  for (size_t i = 0; i < kThreads; ++i) kernels.push_back(given(20 * kMiB).kernel);
  std::vector<CUresult> results(kThreads);
  together(kThreads, [&](size_t i, Together& others) {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(launch_of(other_, out_), CUDA_SUCCESS);
    others.meet();
    results[i] = launch_of(kernels[i], out_);
  });
  EXPECT_EQ(std::count(results.begin(), results.end(), CUDA_SUCCESS), 3);
  EXPECT_EQ(std::count(results.begin(), results.end(), CUDA_ERROR_OUT_OF_MEMORY), 5);
  EXPECT_LE(device_peak(), options.quota);
}

// A library that fits once is not asked for twice by threads that need it at one moment.
TEST_F(SoftGpuLibrariesTest, ThreadsThatNeedTheSameLibraryAreNotRefused) {
  for (int round = 0; round < 20; ++round) {
    const Given g = given(options.quota - kOwn);
    std::vector<CUresult> results(8);
    together(results.size(), [&](size_t i, Together& others) {
      ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      others.meet();
      results[i] = launch_of(g.kernel, out_);
    });
    ASSERT_EQ(std::count(results.begin(), results.end(), CUDA_SUCCESS), 8);
    EXPECT_EQ(held(), options.quota);
    end(g);
  }
  EXPECT_LE(device_peak(), options.quota);
}

class SoftGpuLibraryProcessesTest : public SoftGpuTest {
 protected:
  static constexpr size_t kOwners = 6, kEach = 60 * kMiB;
  SoftGpuLibraryProcessesTest()
      : SoftGpuTest({.quota = kOwners * (kContext + kMiB) + 2 * kEach,
                     .device_bytes = 1024 * kMiB,
                     .uses_cuda = false}) {}
};

TEST_F(SoftGpuLibraryProcessesTest, ProcessesThatLoadAtOnceStayWithinTheQuota) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  broker->lease_store(sluice::protocol::kLeaseOpen);
  const auto fitted = processes_together(kOwners, [](Together& others) {
    CUcontext own = nullptr;
    CUdeviceptr out = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate(&own, nullptr, 0, 0) != CUDA_SUCCESS ||
        cuMemAlloc(&out, 4) != CUDA_SUCCESS)
      return -1;
    const CUfunction kernel = kernel_of(library_of(kEach));
    others.meet();
    const CUresult result = launch_of(kernel, out);
    others.meet();  // all have what they get
    return result == CUDA_SUCCESS ? 1 : result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : -1;
  });
  EXPECT_EQ(std::count(fitted.begin(), fitted.end(), 1), 2);
  EXPECT_EQ(std::count(fitted.begin(), fitted.end(), 0), static_cast<long>(kOwners) - 2);
  EXPECT_LE(device_peak(), options.quota);
}

}  // namespace
