// How graphs run: random graphs keep the order of their edges, threads may launch at once, nodes
// run in the contexts that they were made for, and a context may go while its graph runs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/softgpu/driver/fixture.h"

namespace {

using Driver = softgpu_test::Driver;

/// The order in which host nodes ran.
class Journal {
 public:
  struct Entry {
    Journal* journal;
    std::size_t number;
  };
  explicit Journal(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) entries_.push_back({this, i});
  }
  CUDA_HOST_NODE_PARAMS params(std::size_t number) {
    return {[](void* data) {
              const auto* entry = static_cast<Entry*>(data);
              const std::lock_guard lock(entry->journal->mutex_);
              entry->journal->order_.push_back(entry->number);
            },
            &entries_[number]};
  }
  std::vector<std::size_t> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(order_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> order_;
};

CUgraphNode host_add(CUgraph graph, const std::vector<CUgraphNode>& after,
                     const CUDA_HOST_NODE_PARAMS& params) {
  CUgraphNode node = nullptr;
  EXPECT_CU(cuGraphAddHostNode(&node, graph, after.data(), after.size(), &params));
  return node;
}

TEST_F(Driver, RandomGraphsKeepTheOrderOfTheirEdges) {
  WithContext([](CUcontext) {
    CUstream stream = nullptr;
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned seed = 1; seed <= 40; ++seed) {
      std::mt19937 random(seed);
      const std::size_t count = 2 + random() % 30;
      Journal journal(count);
      std::vector<std::pair<std::size_t, std::size_t>> edges;
      std::vector<CUgraphNode> nodes;
      CUgraph graph = nullptr;
      ASSERT_CU(cuGraphCreate(&graph, 0));
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<CUgraphNode> after;
        for (std::size_t before = 0; before < i; ++before) {
          if (random() % 6 != 0) continue;
          edges.emplace_back(before, i);
          after.push_back(nodes[before]);
        }
        nodes.push_back(host_add(graph, after, journal.params(i)));
      }
      CUgraphExec exec = nullptr;
      ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
      for (int run = 0; run < 3; ++run) {
        ASSERT_CU(cuGraphLaunch(exec, stream));
        ASSERT_CU(cuStreamSynchronize(stream));
        const auto order = journal.take();
        ASSERT_EQ(order.size(), count) << "seed " << seed;
        std::vector<std::size_t> place(count);
        for (std::size_t i = 0; i < count; ++i) place[order[i]] = i;
        for (const auto& [before, after] : edges)
          EXPECT_LT(place[before], place[after]) << "seed " << seed;
      }
      ASSERT_CU(cuGraphExecDestroy(exec));
      ASSERT_CU(cuGraphDestroy(graph));
    }
  });
}

