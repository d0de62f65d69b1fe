// GPU-busy time where streams do something else between their launches, of several contexts of one
// process, and in the default streams of threads; as in busy_test.cpp, within one per cent.
#include <algorithm>

#include "tests/interpose/busy.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::test::BusyTest;

// Between its kernels the stream does something else, for which the GPU waits: that is not charged,
// unless it is the GPU's own work.
class BusyGapsTest : public BusyTest {
 protected:
  static constexpr int kRounds = 12;
  static constexpr unsigned kSpins = 5000;
  static constexpr size_t kBytes = 8u << 20;
  static constexpr int kPauseUs = 4000;
  void SetUp() override {
    BusyTest::SetUp();
    stream = stream_make();
    other = stream_make();
    ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&memory, kBytes), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAllocHost(&host, kBytes), CUDA_SUCCESS);
  }
  static void CUDA_CB pause(void*) { sleep_us(kPauseUs); }
  // Kernel, something else, kernel, over and over, waited for at the end of each round or not.
  template <class Between>
  void kernels_around(Between between) {
    for (const bool waits : {true, false}) {
      SCOPED_TRACE(waits);
      agrees([&] {
        for (int i = 0; i < kRounds; ++i) {
          ASSERT_EQ(launch(kSpins, stream), CUDA_SUCCESS);
          ASSERT_EQ(launch(kSpins, stream), CUDA_SUCCESS);
          between();
          ASSERT_EQ(launch(kSpins, stream), CUDA_SUCCESS);
          if (waits) {
            ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
          }
        }
        ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      });
    }
  }
  CUstream stream = nullptr, other = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  void* host = nullptr;
};

TEST_F(BusyGapsTest, AHostFunction) {
  kernels_around([&] { ASSERT_EQ(cuLaunchHostFunc(stream, pause, nullptr), CUDA_SUCCESS); });
}

TEST_F(BusyGapsTest, ACopy) {
  kernels_around([&] { ASSERT_EQ(cuMemcpyHtoDAsync(memory, host, kBytes, stream), CUDA_SUCCESS); });
}

TEST_F(BusyGapsTest, ACopyInAnotherStream) {
  kernels_around([&] {
    ASSERT_EQ(cuMemcpyHtoDAsync(memory, host, kBytes, other), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(event, other), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  });
}

// Settings, and copies within the device, are work like kernels.
TEST_F(BusyGapsTest, ASettingIsCharged) {
  copies_are_work = true;
  kernels_around([&] { ASSERT_EQ(cuMemsetD8Async(memory, 1, kBytes, stream), CUDA_SUCCESS); });
}

TEST_F(BusyGapsTest, ACopyWithinTheDeviceIsCharged) {
  copies_are_work = true;
  CUdeviceptr from = 0;
  ASSERT_EQ(cuMemAlloc(&from, kBytes), CUDA_SUCCESS);
  kernels_around([&] {
    ASSERT_EQ(cuMemcpyDtoDAsync(memory, from, kBytes, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyAsync(from, memory, kBytes, stream), CUDA_SUCCESS);
  });
}

TEST_F(BusyGapsTest, AnEventOfAnotherStream) {
  kernels_around([&] {
    ASSERT_EQ(cuLaunchHostFunc(other, pause, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(event, other), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  });
}

TEST_F(BusyGapsTest, AValueInMemory) {
  ASSERT_EQ(cuMemsetD32(memory, 0, 1), CUDA_SUCCESS);
  cuuint32_t value = 0;
  kernels_around([&] {
    ++value;
    ASSERT_EQ(cuStreamWaitValue32(stream, memory, value, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(other, pause, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWriteValue32(other, memory, value, 0), CUDA_SUCCESS);
  });
}

// Into the legacy stream, which stands between the launches of blocking streams.
TEST_F(BusyGapsTest, ACopyInTheLegacyStream) {
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  kernels_around(
      [&] { ASSERT_EQ(cuMemcpyHtoDAsync(memory, host, kBytes, nullptr), CUDA_SUCCESS); });
}

// Contexts of one process are on the GPU in turns, each within what the other's events enclose.
TEST_F(BusyTest, TwoContextsOfOneProcess) {
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, 0), CUDA_SUCCESS);
  CUmodule module = nullptr;
  CUfunction spin_second = nullptr;
  CUdeviceptr out = 0;
  ASSERT_EQ(cuModuleLoadData(&module, sluice::test::kPtx), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&spin_second, module, "spin"), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&out, 4), CUDA_SUCCESS);
  agrees([&] {
    for (int i = 0; i < 60; ++i) {
      unsigned n = 3000;
      void* parameters[] = {&out, &n};
      ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
      ASSERT_EQ(cuLaunchKernel(spin_second, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr),
                CUDA_SUCCESS);
      ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      ASSERT_EQ(launch(n), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  });
}

// A context that is destroyed with work in it: what it did until then is charged, at least as the
// device has it, and no more than the time that passed.
TEST_F(BusyTest, AContextThatEndsWithWorkInIt) {
  for (const int after_us : {2'000, 12'000, 70'000}) {
    SCOPED_TRACE(after_us);
    drain();
    broker->lease_store(kLeaseOpen);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 5; ++i) {
      CUcontext second = nullptr;
      ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, 0), CUDA_SUCCESS);
      CUmodule module = nullptr;
      CUfunction function = nullptr;
      CUdeviceptr out = 0;
      unsigned n = 300'000;  // 180 ms
      void* parameters[] = {&out, &n};
      ASSERT_EQ(cuModuleLoadData(&module, sluice::test::kPtx), CUDA_SUCCESS);
      ASSERT_EQ(cuModuleGetFunction(&function, module, "spin"), CUDA_SUCCESS);
      ASSERT_EQ(cuMemAlloc(&out, 4), CUDA_SUCCESS);
      ASSERT_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr),
                CUDA_SUCCESS);
      sleep_us(after_us);
      ASSERT_EQ(cuCtxDestroy(second), CUDA_SUCCESS);
      ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    }
    const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - begin;
    drain();
    EXPECT_GE(ours, 5 * 0.99e3 * after_us);
    EXPECT_GE(ours, std::min(device * 0.99, wall.count() * 0.9));
    EXPECT_LE(ours, wall.count());
  }
}

