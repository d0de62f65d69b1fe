// Stream-ordered pools at the quota. A pool takes memory from the device in steps, so what it has
// left lies in pieces; whatever sizes a program asks for, the device never holds more than the
// quota once a call has returned, and nothing is refused while real use is far below it.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/interpose/allocating_graph.h"
#include "tests/interpose/softgpu_partner.h"
#include "tests/interpose/softgpu_ways.h"

namespace {

using namespace sluice::test;

constexpr size_t kKiB = 1024;
constexpr size_t kStep = 2 * kMiB;  // in which a pool grows
constexpr size_t kSizes[] = {205 * kKiB, 1126 * kKiB, 3379 * kKiB, 9 * kMiB};
constexpr size_t kPoolQuota = 384 * kMiB;

CUmemoryPool pool_create(size_t bytes_max = 0) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  properties.maxSize = bytes_max;
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  return pool;
}

CUmemoryPool keeps_all(CUmemoryPool pool) {
  cuuint64_t threshold = UINT64_MAX;
  EXPECT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
            CUDA_SUCCESS);
  return pool;
}

class SoftGpuPoolsTest : public SoftGpuTest {
 protected:
  SoftGpuPoolsTest() : SoftGpuTest({.quota = kPoolQuota, .device_bytes = 4096 * kMiB}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    for (CUstream& stream : streams)
      ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  // After each call: the device has at most the quota of this tenant, and the ledger says the same.
  void within(const char* when) {
    ASSERT_LE(device_total(), kPoolQuota) << when;
    ASSERT_EQ(difference(), "") << when;
  }
  using Take = std::function<CUresult(CUdeviceptr*, size_t, int)>;
  // Takes until the first refusal; how much that is. Then all of it goes back.
  void fill(const char* way, const Take& take, size_t size, size_t at_least) {
    SCOPED_TRACE(std::string(way) + ", " + std::to_string(size) + " bytes at a time");
    std::vector<CUdeviceptr> taken;
    size_t bytes = 0;
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr pointer = 0x77;
    for (int i = 0; i < 4000; ++i) {
      pointer = 0x77;
      result = take(&pointer, size, i);
      if (result != CUDA_SUCCESS) break;
      taken.push_back(pointer);
      bytes += size;
      ASSERT_LE(device_total(), kPoolQuota);
    }
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(pointer, 0x77u) << "a refusal leaves the output alone";
    within("at the refusal");
    EXPECT_LE(bytes, kPoolQuota - kContext);
    EXPECT_GE(bytes, at_least) << "refused far below the quota";
    // It stays refused: what an undone call left in the pool is nobody's way around.
    for (int i = 0; i < 3; ++i) EXPECT_EQ(take(&pointer, size, i), CUDA_ERROR_OUT_OF_MEMORY);
    within("refused again");
    for (const CUdeviceptr old : taken) EXPECT_EQ(cuMemFreeAsync(old, streams[0]), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    within("all freed");
  }
  // A pool that takes a step of its own for each allocation must fit so often.
  void fill_all(const char* way, const Take& take, size_t room = kPoolQuota - kContext) {
    for (const size_t size : kSizes) {
      const size_t step = (size + kStep - 1) / kStep * kStep;
      fill(way, take, size, room / step * size);
    }
  }
  CUstream streams[3] = {};
};

TEST_F(SoftGpuPoolsTest, PiecesOfTheDevicesPoolStayWithinTheQuota) {
  fill_all("the default stream", [&](CUdeviceptr* out, size_t bytes, int) {
    return cuMemAllocAsync(out, bytes, nullptr);
  });
  fill_all("_ptsz", [&](CUdeviceptr* out, size_t bytes, int) {
    return exported<decltype(&cuMemAllocAsync)>("cuMemAllocAsync_ptsz")(out, bytes, nullptr);
  });
  fill_all("several streams", [&](CUdeviceptr* out, size_t bytes, int i) {
    return cuMemAllocAsync(out, bytes, streams[i % 3]);
  });
}

TEST_F(SoftGpuPoolsTest, PiecesOfPoolsOfItsOwnStayWithinTheQuota) {
  CUmemoryPool pools[] = {keeps_all(pool_create()), keeps_all(pool_create())};
  fill_all("two pools", [&](CUdeviceptr* out, size_t bytes, int i) {
    return cuMemAllocFromPoolAsync(out, bytes, pools[i % 2], streams[0]);
  });
  fill_all("_ptsz", [&](CUdeviceptr* out, size_t bytes, int) {
    return exported<decltype(&cuMemAllocFromPoolAsync)>("cuMemAllocFromPoolAsync_ptsz")(
        out, bytes, pools[0], nullptr);
  });
}

TEST_F(SoftGpuPoolsTest, PiecesOfAPoolWithALimitStayWithinTheQuota) {
  CUmemoryPool small = pool_create(100 * kMiB), large = pool_create(2048 * kMiB);
  fill_all(
      "a limit below the quota",
      [&](CUdeviceptr* out, size_t bytes, int) {
        return cuMemAllocFromPoolAsync(out, bytes, small, streams[0]);
      },
      100 * kMiB);
  EXPECT_EQ(broker->account(0).refused.load(), 0u) << "the pool said no, not the quota";
  fill_all("a limit above the quota", [&](CUdeviceptr* out, size_t bytes, int) {
    return cuMemAllocFromPoolAsync(out, bytes, large, streams[0]);
  });
}

TEST_F(SoftGpuPoolsTest, PiecesOfAPoolThatWasMadeTheDevicesStayWithinTheQuota) {
  ASSERT_EQ(cuDeviceSetMemPool(0, keeps_all(pool_create())), CUDA_SUCCESS);
  fill_all("set by cuDeviceSetMemPool", [&](CUdeviceptr* out, size_t bytes, int i) {
    return cuMemAllocAsync(out, bytes, streams[i % 3]);
  });
}

// Sizes from a seed, with frees in between, beside memory of other kinds.
TEST_F(SoftGpuPoolsTest, RandomMixesStayWithinTheQuota) {
  CUmemoryPool own = keeps_all(pool_create());
  for (const unsigned seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<CUdeviceptr> taken;
    int refused = 0;
    for (int i = 0; i < 600; ++i) {
      CUstream stream = streams[random() % 3];
      if (!taken.empty() && random() % 100 < (refused % 20 == 19 ? 60 : 30)) {
        std::swap(taken[random() % taken.size()], taken.back());
        ASSERT_EQ(cuMemFreeAsync(taken.back(), stream), CUDA_SUCCESS);
        taken.pop_back();
      } else {
        CUdeviceptr pointer = 0;
        const size_t bytes = 1 + random() % (random() % 2 == 0 ? kMiB : 12 * kMiB);
        const CUresult result = random() % 8 == 0 ? cuMemAlloc(&pointer, bytes)
                                : random() % 2 == 0
                                    ? cuMemAllocAsync(&pointer, bytes, stream)
                                    : cuMemAllocFromPoolAsync(&pointer, bytes, own, stream);
        if (result == CUDA_SUCCESS) taken.push_back(pointer);
        ASSERT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        refused += result != CUDA_SUCCESS ? 1 : 0;
      }
      ASSERT_LE(device_total(), kPoolQuota) << i;
    }
    EXPECT_GT(refused, 0) << "the quota was never met";
    for (const CUdeviceptr pointer : taken) EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    ASSERT_LE(device_total(), kPoolQuota);
    // What cuMemFreeAsync frees of cuMemAlloc's memory is charged until a reading finds it gone. On
    // a busy host the helper is in the middle of one here.
    ASSERT_TRUE(eventually([&] { return difference().empty(); })) << difference();
  }
}

// A stream that does not come to its work keeps nothing above the quota: memory that a refused call
// made the pool take goes back before the call has returned.
TEST_F(SoftGpuPoolsTest, ARefusalLeavesNothingBehindABusyStream) {
  broker->lease_store(sluice::protocol::kLeaseOpen);
  static std::atomic<bool> go;
  go = false;
  CUdeviceptr pointer = 0, rest = 0;
  // What is left of the quota is less than one step of the pool, which has pieces of 1 MiB.
  for (int i = 0; i < 12; ++i)
    ASSERT_EQ(cuMemAllocAsync(&pointer, 9 * kMiB, streams[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&rest, kPoolQuota - device_total() - kMiB), CUDA_SUCCESS);
  const auto wait = [](void*) {
    while (!go) std::this_thread::yield();
  };
  ASSERT_EQ(cuLaunchHostFunc(streams[0], wait, nullptr), CUDA_SUCCESS);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(cuMemAllocAsync(&pointer, 9 * kMiB, streams[0]), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_LE(device_total(), kPoolQuota) << "refused, and still there";
  }
  // The pieces are the program's to use.
  EXPECT_EQ(cuMemAllocAsync(&pointer, kMiB, streams[0]), CUDA_SUCCESS);
  EXPECT_LE(device_total(), kPoolQuota);
  go = true;
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  within("at the end");
}

// As frameworks do: the pool keeps all that it ever took, and sizes vary from step to step.
TEST_F(SoftGpuPoolsTest, APoolThatKeepsAllIsNoReasonForARefusal) {
  keeps_all(default_pool());
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<CUdeviceptr> step;
    for (size_t bytes = 0; bytes < 60 * kMiB;) {
      const size_t size = 1 + random() % (12 * kMiB);
      CUdeviceptr pointer = 0;
      ASSERT_EQ(cuMemAllocAsync(&pointer, size, streams[0]), CUDA_SUCCESS) << "in round " << round;
      ASSERT_LE(device_total(), kPoolQuota);
      step.push_back(pointer);
      bytes += size;
    }
    for (const CUdeviceptr pointer : step)
      ASSERT_EQ(cuMemFreeAsync(pointer, streams[0]), CUDA_SUCCESS);
    if (round % 4 == 3) {
      ASSERT_EQ(cuStreamSynchronize(streams[0]), CUDA_SUCCESS);
    }
  }
  EXPECT_EQ(broker->account(0).refused.load(), 0u);
}

// Memory that was freed behind work of one stream is another stream's as soon as the GPU has come
// to that, as on a device that is full.
class SoftGpuPoolsBehindWorkTest : public SoftGpuPoolsTest {
 protected:
  SoftGpuPoolsBehindWorkTest() { setenv("SOFTGPU_TIMED", "k=300ms/skip", 1); }
};

TEST_F(SoftGpuPoolsBehindWorkTest, WhatIsFreedBehindAKernelIsWaitedForBeforeARefusal) {
  broker->lease_store(sluice::protocol::kLeaseOpen);
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuModuleLoadData(&module, code_with_room(4).c_str()), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&kernel, module, "k"), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cuMemAllocAsync(&pointer, 200 * kMiB, streams[i]), CUDA_SUCCESS) << i;
    EXPECT_LE(device_total(), kPoolQuota);
    ASSERT_EQ(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, streams[i], nullptr, nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeAsync(pointer, streams[i]), CUDA_SUCCESS);
  }
  EXPECT_EQ(broker->account(0).refused.load(), 0u);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  // More than there is stays refused, without a wait for what cannot come.
  EXPECT_EQ(cuMemAllocAsync(&pointer, kPoolQuota, streams[0]), CUDA_ERROR_OUT_OF_MEMORY);
  within("at the end");
}

