// Capture, its refusals, and graphs.
#include <vector>

#include "tests/softgpu/driver/fixture.h"

namespace {

using Driver = softgpu_test::Driver;

struct Work {
  Work() {
    EXPECT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT_CU(cuMemAlloc(&p, 4));
    EXPECT_CU(cuMemsetD32(p, 0, 1));
    EXPECT_CU(cuCtxSynchronize());
  }
  CUresult add(CUfunction function, CUstream on) {
    void* params[] = {&p, &n};
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, params, nullptr);
  }
  unsigned value() {
    unsigned v = 0;
    EXPECT_CU(cuMemcpyDtoH(&v, p, 4));
    return v;
  }
  CUstream stream = nullptr;
  CUdeviceptr p = 0;
  unsigned n = 1;
};

TEST_F(Driver, ACapturedStreamBecomesAGraph) {
  WithContext([](CUcontext) {
    Work work;
    const CUfunction add = function("add_one");
    ASSERT_CU(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_ILLEGAL_STATE);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    ASSERT_CU(cuStreamIsCapturing(work.stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ASSERT_CU(cuMemsetD32Async(work.p, 10, 1, work.stream));
    ASSERT_CU(work.add(add, work.stream));
    ASSERT_CU(work.add(add, work.stream));
    CUgraph graph = nullptr;
    ASSERT_CU(cuStreamEndCapture(work.stream, &graph));
    EXPECT_EQ(work.value(), 0U) << "nothing ran";
    std::size_t count = 0;
    ASSERT_CU(cuGraphGetNodes(graph, nullptr, &count));
    EXPECT_EQ(count, 3U);
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
    ASSERT_CU(cuGraphDestroy(graph));
    ASSERT_CU(cuGraphLaunch(exec, work.stream));
    ASSERT_CU(cuStreamSynchronize(work.stream));
    EXPECT_EQ(work.value(), 12U);
    ASSERT_CU(cuGraphExecDestroy(exec));
    EXPECT_EQ(cuGraphLaunch(exec, work.stream), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(Driver, SynchronisingACapturingStreamSpoilsTheCapture) {
  WithContext([](CUcontext) {
    Work work;
    ASSERT_CU(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(cuStreamSynchronize(work.stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuMemsetD32Async(work.p, 1, 1, work.stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(work.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, nullptr);
    EXPECT_CU(cuStreamSynchronize(work.stream));
  });
}

TEST_F(Driver, UnsafeCallsNeedRelaxedMode) {
  WithContext([](CUcontext) {
    Work work;
    CUdeviceptr p = 0;
    CUgraph graph = nullptr;
    ASSERT_CU(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ASSERT_CU(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_CU(cuMemAlloc(&p, 16));
    ASSERT_CU(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(cuMemAlloc(&p, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuStreamEndCapture(work.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  });
}

TEST_F(Driver, TheLegacyStreamIsForbiddenWhileABlockingStreamCaptures) {
  WithContext([](CUcontext) {
    Work work;
    CUstream blocking = nullptr;
    CUgraph graph = nullptr;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    ASSERT_CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ASSERT_CU(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    ASSERT_CU(cuStreamIsCapturing(blocking, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE) << "asking does not spoil it";
    EXPECT_EQ(cuMemsetD32(work.p, 1, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  });
}

TEST_F(Driver, ForkedStreamsMustJoin) {
  WithContext([](CUcontext) {
    Work work;
    CUstream side = nullptr;
    CUevent forked = nullptr, back = nullptr;
    CUgraph graph = nullptr;
    ASSERT_CU(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuEventCreate(&forked, 0));
    ASSERT_CU(cuEventCreate(&back, 0));
    const CUfunction add = function("add_one");
    const auto fork_into_side = [&] {
      ASSERT_CU(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
      ASSERT_CU(work.add(add, work.stream));
      ASSERT_CU(cuEventRecord(forked, work.stream));
      ASSERT_CU(cuStreamWaitEvent(side, forked, 0));
      ASSERT_CU(work.add(add, side));
    };
    fork_into_side();
    EXPECT_EQ(cuStreamEndCapture(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    EXPECT_EQ(cuStreamEndCapture(work.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    fork_into_side();
    ASSERT_CU(cuEventRecord(back, side));
    ASSERT_CU(cuStreamWaitEvent(work.stream, back, 0));
    EXPECT_CU(cuStreamEndCapture(work.stream, &graph));
    fork_into_side();
    EXPECT_EQ(cuEventQuery(forked), CUDA_ERROR_CAPTURED_EVENT);
    EXPECT_EQ(cuStreamEndCapture(work.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  });
}

TEST_F(Driver, AGraphByHandKeepsItsOrder) {
  WithContext([](CUcontext) {
    Work work;
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    CUDA_MEMSET_NODE_PARAMS set{};
    set.dst = work.p;
    set.value = 5;
    set.elementSize = 4;
    set.width = set.height = 1;
    void* params[] = {&work.p, &work.n};
    CUDA_KERNEL_NODE_PARAMS kernel{};
    kernel.func = function("add_one");
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
    kernel.blockDimX = 32;
    kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = params;
    CUcontext context = nullptr;
    ASSERT_CU(cuCtxGetCurrent(&context));
    CUgraphNode add = nullptr, first = nullptr;
    ASSERT_CU(
        cuGraphAddKernelNode(&add, graph, nullptr, 0, &kernel));  // added before what it depends on
    ASSERT_CU(cuGraphAddMemsetNode(&first, graph, nullptr, 0, &set, context));
    ASSERT_CU(cuGraphAddDependencies(graph, &first, &add, nullptr, 1));
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
    ASSERT_CU(cuGraphLaunch(exec, work.stream));
    ASSERT_CU(cuStreamSynchronize(work.stream));
    EXPECT_EQ(work.value(), 6U);
    ASSERT_CU(cuGraphAddDependencies(graph, &add, &first, nullptr, 1));
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE) << "a cycle";
  });
}

// Which of several nodes an update names must not depend on where their memory lies.
TEST_F(Driver, AnUpdateStopsAtTheFirstNodeThatDiffers) {
  WithContext([](CUcontext) {
    const CUDA_HOST_NODE_PARAMS host{[](void*) {}, nullptr};
    std::vector<CUgraphExec> kept;
    for (std::size_t round = 0; round < 20; ++round) {
      CUgraph graph = nullptr, other = nullptr;
      ASSERT_CU(cuGraphCreate(&graph, 0));
      ASSERT_CU(cuGraphCreate(&other, 0));
      CUgraphNode first = nullptr, node = nullptr;
      for (int i = 0; i < 4; ++i) {
        ASSERT_CU(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
        ASSERT_CU(cuGraphAddHostNode(&node, other, nullptr, 0, &host));
        if (i == 0) first = node;
      }
      CUgraphExec exec = nullptr;
      ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
      CUgraphExecUpdateResultInfo info{};
      EXPECT_EQ(cuGraphExecUpdate(exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
      EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
      EXPECT_EQ(info.errorNode, first);
      // The next one's nodes are given the memory of these, in another order.
      ASSERT_CU(cuGraphDestroy(graph));
      ASSERT_CU(cuGraphDestroy(other));
      kept.push_back(exec);
      if (round % 2 == 1) {
        for (const CUgraphExec each : kept) ASSERT_CU(cuGraphExecDestroy(each));
        kept.clear();
      }
    }
  });
}

}  // namespace
