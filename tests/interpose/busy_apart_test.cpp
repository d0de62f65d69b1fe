// GPU-busy time of short kernels that lie apart and that no thread waits for. The device runs
// without pacing: an event has the modelled time of its work, however late a host thread comes to
// it. So what is charged beside the kernels is the meter's own.
#include "tests/interpose/busy.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::test::BusyTest;

constexpr char kShortPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry brief(.param .u64 out) { ret; }
.visible .entry middling(.param .u64 out) { ret; }
)";

class BusyApartTest : public BusyTest {
 protected:
  using Clock = std::chrono::steady_clock;
  BusyApartTest() {
    setenv("SOFTGPU_PACING", "0", 1);
    setenv("SOFTGPU_TIMED", "brief=5us/skip,middling=1ms/skip", 1);
  }
  ~BusyApartTest() override { unsetenv("SOFTGPU_PACING"); }
  void SetUp() override {
    BusyTest::SetUp();
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, kShortPtx), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&brief, module, "brief"), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&middling, module, "middling"), CUDA_SUCCESS);
    ASSERT_EQ(launch_timed(middling), CUDA_SUCCESS);  // the device's account begins with it
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    drain();
  }
  CUresult launch_timed(CUfunction function) {
    void* parameters[] = {&result};
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
  }
  static double since_ns(Clock::time_point begin) {
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
  }
  // Bursts at equal distances. Sets what the calls took.
  void launch_bursts(CUfunction function, int rounds, int burst, int every_us) {
    broker->lease_store(kLeaseOpen);
    calls_ns = 0;
    for (int i = 0; i < rounds; ++i) {
      const auto begin = Clock::now();
      for (int k = 0; k < burst; ++k) ASSERT_EQ(launch_timed(function), CUDA_SUCCESS);
      calls_ns += since_ns(begin);
      while (since_ns(begin) < every_us * 1e3) {
      }
    }
  }
  CUfunction brief = nullptr, middling = nullptr;
  double calls_ns = 0;
};

// Beside a kernel no more is charged than the call that launches it takes, in every run.
TEST_F(BusyApartTest, KernelsOfMicrosecondsAreChargedNoMoreThanTheirCalls) {
  constexpr int kRounds = 3000;
  constexpr int kEveryUs = 100;
  launch_bursts(brief, kRounds, 1, kEveryUs);
  drain();
  EXPECT_GE(ours, device * 0.99);
  EXPECT_LE(ours, device + calls_ns);
}

TEST_F(BusyApartTest, KernelsOfAMillisecondAreChargedNoMoreThanTheirCalls) {
  constexpr int kRounds = 300;
  constexpr int kEveryUs = 2000;
  launch_bursts(middling, kRounds, 1, kEveryUs);
  drain();
  EXPECT_GE(ours, device * 0.99);
  EXPECT_LE(ours, device + calls_ns);
}

// The end of a burst is the helper's to fence: it comes every millisecond, also where the next
// burst has begun by then. A busy host lets it come later, so most runs count.
TEST_F(BusyApartTest, ABurstIsChargedUntilTheNextLook) {
  constexpr int kRuns = 5;
  constexpr int kMost = 3;
  constexpr int kRounds = 300;
  constexpr int kEveryUs = 1500;
  int bounded = 0;
  for (int run = 0; run < kRuns && bounded < kMost; ++run) {
    const auto begin = Clock::now();
    launch_bursts(brief, kRounds, 10, kEveryUs);
    const double wall_ns = since_ns(begin);
    drain();
    printf("  of the time that passed %.0f %% were charged\n", 100 * ours / wall_ns);
    EXPECT_GE(ours, device * 0.99);
    bounded += ours <= wall_ns * 0.3 ? 1 : 0;
  }
  EXPECT_EQ(bounded, kMost);
}

}  // namespace