TEST_F(Driver, ThreadsLaunchGraphsAtOnce) {
  WithContext([](CUcontext context) {
    constexpr int kThreads = 4, kLaunches = 50;
    CUdeviceptr words = 0;
    ASSERT_CU(cuMemAlloc(&words, 64));
    ASSERT_CU(cuMemsetD32(words, 0, 16));
    ASSERT_CU(cuCtxSynchronize());
    const CUfunction add = function("add_one");
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    // Two branches that each add one to a word of their own.
    for (int branch = 0; branch < 2; ++branch) {
      CUdeviceptr word = words + 4U * static_cast<unsigned>(branch);
      unsigned n = 1;
      void* arguments[] = {&word, &n};
      CUDA_KERNEL_NODE_PARAMS params{};
      params.func = add;
      params.gridDimX = params.gridDimY = params.gridDimZ = 1;
      params.blockDimX = params.blockDimY = params.blockDimZ = 1;
      params.kernelParams = arguments;
      CUgraphNode node = nullptr;
      ASSERT_CU(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
    }
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([&] {
        ASSERT_CU(cuCtxSetCurrent(context));
        CUstream stream = nullptr;
        ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        for (int launch = 0; launch < kLaunches; ++launch) EXPECT_CU(cuGraphLaunch(exec, stream));
        EXPECT_CU(cuStreamSynchronize(stream));
        EXPECT_CU(cuStreamDestroy(stream));
      });
    for (std::thread& thread : threads) thread.join();
    unsigned value[2] = {};
    ASSERT_CU(cuMemcpyDtoH(value, words, sizeof value));
    // Launches of one instance never overlap: no addition is lost.
    EXPECT_EQ(value[0], unsigned{kThreads * kLaunches});
    EXPECT_EQ(value[1], unsigned{kThreads * kLaunches});
  });
}

TEST_F(Driver, NodesRunInTheirContexts) {
  WithContext([](CUcontext first) {
    unsigned* words = nullptr;
    ASSERT_CU(cuMemHostAlloc(reinterpret_cast<void**>(&words), 64, CU_MEMHOSTALLOC_PORTABLE));
    words[0] = words[1] = 0;
    CUcontext second = nullptr;
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    const auto kernel_add = [&](unsigned* to, const std::vector<CUgraphNode>& after) {
      unsigned n = 1;
      void* arguments[] = {&to, &n};
      CUDA_KERNEL_NODE_PARAMS params{};
      params.func = function("add_one");
      params.gridDimX = params.gridDimY = params.gridDimZ = 1;
      params.blockDimX = params.blockDimY = params.blockDimZ = 1;
      params.kernelParams = arguments;
      CUgraphNode node = nullptr;
      EXPECT_CU(cuGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
      return node;
    };
    const CUgraphNode here = kernel_add(&words[0], {});
    ASSERT_CU(cuCtxCreate(&second, nullptr, 0, 0));
    const CUgraphNode there = kernel_add(&words[1], {here});
    ASSERT_CU(cuCtxSetCurrent(first));
    kernel_add(&words[0], {there});
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
    ASSERT_CU(cuGraphLaunch(exec, nullptr));
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(words[0], 2U);
    EXPECT_EQ(words[1], 1U);
    // A context that is gone takes the code of its nodes along.
    ASSERT_CU(cuCtxDestroy(second));
    EXPECT_NE(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
    ASSERT_CU(cuCtxSynchronize());
  });
}

TEST_F(Driver, AContextGoesWhileItsGraphRuns) {
  softgpu_test::InChild([] {
    ASSERT_CU(cuInit(0));
    for (int round = 0; round < 10; ++round) {
      CUcontext context = nullptr;
      ASSERT_CU(cuCtxCreate(&context, nullptr, 0, 0));
      unsigned* word = nullptr;
      ASSERT_CU(cuMemHostAlloc(reinterpret_cast<void**>(&word), 64, 0));
      *word = 0;
      CUstreamBatchMemOpParams wait{};
      wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
      wait.waitValue.address = reinterpret_cast<CUdeviceptr>(word);
      wait.waitValue.value = 1;
      wait.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
      const CUDA_BATCH_MEM_OP_NODE_PARAMS params{context, 1, &wait, 0};
      CUgraph graph = nullptr;
      CUgraphExec exec = nullptr;
      ASSERT_CU(cuGraphCreate(&graph, 0));
      std::vector<CUgraphNode> branches(3);
      for (CUgraphNode& branch : branches)
        ASSERT_CU(cuGraphAddBatchMemOpNode(&branch, graph, nullptr, 0, &params));
      host_add(graph, branches, {[](void*) { ADD_FAILURE() << "nothing has let it go"; }, nullptr});
      ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
      ASSERT_CU(cuGraphLaunch(exec, nullptr));
      std::this_thread::sleep_for(std::chrono::milliseconds(round));
      ASSERT_CU(cuCtxDestroy(context));
      ASSERT_CU(cuGraphExecDestroy(exec));
      ASSERT_CU(cuGraphDestroy(graph));
    }
  });
}

TEST_F(Driver, GraphMemoryThatDoesNotFitRefusesTheLaunch) {
  WithContext([](CUcontext) {
    CUgraph graphs[2] = {};
    CUgraphExec execs[2] = {};
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUdeviceptr addresses[2] = {};
    for (int i = 0; i < 2; ++i) {
      CUgraphNode node = nullptr;
      params.bytesize = 128U << 20;
      ASSERT_CU(cuGraphCreate(&graphs[i], 0));
      ASSERT_CU(cuGraphAddMemAllocNode(&node, graphs[i], nullptr, 0, &params));
      addresses[i] = params.dptr;
      ASSERT_CU(cuGraphInstantiate(&execs[i], graphs[i], 0));
    }
    ASSERT_CU(cuGraphLaunch(execs[0], nullptr));
    EXPECT_EQ(cuGraphLaunch(execs[1], nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuCtxSynchronize());
    ASSERT_CU(cuMemFree(addresses[0]));
    // What the first one keeps for its next launch is given up for the second.
    EXPECT_CU(cuGraphLaunch(execs[1], nullptr));
    EXPECT_EQ(cuGraphLaunch(execs[0], nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuCtxSynchronize());
    // An allocation outlives its graph and its instance.
    ASSERT_CU(cuGraphExecDestroy(execs[1]));
    ASSERT_CU(cuGraphDestroy(graphs[1]));
    ASSERT_CU(cuMemsetD32(addresses[1], 7, 1));
    ASSERT_CU(cuMemFree(addresses[1]));
    EXPECT_EQ(cuMemsetD32(addresses[1], 7, 1), CUDA_ERROR_INVALID_VALUE);
  });
}

}  // namespace