// What one pool keeps and does not use is there for every other kind of memory.
TEST_F(SoftGpuPoolsTest, WhatAPoolKeepsIdleIsGivenBackBeforeARefusal) {
  CUmemoryPool idle = keeps_all(pool_create()), other = pool_create();
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, 300 * kMiB, idle, streams[0]), CUDA_SUCCESS);
  const auto keep_idle = [&] {
    ASSERT_EQ(cuMemFreeAsync(pointer, streams[0]), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(streams[0]), CUDA_SUCCESS);
    ASSERT_EQ(device_total(), kContext + 300 * kMiB);
  };
  keep_idle();
  CUdeviceptr plain = 0;
  EXPECT_EQ(cuMemAlloc(&plain, 200 * kMiB), CUDA_SUCCESS);
  within("plain memory");
  EXPECT_EQ(cuMemFree(plain), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, 300 * kMiB, idle, streams[0]), CUDA_SUCCESS);
  keep_idle();
  EXPECT_EQ(cuMemAllocFromPoolAsync(&plain, 200 * kMiB, other, streams[0]), CUDA_SUCCESS);
  within("another pool");
  EXPECT_EQ(broker->account(0).refused.load(), 0u);
}

// The driver goes on counting what cuMemFree frees as used.
TEST_F(SoftGpuPoolsTest, WhatCuMemFreeGaveBackToAPoolIsThereForItsAllocations) {
  const CUmemoryPool pool = keeps_all(pool_create());
  CUdeviceptr pointer = 0, small = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&pointer, 300 * kMiB, pool, streams[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&small, 20 * kMiB, pool, streams[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&pointer, 250 * kMiB, pool, streams[0]), CUDA_SUCCESS);
  EXPECT_EQ(broker->account(0).refused.load(), 0u);
  within("at the end");
}

