// Programs that launch while their memory is moved out and in: what they made before a move -
// graphs, streams, events, modules - does after it what it did before. Each case is a process of
// its own.
#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/interpose/softgpu_launch.h"
#include "tests/interpose/softgpu_swap.h"

namespace {

using namespace sluice::test;
using sluice::protocol::kHoldIn;
using sluice::protocol::kHoldOut;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::Moved;

// data[i] = data[i] * factor + i, with a factor that lives in the module.
constexpr char kScalePtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 factor = 3;
.visible .entry scale(.param .u64 data, .param .u32 words)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [words];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd1, %rd1;
  mul.wide.u32 %rd2, %r5, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r6, [%rd3];
  ld.global.u32 %r7, [factor];
  mad.lo.s32 %r6, %r6, %r7, %r5;
  st.global.u32 [%rd3], %r6;
DONE:
  ret;
}
)";
constexpr unsigned kWords = 1 << 18;
constexpr size_t kBytes = kWords * 4;

class SwapLaunchTest : public SoftGpuLaunchTest {
 protected:
  SwapLaunchTest()
      : SoftGpuLaunchTest([] {
          Options o;
          o.swap = true;
          return o;
        }()) {}

  void scale_load() {
    ASSERT_EQ(cuModuleLoadData(&module, kScalePtx), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&scale, module, "scale"), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&source, kBytes), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&work, kBytes), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAllocHost(reinterpret_cast<void**>(&host), kBytes), CUDA_SUCCESS);
    fill(source, kBytes, 5);
    broker->lease_store(kLeaseOpen);
  }
  void scale_launch(CUdeviceptr data) {
    unsigned words = kWords;
    void* parameters[] = {&data, &words};
    ASSERT_EQ(cuLaunchKernel(scale, kWords / 128, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr),
              CUDA_SUCCESS);
  }
  /// What `host` must have when the source, scaled so many times by the factor, has come there.
  bool host_is(unsigned factor, int times = 1) {
    std::vector<unsigned> words = pattern(kBytes, 5);
    for (int n = 0; n < times; ++n)
      for (unsigned i = 0; i < kWords; ++i) words[i] = words[i] * factor + i;
    const bool same = std::equal(words.begin(), words.end(), host);
    std::fill_n(host, kWords, 0u);
    return same;
  }

  void out() {
    broker->lease_store(0);
    broker->hold_store(true);
    ASSERT_TRUE(broker->wait_held());
    std::vector<Moved> moved;
    ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldOut), 20000, &moved));
    ASSERT_EQ(moved.back().result, 0);
    ASSERT_GE(moved.back().bytes, 2 * kBytes);
  }
  void in() {
    std::vector<Moved> moved;
    ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldIn), 20000, &moved));
    ASSERT_EQ(moved.back().result, 0);
    broker->hold_store(false);
    broker->lease_store(kLeaseOpen);
  }

  CUmodule module = nullptr;
  CUfunction scale = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr source = 0, work = 0;
  unsigned* host = nullptr;
};

