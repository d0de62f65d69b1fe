// Streams, events, launches and their errors.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/softgpu/driver/fixture.h"

extern "C" CUresult softgpuStreamDelay(CUstream stream, unsigned long long ns);
extern "C" CUresult softgpuStreamGoOn(CUstream stream);

namespace {

using Driver = softgpu_test::Driver;

CUresult launch(CUfunction function, unsigned grid, unsigned block, CUstream stream,
                std::vector<void*> params) {
  return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, params.data(), nullptr);
}

// More rounds than the device has queues: a program that forgets its events has streams all the
// same.
TEST_F(Driver, AnEventThatIsKeptKeepsNoQueueOfTheDevice) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc(&p, 16));
    for (int round = 0; round < 1100; ++round) {
      CUstream stream = nullptr;
      CUevent event = nullptr;
      ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
      ASSERT_CU(cuEventCreate(&event, CU_EVENT_DEFAULT));
      ASSERT_CU(cuMemsetD8Async(p, 1, 16, stream));
      ASSERT_CU(cuEventRecord(event, stream));
      if (round % 2 == 0) {
        ASSERT_CU(cuStreamSynchronize(stream));
      }
      ASSERT_CU(cuStreamDestroy(stream));
      if (round % 100 == 0) {
        ASSERT_CU(cuEventSynchronize(event));
      }
    }
  });
}

TEST_F(Driver, AKernelDoesItsWork) {
  WithContext([](CUcontext) {
    const CUfunction add = function("add_one");
    unsigned n = 1000;
    std::vector<unsigned> data(n, 41);
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc(&p, n * 4));
    ASSERT_CU(cuMemcpyHtoD(p, data.data(), n * 4));
    ASSERT_CU(launch(add, 4, 256, nullptr, {&p, &n}));
    ASSERT_CU(cuMemcpyDtoH(data.data(), p, n * 4));
    EXPECT_EQ(data, std::vector<unsigned>(n, 42));
    struct {
      CUdeviceptr p;
      unsigned n;
    } packed{p, n};
    std::size_t size = 12;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    ASSERT_CU(cuLaunchKernel(add, 4, 1, 1, 256, 1, 1, 0, nullptr, nullptr, extra));
    ASSERT_CU(cuMemcpyDtoH(data.data(), p, n * 4));
    EXPECT_EQ(data[999], 43U);
  });
}

// The default stream of a thread is the thread's: more threads than there can be streams, one after
// the other, and what the last ones left is done.
TEST_F(Driver, ThreadsTakeTheirDefaultStreamsWithThem) {
  WithContext([](CUcontext context) {
    constexpr unsigned kThreads = 2000;
    CUdeviceptr sum = 0;
    unsigned one = 1, read = 0;
    ASSERT_CU(cuMemAlloc(&sum, 4));
    ASSERT_CU(cuMemsetD32(sum, 0, 1));
    const CUfunction add = function("add_one");
    for (unsigned i = 0; i < kThreads; ++i) {
      std::thread([&] {
        EXPECT_CU(cuCtxSetCurrent(context));
        EXPECT_CU(launch(add, 1, 32, CU_STREAM_PER_THREAD, {&sum, &one}));
        if (i % 2 == 0) {
          EXPECT_CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        }
      }).join();
      if (i % 2 == 1) {
        ASSERT_CU(cuCtxSynchronize());
      }
      if (::testing::Test::HasFailure()) break;
    }
    ASSERT_CU(cuMemcpyDtoH(&read, sum, 4));
    EXPECT_EQ(read, kThreads);
  });
}

