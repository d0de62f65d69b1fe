// Leases and holds that open and close at random under threads that launch, copy, allocate, free
// and capture. During a hold that was acknowledged the test's broker takes the memory away for
// real: a touch is a signal or a failed kernel. SLUICE_STRESS_SEED repeats a run.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/interpose/softgpu_launch.h"

namespace {

using sluice::protocol::kLeaseExclusive;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;

constexpr size_t kPage = 4096;
constexpr size_t kBuffer = 16 * kPage;
constexpr auto kDuration = std::chrono::seconds(4);
constexpr int kAcknowledgeMs = 30000;
constexpr unsigned kSpin = 500;

class StressTest : public sluice::test::SoftGpuLaunchTest {
 protected:
  // What is taken away in a hold. Memory enters after it was allocated and leaves before it is
  // freed, so what is listed is the program's.
  void list(CUdeviceptr address) {
    const std::lock_guard lock(mutex);
    ASSERT_EQ(address % kPage, 0u);
    listed[address] = kBuffer;
  }
  void unlist(CUdeviceptr address) {
    const std::lock_guard lock(mutex);
    listed.erase(address);
  }
  void memory_protect(int protection) {
    for (const auto& [address, bytes] : listed)
      ASSERT_EQ(mprotect(reinterpret_cast<void*>(address), bytes, protection), 0);
  }
  CUdeviceptr buffer() {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc(&address, kBuffer), CUDA_SUCCESS);
    list(address);
    return address;
  }
  void buffer_free(CUdeviceptr address) {
    unlist(address);
    EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  }
  CUstream stream_make() {
    CUstream stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
  }
  bool running() const { return !stop && !HasFailure(); }
  template <class Body>
  void thread_add(Body body) {
    threads.emplace_back([this, body] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      while (running()) {
        body();
        ++rounds;
      }
    });
  }

  void launching() {
    const CUstream stream = stream_make();
    const CUdeviceptr out = buffer();
    thread_add([=, this] {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(launch(kSpin, stream, out), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    });
  }
  void launching_on_its_default_stream() {
    const CUdeviceptr out = buffer();
    thread_add([=, this] {
      for (int i = 0; i < 50; ++i)
        EXPECT_EQ(launch(kSpin, CU_STREAM_PER_THREAD, out), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
    });
  }
  void copying(bool wait) {
    const CUstream stream = stream_make();
    const CUdeviceptr device = buffer();
    thread_add([=] {
      static thread_local std::vector<char> host(kBuffer);
      EXPECT_EQ(cuMemsetD8Async(device, 7, kBuffer, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuMemcpyDtoHAsync(host.data(), device, kBuffer, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuMemcpyHtoDAsync(device, host.data(), kBuffer, stream), CUDA_SUCCESS);
      if (!wait) return;
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_EQ(host[kBuffer - 1], 7);
    });
  }
  void allocating() {
    thread_add([this] {
      const CUdeviceptr a = buffer(), b = buffer();
      EXPECT_EQ(cuMemsetD32(a, 1, kBuffer / 4), CUDA_SUCCESS);
      EXPECT_EQ(cuMemcpyDtoD(b, a, kBuffer), CUDA_SUCCESS);
      buffer_free(a);
      buffer_free(b);
    });
  }
  void pooling() {
    const CUstream stream = stream_make();
    thread_add([=] {
      CUdeviceptr address = 0;
      EXPECT_EQ(cuMemAllocAsync(&address, kBuffer, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuMemsetD8Async(address, 1, kBuffer, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuMemFreeAsync(address, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    });
  }
  void capturing(CUstreamCaptureMode mode) {
    const CUstream stream = stream_make();
    const CUdeviceptr out = buffer();
    thread_add([=, this] {
      EXPECT_EQ(cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
      EXPECT_EQ(launch(kSpin, stream, out), CUDA_SUCCESS);
      EXPECT_EQ(cuMemsetD8Async(out, 1, kBuffer, stream), CUDA_SUCCESS);
      CUgraph graph = nullptr;
      EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
      CUgraphExec exec = nullptr;
      EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
      for (int i = 0; i < 10; ++i) EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    });
  }

  void hold() {
    broker->hold_store(true);
    ASSERT_TRUE(broker->wait_held(kAcknowledgeMs));
    {
      const std::lock_guard lock(mutex);
      memory_protect(PROT_NONE);
    }
    pause();
    {
      const std::lock_guard lock(mutex);
      memory_protect(PROT_READ | PROT_WRITE);
    }
    broker->hold_store(false);
    ++holds;
  }
  void pause() {
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<int>(0, 8000)(random)));
  }
  bool one_in(int n) { return std::uniform_int_distribution<int>(1, n)(random) == 1; }
  void leases_and_holds(bool exclusive) {
    const auto end = std::chrono::steady_clock::now() + kDuration;
    while (std::chrono::steady_clock::now() < end && !HasFailure()) {
      const bool whole = exclusive && one_in(3);
      broker->lease_store(kLeaseOpen | (whole ? kLeaseExclusive : 0u));
      pause();
      broker->lease_store(0);
      if (one_in(2)) {
        ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), kAcknowledgeMs));
      }
      if (one_in(2)) hold();
      if (one_in(4)) pause();
    }
  }
  void run(bool exclusive) {
    const char* wanted = getenv("SLUICE_STRESS_SEED");
    const unsigned seed = wanted != nullptr ? static_cast<unsigned>(strtoul(wanted, nullptr, 10))
                                            : std::random_device()();
    printf("seed %u\n", seed);
    fflush(stdout);
    random.seed(seed);
    leases_and_holds(exclusive);
    stop = true;
    broker->hold_store(false);
    broker->lease_store(kLeaseOpen);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    printf("%d rounds of the program, %d holds\n", rounds.load(), holds);
    EXPECT_GT(holds, 10);
    EXPECT_GT(rounds, 20);
  }

  std::mutex mutex;
  std::map<CUdeviceptr, size_t> listed;
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  int holds = 0;
  std::mt19937 random;
  std::vector<std::thread> threads;
};

TEST_F(StressTest, NothingTouchesMemoryThatAHoldTookAway) {
  kernel_load();
  broker->window_set(2'000'000);
  launching();
  launching();
  launching_on_its_default_stream();
  copying(true);
  copying(false);
  allocating();
  pooling();
  capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  run(false);
}

TEST_F(StressTest, NorWithExclusiveLeases) {
  kernel_load();
  broker->window_set(2'000'000);
  launching();
  launching_on_its_default_stream();
  copying(true);
  allocating();
  capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  run(true);
}

}  // namespace