// Captured, and instantiated, before the first move; its nodes have the addresses and the code of
// then. Launched after each move, and in the middle of one, where it waits for the memory.
TEST_F(SwapLaunchTest, AGraphInstantiatedBeforeAMoveIsRightAfterIt) {
  scale_load();
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoDAsync(work, source, kBytes, stream), CUDA_SUCCESS);
  scale_launch(work);
  ASSERT_EQ(cuMemcpyDtoHAsync(host, work, kBytes, stream), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  const auto run = [&] {
    ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  };
  run();
  ASSERT_TRUE(host_is(3));
  for (int round = 0; round < 3; ++round) {
    out();
    std::atomic<bool> ran{false};
    std::thread program([&] {
      ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      run();
      ran = true;
    });
    EXPECT_LT(device_bytes(), kContext + kMiB) << "nothing is left but the module";
    EXPECT_FALSE(ran);
    in();
    program.join();
    EXPECT_TRUE(host_is(3)) << "launched while its memory was away, round " << round;
    run();
    EXPECT_TRUE(host_is(3)) << "launched afterwards, round " << round;
  }
  // A graph made of nodes by hand, and one of its nodes changed after a move.
  CUDA_KERNEL_NODE_PARAMS kernel{};
  unsigned words = kWords;
  void* parameters[] = {&work, &words};
  kernel.func = scale;
  kernel.gridDimX = kWords / 128;
  kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.blockDimX = 128;
  kernel.kernelParams = parameters;
  CUgraph made = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec twice = nullptr;
  ASSERT_EQ(cuGraphCreate(&made, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddKernelNode(&node, made, nullptr, 0, &kernel), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphInstantiate(&twice, made, 0), CUDA_SUCCESS);
  out();
  in();
  ASSERT_EQ(cuGraphLaunch(twice, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host, work, kBytes, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_TRUE(host_is(3, 2)) << "on what the other graph has left";
  parameters[0] = &source;
  ASSERT_EQ(cuGraphExecKernelNodeSetParams(twice, node, &kernel), CUDA_SUCCESS);
  out();
  in();
  ASSERT_EQ(cuGraphLaunch(twice, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host, source, kBytes, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_TRUE(host_is(3)) << "the node as it was changed";
}

TEST_F(SwapLaunchTest, StreamsEventsAndModulesOfBeforeAMoveAreThoseOfAfterIt) {
  scale_load();
  CUevent before = nullptr, after = nullptr;
  ASSERT_EQ(cuEventCreate(&before, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&after, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  CUdeviceptr factor = 0;
  size_t factor_bytes = 0;
  ASSERT_EQ(cuModuleGetGlobal(&factor, &factor_bytes, module, "factor"), CUDA_SUCCESS);
  const unsigned seven = 7;
  ASSERT_EQ(cuMemcpyHtoD(factor, &seven, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoDAsync(work, source, kBytes, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(before, stream), CUDA_SUCCESS);
  out();  // which waits for the copy
  in();
  EXPECT_EQ(cuEventQuery(before), CUDA_SUCCESS);
  CUstream other = nullptr;
  ASSERT_EQ(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(other, before, 0), CUDA_SUCCESS);
  scale_launch(work);
  ASSERT_EQ(cuEventRecord(after, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(other, after, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host, work, kBytes, other), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_TRUE(host_is(7)) << "the module has its code, and what was stored in it";
  float ms = 0;
  EXPECT_EQ(cuEventElapsedTime(&ms, before, after), CUDA_SUCCESS);
  EXPECT_GT(ms, 0);
  unsigned flags = 0;
  EXPECT_EQ(cuStreamGetFlags(stream, &flags), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  CUdeviceptr again = 0;
  ASSERT_EQ(cuModuleGetGlobal(&again, &factor_bytes, module, "factor"), CUDA_SUCCESS);
  EXPECT_EQ(again, factor);
  CUfunction found = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&found, module, "scale"), CUDA_SUCCESS);
  EXPECT_EQ(found, scale);
  ASSERT_EQ(cuEventDestroy(before), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  agrees("after all of it is gone");
}

// Kernels, copies, allocations and frees go on in several threads while the memory moves out and
// in: every word that was written is read back.
TEST_F(SwapLaunchTest, ProgramsNoticeNothingWhileTheirMemoryMoves) {
  kernel_load();
  broker->lease_store(kLeaseOpen);
  std::atomic<bool> stop{false};
  std::atomic<int> turns{0};
  const auto program = [&](unsigned seed) {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CUstream own = nullptr;
    ASSERT_EQ(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CUdeviceptr kept = 0;
    ASSERT_EQ(cuMemAlloc(&kept, kMiB), CUDA_SUCCESS);
    fill(kept, kMiB, seed);
    for (unsigned turn = 1; !stop; ++turn) {
      CUdeviceptr p = 0;
      ASSERT_EQ(cuMemAlloc(&p, turn % 3 == 0 ? 3 * kMiB : 3000 * seed), CUDA_SUCCESS);
      for (unsigned k = 0; k < 5; ++k) ASSERT_EQ(launch(100 + turn % 50, own, p), CUDA_SUCCESS);
      unsigned word = 0;
      ASSERT_EQ(cuMemcpyDtoHAsync(&word, p, 4, own), CUDA_SUCCESS);
      ASSERT_EQ(cuStreamSynchronize(own), CUDA_SUCCESS);
      ASSERT_EQ(word, 100 + turn % 50);
      unsigned type = 0;
      ASSERT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p), CUDA_SUCCESS);
      ASSERT_EQ(cuMemFree(p), CUDA_SUCCESS);
      if (turn % 8 == 0) {
        ASSERT_TRUE(has(kept, kMiB, seed));
      }
      ++turns;
    }
    ASSERT_TRUE(has(kept, kMiB, seed));
  };
  std::vector<std::thread> programs;
  for (unsigned seed = 1; seed <= 3; ++seed) programs.emplace_back(program, seed);
  uint64_t moved_bytes = 0;
  for (int round = 0; round < 12; ++round) {
    const int before = turns;
    ASSERT_TRUE(eventually([&] { return turns > before + 5; }));
    broker->lease_store(0);
    broker->hold_store(true);
    ASSERT_TRUE(broker->wait_held());
    std::vector<Moved> moved;
    ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldOut), 20000, &moved));
    EXPECT_EQ(moved.back().result, 0);
    EXPECT_EQ(device_bytes(), kContext);
    moved_bytes += moved.back().bytes;
    ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldIn), 20000, &moved));
    EXPECT_EQ(moved.back().result, 0);
    broker->hold_store(false);
    broker->lease_store(kLeaseOpen);
  }
  stop = true;
  for (std::thread& each : programs) each.join();
  EXPECT_GT(moved_bytes, 12 * kMiB);
}

}  // namespace
