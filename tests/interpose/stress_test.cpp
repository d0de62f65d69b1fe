// Leases and holds that open and close at random under threads that launch, copy, allocate, free,
// time, link and capture. During a hold that was acknowledged the test's broker takes the memory
// away for real: a touch is a signal or a failed kernel.
//
// What happens in an hour of a GPU that is shared, at the scheduler's pace: 360,000 quanta of 10
// ms, each of which opens or closes this tenant's lease, and 3,600 holds, one for each second in
// which memory is swapped. Here they follow each other as fast as threads that work in between
// allow. ctest runs a 36th of it; SLUICE_STRESS_HOURS=1 runs the whole, SLUICE_STRESS_SEED repeats
// a run.
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/forbidden_call.h"
#include "tests/interpose/softgpu_launch.h"

namespace {

using sluice::protocol::kLeaseExclusive;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;

constexpr size_t kPage = 4096;
constexpr size_t kBuffer = 16 * kPage;
constexpr int kChangesPerHour = 360'000;
constexpr int kHoldsPerHour = 3'600;
constexpr int kChangesPerHold = kChangesPerHour / kHoldsPerHour;
constexpr int kAcknowledgeMs = 30000;
constexpr unsigned kSpins = 500;

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
    threads.emplace_back([this, body, relaxes = relaxed] {
      begun.wait(false);
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      // Beside captures in the mode GLOBAL a thread in that mode may neither allocate nor wait.
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
      if (relaxes) {
        EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      }
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
      for (int i = 0; i < 20; ++i) EXPECT_EQ(launch(kSpins, stream, out), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    });
  }
  // Whatever waits or asks in this thread is the shim.
  void launching_and_nothing_else() {
    const CUstream stream = stream_make();
    const CUdeviceptr out = buffer();
    thread_add([=, this] { EXPECT_EQ(launch(kSpins, stream, out), CUDA_SUCCESS); });
  }
  // Their end comes while the helper fences what is in them.
  void launching_into_streams_that_end() {
    const CUdeviceptr out = buffer();
    thread_add([=, this] {
      const CUstream stream = stream_make();
      for (int i = 0; i < 3; ++i) EXPECT_EQ(launch(kSpins, stream, out), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
    });
  }
  void launching_on_its_default_stream() {
    const CUdeviceptr out = buffer();
    thread_add([=, this] {
      for (int i = 0; i < 50; ++i)
        EXPECT_EQ(launch(kSpins, CU_STREAM_PER_THREAD, out), CUDA_SUCCESS);
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
  // A stream that waits for another, between events that are made and destroyed.
  void timing() {
    const CUstream before = stream_make(), after = stream_make();
    const CUdeviceptr out = buffer();
    thread_add([=, this] {
      CUevent begin = nullptr, end = nullptr;
      EXPECT_EQ(cuEventCreate(&begin, CU_EVENT_DEFAULT), CUDA_SUCCESS);
      EXPECT_EQ(cuEventCreate(&end, CU_EVENT_DEFAULT), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecord(begin, before), CUDA_SUCCESS);
      EXPECT_EQ(launch(kSpins, before, out), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecord(end, before), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamWaitEvent(after, end, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuMemsetD8Async(out, 1, kBuffer, after), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(after), CUDA_SUCCESS);
      EXPECT_EQ(cuEventQuery(end), CUDA_SUCCESS);
      float ms = -1;
      EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_SUCCESS);
      EXPECT_GT(ms, 0);
      EXPECT_EQ(cuEventDestroy(begin), CUDA_SUCCESS);
      EXPECT_EQ(cuEventDestroy(end), CUDA_SUCCESS);
    });
  }
  // Links code, and builds a graph node by node, changes it and takes it apart.
  void linking_and_building() {
    const CUstream stream = stream_make();
    const CUdeviceptr out = buffer();
    thread_add([=, this] {
      CUlinkState link = nullptr;
      void* image = nullptr;
      size_t bytes = 0;
      std::string text = sluice::test::kPtx;
      EXPECT_EQ(cuLinkCreate(0, nullptr, nullptr, &link), CUDA_SUCCESS);
      EXPECT_EQ(cuLinkAddData(link, CU_JIT_INPUT_PTX, text.data(), text.size() + 1, "spin", 0,
                              nullptr, nullptr),
                CUDA_SUCCESS);
      EXPECT_EQ(cuLinkComplete(link, &image, &bytes), CUDA_SUCCESS);
      EXPECT_GT(bytes, 0u);
      EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
      CUgraph graph = nullptr, clone = nullptr;
      CUgraphNode fill = nullptr, kernel = nullptr;
      CUDA_MEMSET_NODE_PARAMS filled{};
      filled.dst = out;
      filled.elementSize = 1;
      filled.width = kBuffer;
      filled.height = 1;
      CUdeviceptr where = out;
      unsigned spins = kSpins;
      void* parameters[] = {&where, &spins};
      CUDA_KERNEL_NODE_PARAMS launched{};
      launched.func = spin;
      launched.gridDimX = launched.gridDimY = launched.gridDimZ = 1;
      launched.blockDimX = launched.blockDimY = launched.blockDimZ = 1;
      launched.kernelParams = parameters;
      EXPECT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphAddMemsetNode(&fill, graph, nullptr, 0, &filled, context), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphAddKernelNode(&kernel, graph, &fill, 1, &launched), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphKernelNodeSetParams(kernel, &launched), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphClone(&clone, graph), CUDA_SUCCESS);
      CUgraphExec exec = nullptr;
      EXPECT_EQ(cuGraphInstantiate(&exec, clone, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphDestroyNode(kernel), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphDestroy(clone), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    });
  }
  // As `allocating`, without the legacy stream, which captures of other default streams forbid.
  void allocating_beside_captures() {
    const CUstream stream = stream_make();
    thread_add([=, this] {
      const CUdeviceptr a = buffer(), b = buffer();
      EXPECT_EQ(cuMemsetD32Async(a, 1, kBuffer / 4, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuMemcpyDtoDAsync(b, a, kBuffer, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      buffer_free(a);
      buffer_free(b);
    });
  }
  // A thread's own default stream by a null handle, as programs compiled for it have it.
  void capturing_its_default_stream(CUstreamCaptureMode mode) {
    const auto begin = reinterpret_cast<decltype(&cuStreamBeginCapture)>(
        dlsym(RTLD_DEFAULT, "cuStreamBeginCapture_v2_ptsz"));
    const auto end = reinterpret_cast<decltype(&cuStreamEndCapture)>(
        dlsym(RTLD_DEFAULT, "cuStreamEndCapture_ptsz"));
    capturing(mode, CU_STREAM_PER_THREAD, nullptr, begin, end);
  }
  void capturing(CUstreamCaptureMode mode) {
    const CUstream stream = stream_make();
    capturing(mode, stream, stream, &cuStreamBeginCapture, &cuStreamEndCapture);
  }
  void capturing(CUstreamCaptureMode mode, CUstream stream, CUstream named,
                 decltype(&cuStreamBeginCapture) begin, decltype(&cuStreamEndCapture) end) {
    const CUdeviceptr out = buffer();
    thread_add([=, this] {
      EXPECT_EQ(begin(named, mode), CUDA_SUCCESS);
      EXPECT_EQ(launch(kSpins, stream, out), CUDA_SUCCESS);
      EXPECT_EQ(cuMemsetD8Async(out, 1, kBuffer, stream), CUDA_SUCCESS);
      CUgraph graph = nullptr;
      EXPECT_EQ(end(named, &graph), CUDA_SUCCESS);
      ++captures;
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
  // Now and then long enough for bursts, fences and full windows; mostly not.
  void pause() {
    const int us_max = one_in(50) ? 8000 : 150;
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<int>(0, us_max)(random)));
  }
  bool one_in(int n) { return std::uniform_int_distribution<int>(1, n)(random) == 1; }
  void leases_and_holds(bool exclusive, int changes) {
    int until_hold = 0;
    for (int change = 0; change < changes && !HasFailure(); change += 2) {
      const bool whole = exclusive && one_in(3);
      broker->lease_store(kLeaseOpen | (whole ? kLeaseExclusive : 0u));
      pause();
      broker->lease_store(0);
      until_hold -= 2;
      if (one_in(8)) {
        ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), kAcknowledgeMs));
      }
      // At random, and as many as there shall be.
      if (until_hold <= 0) {
        hold();
        const int due = kChangesPerHold * (holds + 1) - change;
        until_hold = std::uniform_int_distribution<int>(0, due > 0 ? 2 * due : 0)(random);
      }
      if (one_in(4)) pause();
    }
  }
  static int changes_wanted(double hours_by_default) {
    const char* hours = getenv("SLUICE_STRESS_HOURS");
    return static_cast<int>((hours != nullptr ? strtod(hours, nullptr) : hours_by_default) *
                            kChangesPerHour);
  }
  void run(bool exclusive, double hours_by_default = 1.0 / 36) {
    const char* wanted = getenv("SLUICE_STRESS_SEED");
    const unsigned seed = wanted != nullptr ? static_cast<unsigned>(strtoul(wanted, nullptr, 10))
                                            : std::random_device()();
    printf("seed %u\n", seed);
    fflush(stdout);
    random.seed(seed);
    const int changes = changes_wanted(hours_by_default);
    const auto begin = std::chrono::steady_clock::now();
    // All at once: who makes what the next thread needs may not allocate beside captures either.
    begun = true;
    begun.notify_all();
    leases_and_holds(exclusive, changes);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    stop = true;
    broker->hold_store(false);
    broker->lease_store(kLeaseOpen);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    printf("%d lease changes and %d holds in %.1f s, %d rounds of the program, %d captures\n",
           changes, holds, took.count(), rounds.load(), captures.load());
    EXPECT_GE(holds, changes / kChangesPerHold * 4 / 5);
    EXPECT_GT(rounds, holds);
    EXPECT_GT(captures, holds / 4);
  }

  std::mutex mutex;
  std::map<CUdeviceptr, size_t> listed;
  std::atomic<bool> begun{false}, stop{false};
  std::atomic<int> rounds{0}, captures{0};
  bool relaxed = false;
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
  launching_into_streams_that_end();
  copying(true);
  copying(false);
  allocating();
  pooling();
  timing();
  linking_and_building();
  capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  capturing(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  run(false);
}

TEST_F(StressTest, NorBesideCapturesOfEveryMode) {
  kernel_load();
  broker->window_set(2'000'000);
  launching_and_nothing_else();
  relaxed = true;
  launching();
  copying(true);
  allocating_beside_captures();
  pooling();
  timing();
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                          CU_STREAM_CAPTURE_MODE_RELAXED}) {
    capturing(mode);
    capturing_its_default_stream(mode);
  }
  run(false, 1.0 / 144);
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

// As in a sandbox whose filter knows no membarrier(2): every raise of a thread's words is followed
// by a fence instead, and launches go the long way.
class StressWithoutMembarrierTest : public StressTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(sluice::test::call_forbid(SYS_membarrier, ENOSYS));
    StressTest::SetUp();
  }
};

TEST_F(StressWithoutMembarrierTest, NothingTouchesMemoryThatAHoldTookAway) {
  kernel_load();
  broker->window_set(2'000'000);
  launching();
  launching_on_its_default_stream();
  launching_into_streams_that_end();
  copying(true);
  allocating();
  pooling();
  capturing(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  run(false, 1.0 / 144);
}

}  // namespace
