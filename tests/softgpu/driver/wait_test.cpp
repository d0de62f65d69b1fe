// What waiting costs: a process that waits for the device, or has nothing to do, leaves the
// processor to others. Asserted is processor time against the time that passed, which a loaded
// machine does not change.
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

#include "tests/softgpu/driver/fixture.h"

extern "C" CUresult softgpuStreamDelay(CUstream stream, unsigned long long ns);
extern "C" CUresult softgpuStreamGoOn(CUstream stream);

namespace {

using namespace std::chrono_literals;

constexpr double kWaitingMax = 0.03;  // of one processor
/// Of instructions a second, for the device as a whole: the kernel below takes more than a second
/// of modelled time, and next to nothing to execute.
constexpr char kSlowRate[] = "2000";
constexpr unsigned kRounds = 60;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Runs `wait`, which must take a second, and tells what it cost.
void expect_cheap(const char* what, const std::function<void()>& wait) {
  const double start = seconds_of(CLOCK_MONOTONIC), used = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  wait();
  const double passed = seconds_of(CLOCK_MONOTONIC) - start;
  EXPECT_GE(passed, 1.0) << what << ": this was no wait";
  EXPECT_LE((seconds_of(CLOCK_PROCESS_CPUTIME_ID) - used) / passed, kWaitingMax) << what;
}

class Waiting : public softgpu_test::Driver {
 protected:
  Waiting() {
    setenv("SOFTGPU_PACING", "1", 1);
    setenv("SOFTGPU_RATE", kSlowRate, 1);
  }
  /// More than a second of modelled time in `stream`.
  static void launch_long(CUfunction spin, CUstream stream) {
    unsigned rounds = kRounds;
    void* params[] = {&rounds};
    ASSERT_CU(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, nullptr));
  }
};

TEST_F(Waiting, ForAStreamSleeps) {
  WithContext([](CUcontext) {
    const CUfunction spin = function("spin");
    CUstream stream = nullptr;
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    expect_cheap("cuStreamSynchronize", [&] {
      launch_long(spin, stream);
      ASSERT_CU(cuStreamSynchronize(stream));
    });
  });
}

// With pacing the device's time passes with the host's, whoever waits for whom.
TEST_F(Waiting, GoingOnTakesNothingOffPacedTime) {
  WithContext([](CUcontext) {
    CUevent begin = nullptr, end = nullptr;
    ASSERT_CU(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    ASSERT_CU(cuEventCreate(&end, CU_EVENT_DEFAULT));
    ASSERT_CU(cuEventRecord(begin, nullptr));
    ASSERT_CU(softgpuStreamDelay(nullptr, 1'000'000));
    ASSERT_CU(cuStreamSynchronize(nullptr));
    std::this_thread::sleep_for(50ms);
    ASSERT_CU(softgpuStreamGoOn(nullptr));
    ASSERT_CU(softgpuStreamDelay(nullptr, 1'000'000));
    ASSERT_CU(cuEventRecord(end, nullptr));
    ASSERT_CU(cuEventSynchronize(end));
    float ms = 0;
    ASSERT_CU(cuEventElapsedTime(&ms, begin, end));
    EXPECT_GE(ms, 50);
  });
}

TEST_F(Waiting, ForAnEventSleeps) {
  WithContext([](CUcontext) {
    const CUfunction spin = function("spin");
    CUevent event = nullptr;
    ASSERT_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    expect_cheap("cuEventSynchronize", [&] {
      launch_long(spin, nullptr);
      ASSERT_CU(cuEventRecord(event, nullptr));
      ASSERT_CU(cuEventSynchronize(event));
    });
  });
}

TEST_F(Waiting, ForAnotherThreadsWorkSleeps) {
  WithContext([](CUcontext context) {
    const CUfunction spin = function("spin");
    expect_cheap("two threads in cuCtxSynchronize", [&] {
      launch_long(spin, nullptr);
      std::thread other([&] {
        ASSERT_CU(cuCtxSetCurrent(context));
        ASSERT_CU(cuCtxSynchronize());
      });
      ASSERT_CU(cuCtxSynchronize());
      other.join();
    });
  });
}

TEST_F(Waiting, ForAHostFunctionSleeps) {
  WithContext([](CUcontext) {
    expect_cheap("cuStreamSynchronize behind a host function", [] {
      ASSERT_CU(cuLaunchHostFunc(
          nullptr, [](void*) { std::this_thread::sleep_for(1100ms); }, nullptr));
      ASSERT_CU(cuStreamSynchronize(nullptr));
    });
  });
}

TEST_F(Waiting, ForAWordOfMemorySleeps) {
  WithContext([](CUcontext) {
    unsigned* word = nullptr;
    ASSERT_CU(cuMemAllocHost(reinterpret_cast<void**>(&word), 4));
    *word = 0;
    const auto address = reinterpret_cast<CUdeviceptr>(word);
    expect_cheap("cuStreamWaitValue32", [&] {
      ASSERT_CU(cuStreamWaitValue32(nullptr, address, 1, CU_STREAM_WAIT_VALUE_EQ));
      std::thread opener([&] {
        std::this_thread::sleep_for(1100ms);
        __atomic_store_n(word, 1, __ATOMIC_RELEASE);
      });
      ASSERT_CU(cuStreamSynchronize(nullptr));
      opener.join();
    });
  });
}

TEST_F(Waiting, ForNothingSleeps) {
  WithContext([](CUcontext) {
    CUstream streams[8] = {};
    for (CUstream& stream : streams) {
      ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
      ASSERT_CU(cuLaunchHostFunc(
          stream, [](void*) {}, nullptr));
    }
    ASSERT_CU(cuCtxSynchronize());
    expect_cheap("idle streams", [] { std::this_thread::sleep_for(1100ms); });
  });
}

}  // namespace