// Default streams of threads, into which only their own can record. What comes after a burst is
// another thread's wait, nothing, or the thread's end.
class BusyPerThreadTest : public BusyTest {
 protected:
  enum class After { kAnotherWaits, kNothing, kEnd };
  void bursts(After after, int count, int launches, unsigned spins) {
    agrees([&] {
      std::atomic<int> launched{0}, waited{0};
      const auto until = [](const std::atomic<int>& reached, int n) {
        while (reached < n) sleep_us(50);
      };
      const auto thread = [&](int first, int last) {
        EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        for (int i = first; i < last; ++i) {
          for (int k = 0; k < launches + i % 8; ++k)
            EXPECT_EQ(launch(spins, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
          launched = i + 1;
          if (after != After::kEnd) until(waited, i + 1);
        }
        thread_ends();
      };
      std::thread one;
      if (after != After::kEnd) one = std::thread(thread, 0, count);
      for (int i = 0; i < count; ++i) {
        if (after == After::kEnd) std::thread(thread, i, i + 1).join();
        until(launched, i + 1);
        if (after == After::kAnotherWaits) {
          EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        } else {
          sleep_us(80'000);  // longer than the burst takes
        }
        sleep_us(i % 3 * 1000);
        waited = i + 1;
      }
      if (one.joinable()) one.join();
    });
  }
};

TEST_F(BusyPerThreadTest, BurstsThatAnotherThreadWaitsFor) {
  bursts(After::kAnotherWaits, 12, 20, 2000);
}
// Some are over before the helper has looked twice.
TEST_F(BusyPerThreadTest, ShortBurstsThatAnotherThreadWaitsFor) {
  bursts(After::kAnotherWaits, 80, 6, 250);
}
TEST_F(BusyPerThreadTest, BurstsThatNobodyWaitsFor) { bursts(After::kNothing, 12, 20, 2000); }
TEST_F(BusyPerThreadTest, BurstsOfThreadsThatEnd) { bursts(After::kEnd, 12, 20, 2000); }

// Another stream of the context is busy before, meanwhile and after: the moment at which all of the
// context is done tells nothing of the thread's stream, and the time is charged once.
TEST_F(BusyPerThreadTest, BesideAStreamThatIsBusyForLong) {
  const CUstream other = stream_make();
  agrees([&] {
    ASSERT_EQ(launch(300'000, other), CUDA_SUCCESS);
    for (int i = 0; i < 10; ++i) {
      for (int k = 0; k < 20; ++k) ASSERT_EQ(launch(500, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
      sleep_us(5000);
    }
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  });
}

}  // namespace