TEST_F(Driver, WithoutRoomForItsDefaultStreamAThreadIsRefused) {
  WithContext([](CUcontext) {
    std::vector<CUstream> streams(1);
    while (cuStreamCreate(&streams.back(), CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
      streams.push_back(nullptr);
    unsigned n = 1;
    const CUfunction spin = function("spin");
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(launch(spin, 1, 32, CU_STREAM_PER_THREAD, {&n}), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuStreamDestroy(streams.front()));
    EXPECT_CU(launch(spin, 1, 32, CU_STREAM_PER_THREAD, {&n}));
  });
}

TEST_F(Driver, LaunchesOutOfLimitsAreRefused) {
  WithContext([](CUcontext) {
    const CUfunction spin = function("spin");
    unsigned n = 1;
    void* params[] = {&n};
    const auto shape = [&](unsigned gx, unsigned gy, unsigned bx, unsigned bz, unsigned shared) {
      return cuLaunchKernel(spin, gx, gy, 1, bx, 1, bz, shared, nullptr, params, nullptr);
    };
    EXPECT_EQ(shape(0, 1, 32, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(shape(1, 65536, 32, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(shape(1, 1, 1025, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(shape(1, 1, 32, 65, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(shape(1, 1, 512, 4, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(shape(1, 1, 32, 1, 48 * 1024 + 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_CU(shape(1, 1, 32, 1, 48 * 1024));
    EXPECT_CU(
        cuFuncSetAttribute(spin, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 * 1024));
    EXPECT_CU(shape(1, 1, 32, 1, 100 * 1024));
    EXPECT_EQ(cuFuncSetAttribute(spin, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 164 * 1024),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLaunchCooperativeKernel(spin, 100000, 1, 1, 256, 1, 1, 0, nullptr, params),
              CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    EXPECT_EQ(cuLaunchKernel(reinterpret_cast<CUfunction>(&n), 1, 1, 1, 1, 1, 1, 0, nullptr, params,
                             nullptr),
              CUDA_ERROR_INVALID_HANDLE);
    EXPECT_CU(cuCtxSynchronize());
  });
}

// What passes between two pieces of work that the model gives 1 ms each, of which the host waits
// 50 ms in between, for whatever.
float ms_with_a_wait(bool goes_on) {
  CUevent begin = nullptr, end = nullptr;
  EXPECT_CU(cuEventCreate(&begin, CU_EVENT_DEFAULT));
  EXPECT_CU(cuEventCreate(&end, CU_EVENT_DEFAULT));
  EXPECT_CU(cuEventRecord(begin, nullptr));
  EXPECT_CU(softgpuStreamDelay(nullptr, 1'000'000));
  EXPECT_CU(cuStreamSynchronize(nullptr));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (goes_on) {
    EXPECT_CU(softgpuStreamGoOn(nullptr));
  }
  EXPECT_CU(softgpuStreamDelay(nullptr, 1'000'000));
  EXPECT_CU(cuEventRecord(end, nullptr));
  EXPECT_CU(cuEventSynchronize(end));
  float ms = 0;
  EXPECT_CU(cuEventElapsedTime(&ms, begin, end));
  EXPECT_CU(cuEventDestroy(begin));
  EXPECT_CU(cuEventDestroy(end));
  return ms;
}

TEST_F(Driver, AHostThatGoesOnHasTakenNoTime) {
  WithContext([](CUcontext) {
    EXPECT_GE(ms_with_a_wait(false), 50);
    const float together = ms_with_a_wait(true);
    EXPECT_GE(together, 2);
    EXPECT_LT(together, 50);  // and whatever the host took to submit all that
    EXPECT_GE(ms_with_a_wait(false), 50) << "what comes later counts again";
    // Other streams of the process go by the same clock.
    CUstream other = nullptr;
    CUevent begin = nullptr, end = nullptr;
    ASSERT_CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    ASSERT_CU(cuEventCreate(&end, CU_EVENT_DEFAULT));
    ASSERT_CU(softgpuStreamDelay(nullptr, 1));
    ASSERT_CU(cuEventRecord(begin, nullptr));
    ASSERT_CU(cuStreamSynchronize(nullptr));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_CU(softgpuStreamGoOn(nullptr));
    ASSERT_CU(cuEventRecord(end, other));
    ASSERT_CU(cuEventSynchronize(end));
    float ms = 0;
    ASSERT_CU(cuEventElapsedTime(&ms, begin, end));
    EXPECT_GE(ms, 0);
    EXPECT_LT(ms, 50);
    EXPECT_EQ(softgpuStreamGoOn(reinterpret_cast<CUstream>(64)), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(Driver, WithWorkToDoNobodyGoesOn) {
  WithContext([](CUcontext) {
    static std::atomic<bool> ends{false};
    ASSERT_CU(cuLaunchHostFunc(
        nullptr,
        [](void*) {
          while (!ends) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        nullptr));
    EXPECT_EQ(softgpuStreamGoOn(nullptr), CUDA_ERROR_NOT_READY);
    ends = true;
    ASSERT_CU(cuStreamSynchronize(nullptr));
    EXPECT_CU(softgpuStreamGoOn(nullptr));
  });
}

TEST_F(Driver, EventsTellModelledTime) {
  WithContext([](CUcontext) {
    const CUfunction spin = function("spin");
    CUevent begin = nullptr, end = nullptr, untimed = nullptr;
    ASSERT_CU(cuEventCreate(&begin, 0));
    ASSERT_CU(cuEventCreate(&end, 0));
    ASSERT_CU(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    float ms = 0;
    EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_INVALID_HANDLE) << "never recorded";
    EXPECT_CU(cuEventQuery(begin));
    unsigned n = 10000;
    ASSERT_CU(cuEventRecord(begin, nullptr));
    ASSERT_CU(launch(spin, 16, 32, nullptr, {&n}));
    ASSERT_CU(cuEventRecord(end, nullptr));
    ASSERT_CU(cuEventRecord(untimed, nullptr));
    ASSERT_CU(cuEventSynchronize(end));
    ASSERT_CU(cuEventElapsedTime(&ms, begin, end));
    // 16 blocks of one warp and about three instructions a turn, at 40 million a second.
    EXPECT_NEAR(ms, 16 * 3 * 10000 / 40e6 * 1e3, 1.0);
    EXPECT_EQ(cuEventElapsedTime(&ms, begin, untimed), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(Driver, TheLegacyStreamIsInOrderWithBlockingStreams) {
  WithContext([](CUcontext) {
    CUstream blocking = nullptr, free = nullptr;
    ASSERT_CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ASSERT_CU(cuStreamCreate(&free, CU_STREAM_NON_BLOCKING));
    static std::atomic<bool> gate{false};
    static std::atomic<int> order{0}, legacy_at{0}, after_at{0};
    const auto wait = [](void*) {
      while (!gate) std::this_thread::yield();
      ++order;
    };
    ASSERT_CU(cuLaunchHostFunc(blocking, wait, nullptr));
    ASSERT_CU(cuLaunchHostFunc(
        nullptr, [](void*) { legacy_at = ++order; }, nullptr));
    ASSERT_CU(cuLaunchHostFunc(
        blocking, [](void*) { after_at = ++order; }, nullptr));
    ASSERT_CU(cuLaunchHostFunc(
        free, [](void*) {}, nullptr));
    ASSERT_CU(cuStreamSynchronize(free));
    EXPECT_EQ(order, 0) << "the non-blocking stream did not wait";
    EXPECT_EQ(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    gate = true;
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(legacy_at, 2);
    EXPECT_EQ(after_at, 3);
    EXPECT_CU(cuStreamQuery(blocking));
  });
}

TEST_F(Driver, WaitingForAnEventOrdersStreams) {
  WithContext([](CUcontext) {
    CUstream first = nullptr, second = nullptr;
    CUevent event = nullptr;
    ASSERT_CU(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    static std::atomic<int> seen{0}, value{0};
    const auto slow = [](void*) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      value = 7;
    };
    ASSERT_CU(cuLaunchHostFunc(first, slow, nullptr));
    ASSERT_CU(cuEventRecord(event, first));
    ASSERT_CU(cuStreamWaitEvent(second, event, 0));
    ASSERT_CU(cuLaunchHostFunc(
        second, [](void*) { seen = value.load(); }, nullptr));
    ASSERT_CU(cuStreamSynchronize(second));
    EXPECT_EQ(seen, 7);
    EXPECT_CU(cuStreamDestroy(first));
    EXPECT_EQ(cuStreamSynchronize(first), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(Driver, AHostFunctionMayNotCallTheDriver) {
  WithContext([](CUcontext) {
    static std::atomic<int> result{-1};
    const auto call = [](void*) {
      CUdeviceptr p = 0;
      result = cuMemAlloc(&p, 16);
    };
    ASSERT_CU(cuLaunchHostFunc(nullptr, call, nullptr));
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
  });
}

TEST_F(Driver, AFaultStaysWithTheContext) {
  WithContext([](CUcontext context) {
    ASSERT_CU(launch(function("write_null"), 1, 32, nullptr, {}));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_CU(cuCtxDestroy(context));
    ASSERT_CU(cuCtxCreate(&context, nullptr, 0, 0));
    EXPECT_CU(cuMemAlloc(&p, 16)) << "a new context is healthy";
  });
}

}  // namespace