// Allocation nodes and captured allocations, in sizes that are no multiples of a page.
TEST_F(SoftGpuPoolsTest, GraphsOfAnySizesStayWithinTheQuota) {
  broker->lease_store(sluice::protocol::kLeaseOpen);
  for (const size_t size : kSizes) {
    SCOPED_TRACE(size);
    std::vector<CUdeviceptr> taken;
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 400 && result == CUDA_SUCCESS; ++i) {
      CUgraphExec exec = nullptr;
      CUdeviceptr pointer = 0;
      if (i % 2 == 0) {
        exec = allocating_graph(0, size, &pointer);
      } else {
        CUgraph graph = nullptr;
        ASSERT_EQ(cuStreamBeginCapture(streams[1], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                  CUDA_SUCCESS);
        ASSERT_EQ(cuMemAllocAsync(&pointer, size, streams[1]), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamEndCapture(streams[1], &graph), CUDA_SUCCESS);
        ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
        ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
      }
      result = cuGraphLaunch(exec, streams[0]);
      if (result == CUDA_SUCCESS) taken.push_back(pointer);
      ASSERT_LE(device_total(), kPoolQuota) << i;
      ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    }
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_GE(taken.size() * ((size + 2 * kMiB - 1) / (2 * kMiB)) * 2 * kMiB,
              kPoolQuota - kContext - 10 * kMiB);
    for (const CUdeviceptr pointer : taken)
      ASSERT_EQ(cuMemFreeAsync(pointer, streams[0]), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    within("all freed");
  }
}

// Eight processes fill one quota at the same time, each from a pool of its own.
class SoftGpuPoolsOfManyTest : public SoftGpuTest {
 protected:
  static constexpr int kMany = 8;
  static constexpr size_t kSmall = kMiB;
  SoftGpuPoolsOfManyTest()
      : SoftGpuTest({.quota = kPoolQuota,
                     .device_bytes = 4096 * kMiB,
                     .context_told = kSmall,
                     .uses_cuda = false}) {
    setenv("SOFTGPU_CONTEXT", "1MiB", 1);
  }
};

TEST_F(SoftGpuPoolsOfManyTest, TogetherTheyStayWithinTheQuota) {
  Partner partners[kMany];
  for (Partner& partner : partners) {
    partner.start();
    ASSERT_EQ(partner.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
  }
  std::atomic<bool> done{false};
  std::atomic<size_t> most{0};
  std::thread watcher([&] {
    while (!done) most = std::max<size_t>(most, device_total());
  });
  for (int i = 0; i < kMany; ++i) {
    partners[i].send({.op = PartnerOp::kChurnPools,
                      .a = 9 * kMiB,
                      .b = 400,
                      .value = static_cast<std::uint64_t>(i)});
  }
  uint64_t refused = 0, held_bytes = 0;
  for (Partner& partner : partners) {
    const PartnerMessage answer = partner.receive();
    EXPECT_EQ(answer.result, CUDA_SUCCESS);
    EXPECT_EQ(answer.extra, 0u) << "wrong answers";
    refused += answer.value;
    held_bytes += answer.a;
  }
  done = true;
  watcher.join();
  printf("at most %zu of %zu bytes when looked at, %zu at any moment\n", most.load(),
         size_t{kPoolQuota}, size_t{device_peak()});
  EXPECT_GT(refused, 0u);
  EXPECT_LE(device_total(), kPoolQuota);
  EXPECT_EQ(difference(), "");
  EXPECT_GE(held_bytes, kPoolQuota / 2) << "refused far below the quota";
}

}  // namespace
