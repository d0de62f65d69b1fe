// GPU-busy time where streams wait for each other, where long work is beside short, and where the
// process is stopped meanwhile; as in busy_test.cpp, within one per cent.
#include <signal.h>
#include <sys/wait.h>

#include "tests/interpose/busy.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::test::BusyTest;

// Kernels that take the GPU a given time and the host none.
constexpr char kTimedPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry brief(.param .u64 out) { ret; }
.visible .entry middling(.param .u64 out) { ret; }
.visible .entry lasting(.param .u64 out) { ret; }
)";

class BusyTimedTest : public BusyTest {
 protected:
  BusyTimedTest() {
    setenv("SOFTGPU_TIMED", "brief=50us/skip,middling=2ms/skip,lasting=10ms/skip", 1);
  }
  void SetUp() override {
    BusyTest::SetUp();
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, kTimedPtx), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&brief, module, "brief"), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&middling, module, "middling"), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&lasting, module, "lasting"), CUDA_SUCCESS);
  }
  CUresult launch_timed(CUfunction function, CUstream stream) {
    void* parameters[] = {&result};
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
  }
  CUfunction brief = nullptr, middling = nullptr, lasting = nullptr;
};

// The short ones are by themselves in the time of the long ones, which are told last.
TEST_F(BusyTimedTest, ManyShortKernelsBesideLongOnes) {
  const CUstream shorts = stream_make(), longs = stream_make();
  agrees([&] {
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(launch_timed(lasting, longs), CUDA_SUCCESS);
      while (cuStreamQuery(longs) == CUDA_ERROR_NOT_READY) {
        ASSERT_EQ(launch_timed(brief, shorts), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamSynchronize(shorts), CUDA_SUCCESS);
        sleep_us(20);
      }
      ASSERT_EQ(cuStreamSynchronize(longs), CUDA_SUCCESS);
    }
  });
}

// Each kernel waits for the one in the stream before, and all for a long one: idle streams, told of
// last to first, whose first event passes long after their kernel came. Nothing of that is lost.
TEST_F(BusyTimedTest, AChainThroughManyStreams) {
  constexpr size_t kStreams = 20;
  CUevent events[kStreams];
  for (CUevent& event : events)
    ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  drain();
  broker->lease_store(kLeaseOpen);
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < 30; ++round) {
    CUstream streams[kStreams];
    for (size_t i = 0; i < kStreams; ++i) {
      streams[i] = stream_make();
      if (i > 0) {
        ASSERT_EQ(cuStreamWaitEvent(streams[i], events[i - 1], 0), CUDA_SUCCESS);
      }
      ASSERT_EQ(launch_timed(i == 0 ? lasting : brief, streams[i]), CUDA_SUCCESS);
      ASSERT_EQ(cuEventRecord(events[i], streams[i]), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuStreamSynchronize(streams[kStreams - 1]), CUDA_SUCCESS);
    for (const CUstream stream : streams) ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  }
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - begin;
  drain();
  EXPECT_GE(ours, device * 0.999);
  EXPECT_LE(ours, wall.count());
}

