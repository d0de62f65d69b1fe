// Holds at random over the fake driver, under threads that make calls which touch no memory that a
// test could take away: events, texture references, links, graphs, streams, captures. From the
// acknowledgement of a hold to its end the driver counts whatever reaches it.
#include <atomic>
#include <random>
#include <vector>

#include "tests/interpose/guest.h"

namespace {

using sluice::protocol::kLeaseExclusive;
using sluice::protocol::kLeaseOpen;
using sluice::test::launch;
using sluice::test::TestBroker;

constexpr int kHolds = 200;
constexpr int kAcknowledgeMs = 30000;

template <class T>
T handle(uintptr_t value) {
  return reinterpret_cast<T>(value);
}

class HoldStressTest : public ::testing::Test {
 protected:
  void SetUp() override {
    broker = std::make_unique<TestBroker>(1ull << 30);
    broker->environment_set();
    broker->lease_store(kLeaseOpen);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  }

  template <class Body>
  void thread_add(Body body) {
    rounds.emplace_back(std::make_unique<std::atomic<int>>(0));
    threads.emplace_back([this, body, own = rounds.back().get()] {
      while (!stop) {
        body();
        ++*own;
      }
    });
  }

  // Of the questions only those that are answered without the device.
  void events() {
    thread_add([] {
      CUevent begin = nullptr, end = nullptr;
      EXPECT_EQ(cuEventCreate(&begin, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuEventCreate(&end, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecord(begin, nullptr), CUDA_SUCCESS);
      EXPECT_EQ(launch(), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecord(end, nullptr), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecord_ptsz(end, nullptr), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecordWithFlags(end, nullptr, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecordWithFlags_ptsz(end, nullptr, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamWaitEvent(handle<CUstream>(0x77), end, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamWaitEvent_ptsz(nullptr, end, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuCtxRecordEvent(handle<CUcontext>(0x1000), end), CUDA_SUCCESS);
      EXPECT_EQ(cuCtxWaitEvent(handle<CUcontext>(0x1000), end), CUDA_SUCCESS);
      EXPECT_EQ(cuEventQuery(end), CUDA_SUCCESS);
      float ms = 0;
      EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_SUCCESS);
      EXPECT_EQ(cuEventDestroy_v2(begin), CUDA_SUCCESS);
      EXPECT_EQ(cuEventDestroy_v2(end), CUDA_SUCCESS);
    });
  }
  void texture_references() {
    thread_add([] {
      const auto module = handle<CUmodule>(0x20);
      const auto array = handle<CUarray>(0x30);
      const auto reference = handle<CUtexref>(0x40);
      CUtexref texture = nullptr;
      CUsurfref surface = nullptr;
      size_t offset = 0;
      EXPECT_EQ(cuModuleGetTexRef(&texture, module, "t"), CUDA_SUCCESS);
      EXPECT_EQ(cuModuleGetSurfRef(&surface, module, "s"), CUDA_SUCCESS);
      EXPECT_EQ(cuTexRefCreate(&texture), CUDA_SUCCESS);
      EXPECT_EQ(cuTexRefSetAddress_v2(&offset, reference, 0x1000, 64), CUDA_SUCCESS);
      EXPECT_EQ(cuTexRefSetArray(reference, array, CU_TRSA_OVERRIDE_FORMAT), CUDA_SUCCESS);
      EXPECT_EQ(cuTexRefSetFormat(reference, CU_AD_FORMAT_FLOAT, 1), CUDA_SUCCESS);
      EXPECT_EQ(cuTexRefSetFlags(reference, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuSurfRefSetArray(handle<CUsurfref>(0x50), array, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuTexRefDestroy(reference), CUDA_SUCCESS);
    });
  }
  void links() {
    thread_add([] {
      CUlinkState link = nullptr;
      char text[] = "";
      void* image = nullptr;
      size_t bytes = 0;
      EXPECT_EQ(cuLinkCreate_v2(0, nullptr, nullptr, &link), CUDA_SUCCESS);
      EXPECT_EQ(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, text, 1, "l", 0, nullptr, nullptr),
                CUDA_SUCCESS);
      EXPECT_EQ(cuLinkComplete(link, &image, &bytes), CUDA_SUCCESS);
      EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
    });
  }
  void graphs() {
    thread_add([] {
      const auto graph = handle<CUgraph>(0x60);
      CUgraphNode node = nullptr;
      CUDA_KERNEL_NODE_PARAMS kernel{};
      CUDA_MEMSET_NODE_PARAMS fill{};
      CUgraphNodeParams any{};
      EXPECT_EQ(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &kernel), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, nullptr), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphAddNode(&node, graph, nullptr, 0, &any), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphDestroyNode(handle<CUgraphNode>(0x70)), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    });
  }
  void streams() {
    thread_add([] {
      const auto stream = handle<CUstream>(0x88);
      CUstream made = nullptr;
      EXPECT_EQ(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      EXPECT_EQ(sluice::test::launch_on(stream), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_EQ(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                           CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
                CUDA_SUCCESS);
      EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    });
  }
  // One that waited here would keep the capture, and with it the hold, from ever ending.
  void captures() {
    thread_add([] {
      const auto stream = handle<CUstream>(0x99), drawn = handle<CUstream>(0xaa);
      CUevent event = nullptr;
      EXPECT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
      EXPECT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecord_ptsz(event, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamWaitEvent(drawn, event, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
      CUgraph graph = nullptr;
      EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    });
  }

  void pause(int us_max) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<int>(0, us_max)(random)));
  }
  void hold() {
    broker->lease_store(0);
    broker->hold_store(true);
    ASSERT_TRUE(broker->wait_held(kAcknowledgeMs));
    __atomic_store_n(&fake.held, 1, __ATOMIC_SEQ_CST);
    pause(2000);
    __atomic_store_n(&fake.held, 0, __ATOMIC_SEQ_CST);
    broker->hold_store(false);
  }

  std::unique_ptr<TestBroker> broker;
  std::atomic<bool> stop{false};
  std::vector<std::unique_ptr<std::atomic<int>>> rounds;
  std::vector<std::thread> threads;
  std::mt19937 random;
};

TEST_F(HoldStressTest, NothingReachesTheDriver) {
  const char* wanted = getenv("SLUICE_STRESS_SEED");
  const unsigned seed = wanted != nullptr ? static_cast<unsigned>(strtoul(wanted, nullptr, 10))
                                          : std::random_device()();
  printf("seed %u\n", seed);
  fflush(stdout);
  random.seed(seed);
  events();
  events();
  texture_references();
  links();
  graphs();
  streams();
  captures();
  int held = 0;
  for (; held < kHolds && !HasFailure(); ++held) {
    broker->lease_store(kLeaseOpen | (held % 3 == 0 ? kLeaseExclusive : 0u));
    pause(1000);
    hold();
    EXPECT_EQ(fake.calls_while_held, 0u) << fake.held_offender;
  }
  stop = true;
  broker->hold_store(false);
  broker->lease_store(kLeaseOpen);
  for (std::thread& thread : threads) thread.join();
  for (const auto& own : rounds) EXPECT_GT(*own, 0);
}

}  // namespace
