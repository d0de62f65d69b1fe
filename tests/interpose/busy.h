// Tests of GPU-busy time: what the shim charged and what the software GPU's account has, from one
// drain to the next.
#pragma once

#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/interpose/softgpu_launch.h"

namespace sluice::test {

class BusyTest : public SoftGpuLaunchTest {
 protected:
  static void sleep_us(int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }
  using SoftGpuLaunchTest::SoftGpuLaunchTest;
  void SetUp() override {
    go_first();
    SoftGpuLaunchTest::SetUp();
    kernel_load();
    broker->lease_store(protocol::kLeaseOpen);
    // The device's account counts from the first kernel on, ours from the first fence.
    ASSERT_EQ(launch(100), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  // Before other processes, with all threads and children to come, where that is permitted.
  // Niceness alone is worth nothing against other sessions where the system shares by session
  // (autogroup).
  static void go_first() {
    const sched_param lowest{.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_RR, &lowest) != 0) setpriority(PRIO_PROCESS, 0, -20);
  }
  double busy_of(int pid) {
    const softgpu::device::Account account = device_account(pid);
    return static_cast<double>(account.busy_ns) + (copies_are_work ? account.copy_ns : 0);
  }
  CUstream stream_make() {
    CUstream stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
  }
  // Closes the lease, so that all is counted, and says what was since the last time.
  void drain() {
    broker->lease_store(0);
    ASSERT_TRUE(broker->wait_for(protocol::MessageType::kDrained, broker->epoch()));
    const auto ours_all = static_cast<double>(broker->account().busy_ns.load());
    const double device_all = busy_of(getpid());
    ours = ours_all - ours_before;
    device = device_all - device_before;
    ours_before = ours_all;
    device_before = device_all;
    printf("busy: shim %.3f ms, device %.3f ms (%+.2f %%), lag %.3f ms\n", ours / 1e6, device / 1e6,
           100 * (ours / device - 1), static_cast<double>(device_account().lag_ns) / 1e6);
  }
  // The same work time and again: most of the runs agree that the host's scheduler did not disturb,
  // and no run at all is charged less than it used. A thread that is held back between a launch and
  // the fence behind it makes a stretch longer by as much: a run whose excess is no more than that
  // says nothing and is made again, so many times at most. What differs in every run never agrees,
  // however busy the host is; what differs in some could hide in such runs, so there shall be few
  // (go_first).
  template <class Work>
  void agrees(Work work) {
    constexpr int kRunsMax = 40, kMost = 3;
    drain();
    int agreed = 0, differed = 0;
    for (int i = 0; i < kRunsMax && agreed < kMost && differed < kMost; ++i) {
      const double held_before_ns = held_back_ns();
      broker->lease_store(protocol::kLeaseOpen);
      work();
      drain();
      if (HasFatalFailure()) return;
      const double held_ns = held_back_ns() - held_before_ns;
      EXPECT_GE(ours, device * 0.99);
      if (std::abs(ours - device) <= device * 0.01) {
        ++agreed;
      } else if (ours - device > held_ns) {
        ++differed;
      }
      printf("  held back for %.3f ms\n", held_ns / 1e6);
    }
    EXPECT_EQ(agreed, kMost);
  }
  // For how long threads of this process were ready to run and did not; of those that have ended,
  // what they told at their end.
  double held_back_ns() {
    double sum = ended_held_back_ns;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
      sum += held_back_ns(task.path());
    return sum;
  }
  static double held_back_ns(const std::filesystem::path& task) {
    double ran = 0, held = 0;
    std::ifstream(task / "schedstat") >> ran >> held;
    return held;
  }
  void thread_ends() {
    const double held_ns = held_back_ns("/proc/thread-self");
    for (double sum = ended_held_back_ns;
         !ended_held_back_ns.compare_exchange_weak(sum, sum + held_ns);) {
    }
  }
  std::atomic<double> ended_held_back_ns{0};
  bool copies_are_work = false;  // all of them stay on the device, none beside a kernel
  double ours = 0, device = 0, ours_before = 0, device_before = 0;
};

}  // namespace sluice::test