// Streams that block, by which the legacy stream waits, and others by way of that.
class BusyLegacyTest : public BusyTimedTest {
 protected:
  void SetUp() override {
    BusyTimedTest::SetUp();
    for (CUstream* one : {&idle, &busy})
      ASSERT_EQ(cuStreamCreate(one, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  }
  void pause() {
    const auto sleep = [](void*) { sleep_us(4000); };
    ASSERT_EQ(cuLaunchHostFunc(idle, sleep, nullptr), CUDA_SUCCESS);
  }
  CUstream idle = nullptr, busy = nullptr;
};

TEST_F(BusyLegacyTest, TheLegacyStreamWaitsForAHostFunctionElsewhere) {
  agrees([&] {
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(launch_timed(lasting, nullptr), CUDA_SUCCESS);
      pause();
      ASSERT_EQ(launch_timed(lasting, nullptr), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  });
}

TEST_F(BusyLegacyTest, AStreamThatWaitsForTheLegacyOneWaitsForWhatThatWaitsFor) {
  agrees([&] {
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(launch_timed(middling, busy), CUDA_SUCCESS);
      pause();
      ASSERT_EQ(launch_timed(middling, nullptr), CUDA_SUCCESS);
      ASSERT_EQ(launch_timed(middling, busy), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  });
}

// What a failed context was doing until then, whether it is seen at once or not.
constexpr char kFailingPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry fail(.param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<3>;
  .reg .b64 %rd<2>;
  ld.param.u32 %r1, [n];
  mov.u32 %r2, 0;
LOOP:
  add.s32 %r2, %r2, 1;
  setp.lt.s32 %p1, %r2, %r1;
  @%p1 bra LOOP;
  mov.u64 %rd1, 8;
  st.global.u32 [%rd1], %r2;
  ret;
}
)";

TEST_F(BusyTest, AKernelThatFails) {
  for (unsigned n : {10'000u, 100'000u}) {  // 6 ms, 60 ms
    SCOPED_TRACE(n);
    drain();
    broker->lease_store(kLeaseOpen);
    CUcontext second = nullptr;
    ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, 0), CUDA_SUCCESS);
    CUmodule module = nullptr;
    CUfunction fail = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, kFailingPtx), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&fail, module, "fail"), CUDA_SUCCESS);
    void* parameters[] = {&n};
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(cuLaunchKernel(fail, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    drain();
    const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(ours, device * 0.99);
    EXPECT_LE(ours, wall.count());
    const double told = device;
    drain();
    EXPECT_LE(device, told * 0.01) << "drained, and the failed context still runs";
    ASSERT_EQ(cuCtxDestroy(second), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
}

// Past the shim, which would see the events.
template <class F>
F driver_call(const char* name) {
  return reinterpret_cast<F>(sluice::test::unhooked(name));
}

// Until a host has seen the end of a kernel and launched the next one, the GPU is idle. So one that
// fills the window is followed shortly before it ends, and never by two.
TEST_F(BusyTimedTest, AKernelThatFillsTheWindowIsFollowedWithoutAGap) {
  constexpr int kLaunches = 100, kLearned = 20;
  const auto record = driver_call<decltype(&cuEventRecord)>("cuEventRecord");
  const auto query = driver_call<decltype(&cuEventQuery)>("cuEventQuery");
  ASSERT_TRUE(record != nullptr && query != nullptr);
  const CUstream stream = stream_make();
  broker->window_set(1'000'000);
  for (int i = 0; i < kLearned; ++i) {
    ASSERT_EQ(launch_timed(middling, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  CUevent ends[kLaunches];
  int followed = 0;
  for (int i = 0; i < kLaunches; ++i) {
    ASSERT_EQ(cuEventCreate(&ends[i], CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(launch_timed(middling, stream), CUDA_SUCCESS);
    ASSERT_EQ(record(ends[i], stream), CUDA_SUCCESS);
    if (i > 0) followed += query(ends[i - 1]) == CUDA_ERROR_NOT_READY ? 1 : 0;
    if (i > 1) {
      EXPECT_EQ(query(ends[i - 2]), CUDA_SUCCESS) << "launch " << i;
    }
  }
  EXPECT_GE(followed, kLaunches / 4);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
}

// By job control, a debugger, a freezer of the system: the GPU ends what it has, and nobody is
// there to see when.
TEST_F(BusyTimedTest, AProcessThatIsStopped) {
  constexpr int kStoppedUs = 500'000, kLaunches = 16;
  const CUstream stream = stream_make();
  const auto query = driver_call<decltype(&cuStreamQuery)>("cuStreamQuery");
  ASSERT_NE(query, nullptr);
  for (int i = 0; i < 5; ++i) {
    drain();
    broker->lease_store(kLeaseOpen);
    const pid_t self = getpid(), child = fork();
    if (child == 0) {
      sleep_us(kStoppedUs);
      kill(self, SIGCONT);
      _exit(0);
    }
    for (int k = 0; k < kLaunches; ++k) ASSERT_EQ(launch_timed(brief, stream), CUDA_SUCCESS);
    // Most of the burst has no event behind it yet. The software GPU is in the process, and what it
    // has not ended it cannot end: all has passed, as on a GPU it would meanwhile. The shim's own
    // query would put an event behind the burst.
    while (query(stream) == CUDA_ERROR_NOT_READY) sleep_us(20);
    ASSERT_EQ(kill(self, SIGSTOP), 0);
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    drain();
    EXPECT_GE(ours, device * 0.9);
    EXPECT_LE(ours, device + 200e6);
  }
}

}  // namespace
