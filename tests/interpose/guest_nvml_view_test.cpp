// What the shim lets programs see of NVML: the own processes under their own pids, and utilization
// of the own slice.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/interpose/guest_nvml.h"

namespace {

using namespace sluice::test;

constexpr unsigned kNotSupported = 3;
constexpr unsigned kNotFound = 6;
constexpr unsigned kInsufficientSize = 7;

nvmlDevice_t other_device() { return reinterpret_cast<nvmlDevice_t>(1); }

TEST_F(GuestNvmlTest, AProgramThatOnlyMonitorsSeesTheTenantsProcesses) {
  // Another process of the tenant, in a PID namespace of its own.
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.own_pid.store(12);
  slot.gpus[0].held_bytes.store(77 * kMiB);
  listed(kStranger, 500 * kMiB);
  using List = decltype(nvmlDeviceGetComputeRunningProcesses_v2);
  for (const char* name :
       {"nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3"}) {
    nvmlProcessInfo_t infos[4] = {};
    unsigned count = 4;
    ASSERT_EQ(function<List>(name)(nullptr, &count, infos), 0u) << name;
    ASSERT_EQ(count, 1u) << name;
    EXPECT_EQ(infos[0].pid, 12u);
    EXPECT_EQ(infos[0].usedGpuMemory, 77 * kMiB);
    EXPECT_EQ(infos[0].gpuInstanceId, ~0u);
    EXPECT_EQ(infos[0].computeInstanceId, ~0u);
  }
  nvmlProcessInfo_v1_t first[4] = {};
  unsigned count = 4;
  ASSERT_EQ(function<decltype(nvmlDeviceGetComputeRunningProcesses)>(
                "nvmlDeviceGetComputeRunningProcesses")(nullptr, &count, first),
            0u);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(first[0].pid, 12u);
  EXPECT_EQ(first[0].usedGpuMemory, 77 * kMiB);
}

TEST_F(GuestNvmlTest, GraphicsAndMpsListsLoseTheStrangersInEveryVersion) {
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.own_pid.store(12);
  listed(kStranger, 500 * kMiB);
  listed(1000, 9 * kMiB);
  for (const char* kind : {"Graphics", "MPSCompute"}) {
    const std::string base = std::string("nvmlDeviceGet") + kind + "RunningProcesses";
    for (const char* version : {"_v2", "_v3"}) {
      const std::string name = base + version;
      const auto list = function<decltype(nvmlDeviceGetGraphicsRunningProcesses_v2)>(name.c_str());
      nvmlProcessInfo_t infos[4] = {};
      unsigned count = 4;
      ASSERT_EQ(list(nullptr, &count, infos), 0u) << name;
      ASSERT_EQ(count, 1u) << name;
      EXPECT_EQ(infos[0].pid, 12u) << name;
      EXPECT_EQ(infos[0].usedGpuMemory, 9 * kMiB) << name;
      count = 0;
      EXPECT_EQ(list(nullptr, &count, nullptr), kInsufficientSize) << name;
      EXPECT_EQ(count, 1u) << name;
    }
    nvmlProcessInfo_v1_t infos[4] = {};
    unsigned count = 4;
    ASSERT_EQ(function<decltype(nvmlDeviceGetGraphicsRunningProcesses)>(base.c_str())(
                  nullptr, &count, infos),
              0u);
    ASSERT_EQ(count, 1u) << base;
    EXPECT_EQ(infos[0].pid, 12u) << base;
  }
}

TEST_F(GuestNvmlTest, UtilizationIsScaledToTheSliceAndStrangersAreNotInIt) {
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.own_pid.store(12);
  broker->lease().gpus[0].sm_percent = 25;
  listed(kStranger, kMiB, 70);
  listed(1000, kMiB, 20);
  nvmlProcessUtilizationSample_t samples[4] = {};
  unsigned count = 4;
  const auto of_processes =
      function<decltype(nvmlDeviceGetProcessUtilization)>("nvmlDeviceGetProcessUtilization");
  ASSERT_EQ(of_processes(nullptr, samples, &count, 0), 0u);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(samples[0].pid, 12u);
  EXPECT_EQ(samples[0].smUtil, 80u);   // 20 of 25
  EXPECT_EQ(samples[0].memUtil, 40u);  // 10 of 25
  EXPECT_EQ(samples[0].encUtil, 7u);
  nvmlUtilization_t rates{};
  const auto of_device =
      function<decltype(nvmlDeviceGetUtilizationRates)>("nvmlDeviceGetUtilizationRates");
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 80u);
  EXPECT_EQ(rates.memory, 40u);
  nvml->sm_util[1] = 60;  // more than the slice: it is all of it
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 100u);
  nvml->sm_util[1] = 0;
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 0u);
  EXPECT_EQ(of_processes(nullptr, samples, &count, 0), kNotFound);
  ASSERT_EQ(of_device(other_device(), &rates), 0u);
  EXPECT_EQ(rates.gpu, 90u) << "not the tenant's: as it is";
}

// As in a PID namespace, or under MPS: NVML has samples, and none under the tenant's pids.
TEST_F(GuestNvmlTest, WhereNvmlDoesNotKnowTheTenantTheMeterTells) {
  listed(kStranger, kMiB, 70);
  broker->lease().gpus[0].sm_percent = 100;
  nvmlUtilization_t rates{};
  const auto of_device =
      function<decltype(nvmlDeviceGetUtilizationRates)>("nvmlDeviceGetUtilizationRates");
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 0u);
  broker->account().busy_ns.store(3'600'000'000'000);
  ASSERT_EQ(of_device(nullptr, &rates), 0u);
  EXPECT_EQ(rates.gpu, 100u);
}

// As in a container: NVML has no samples.
class GuestNvmlMeterTest : public GuestNvmlTest {
 protected:
  void SetUp() override {
    GuestNvmlTest::SetUp();
    nvml->samples_result = kNotSupported;
    broker->lease().gpus[0].sm_percent = 100;
  }
  unsigned rate() {
    nvmlUtilization_t rates{};
    EXPECT_EQ(function<decltype(nvmlDeviceGetUtilizationRates)>("nvmlDeviceGetUtilizationRates")(
                  nullptr, &rates),
              0u);
    return rates.gpu;
  }
  // The process is the tenant's from its first question on, which this is, of something else.
  void join() {
    nvmlMemory_t memory{};
    ASSERT_EQ(
        function<decltype(nvmlDeviceGetMemoryInfo)>("nvmlDeviceGetMemoryInfo")(nullptr, &memory),
        0u);
    ASSERT_EQ(broker->registrations(), 1);
  }
  unsigned sample() {
    constexpr unsigned kGpu = 1;
    nvmlSample_t samples[4] = {};
    unsigned value_type = 77, count = 4;
    EXPECT_EQ(function<decltype(nvmlDeviceGetSamples)>("nvmlDeviceGetSamples")(
                  nullptr, kGpu, 0, &value_type, &count, samples),
              0u);
    return samples[0].sampleValue.uiVal;
  }
};

constexpr uint64_t kHourNs = 3'600'000'000'000;

TEST_F(GuestNvmlMeterTest, WithoutSamplesTheMeterTells) {
  EXPECT_EQ(rate(), 0u);
  // An hour of GPU time since the last look, which is not as long ago.
  broker->account().busy_ns.store(kHourNs);
  EXPECT_EQ(rate(), 100u);
  nvmlProcessUtilizationSample_t samples[4] = {};
  unsigned count = 4;
  EXPECT_EQ(function<decltype(nvmlDeviceGetProcessUtilization)>("nvmlDeviceGetProcessUtilization")(
                nullptr, samples, &count, 0),
            kNotSupported);
}

TEST_F(GuestNvmlMeterTest, WhoeverLooksInBetweenTheAnswerIsOfTheLastSecond) {
  using Clock = std::chrono::steady_clock;
  uint64_t used_ns = 0;
  bool in_a_second = false;
  while (!in_a_second) {  // a program that is stopped for so long asks about another one
    EXPECT_EQ(rate(), 0u);
    broker->account().busy_ns.store(used_ns += kHourNs);
    const auto begin = Clock::now();
    const unsigned answers[] = {rate(), rate(), sample(), rate()};
    in_a_second = Clock::now() - begin < std::chrono::milliseconds(900);
    EXPECT_EQ(answers[0], 100u);
    if (!in_a_second) {
      sleep_ms(1300);
      continue;
    }
    EXPECT_EQ(answers[1], 100u) << "a second call in a row";
    EXPECT_EQ(answers[2], 100u) << "another function";
    EXPECT_EQ(answers[3], 100u) << "after another function";
  }
  // Idle for longer than the answer reaches back, seen by who looks often and by who does not.
  for (int i = 0; i < 130; ++i) {
    sleep_ms(10);
    (void)sample();
  }
  EXPECT_EQ(rate(), 0u);
  EXPECT_EQ(sample(), 0u);
  broker->account().busy_ns.store(used_ns + kHourNs);
  EXPECT_EQ(sample(), 100u);
  sleep_ms(1300);
  EXPECT_EQ(rate(), 0u);
  EXPECT_EQ(sample(), 0u);
}

// The share of a time that is known within bounds: between the first and the last look at the clock
// around the calls.
TEST_F(GuestNvmlMeterTest, ItIsTheShareOfTheTimeSinceThatLook) {
  using Clock = std::chrono::steady_clock;
  EXPECT_EQ(rate(), 0u);
  sleep_ms(1300);
  const auto before = Clock::now();
  EXPECT_EQ(rate(), 0u);
  const auto after = Clock::now();
  broker->account().busy_ns.store(500'000'000);
  sleep_ms(1200);
  const std::chrono::duration<double, std::nano> least = Clock::now() - after;
  const unsigned percent = rate();
  const std::chrono::duration<double, std::nano> most = Clock::now() - before;
  EXPECT_GE(percent + 1, 5e10 / most.count());
  EXPECT_LE(percent, 5e10 / least.count());
}

// Of this process the meter knows from its beginning; what the others used before nobody knows
// when.
TEST_F(GuestNvmlMeterTest, TheFirstAnswerIsOfTheTimeSinceTheProcessBegan) {
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.gpus[0].busy_ns.store(kHourNs);
  join();
  broker->account().busy_ns.store(10'000'000);
  sleep_ms(40);
  EXPECT_LE(rate(), 25u);
  slot.gpus[0].busy_ns.store(2 * kHourNs);
  EXPECT_EQ(rate(), 100u) << "used since the first look";
}

TEST_F(GuestNvmlMeterTest, TheFirstAnswerHasWhatThisProcessUsed) {
  join();
  broker->account().busy_ns.store(kHourNs);
  EXPECT_EQ(rate(), 100u);
}

// What a process used that ended is not taken from what the others do.
TEST_F(GuestNvmlMeterTest, AProcessThatEndsTakesNothingAway) {
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.gpus[0].busy_ns.store(kHourNs);
  EXPECT_EQ(rate(), 0u);
  broker->account().busy_ns.store(kHourNs / 2);
  slot.pid.store(0);
  slot.gpus[0].busy_ns.store(0);
  EXPECT_EQ(rate(), 100u);
}

TEST_F(GuestNvmlMeterTest, SeveralThreadsLookAtOnce) {
  EXPECT_EQ(rate(), 0u);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        broker->account().busy_ns.add(kHourNs);
        EXPECT_EQ(i % 2 == 0 ? rate() : sample(), 100u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GuestNvmlTest, SamplesOfUtilizationSayWhatTheTenantHad) {
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.own_pid.store(12);
  broker->lease().gpus[0].sm_percent = 25;
  listed(kStranger, kMiB, 70);
  listed(1000, kMiB, 20);
  const auto ask = function<decltype(nvmlDeviceGetSamples)>("nvmlDeviceGetSamples");
  constexpr unsigned kPower = 0, kGpu = 1, kMemory = 2;
  for (const auto& [type, percent] : {std::pair{kGpu, 80u}, {kMemory, 40u}, {kPower, 90u}}) {
    nvmlSample_t samples[4] = {};
    unsigned value_type = 77, count = 4;
    ASSERT_EQ(ask(nullptr, type, 0, &value_type, &count, samples), 0u);
    ASSERT_EQ(count, 3u);
    EXPECT_EQ(value_type, 1u);
    for (unsigned i = 0; i < count; ++i) {
      EXPECT_EQ(samples[i].sampleValue.ullVal, percent) << type;
      EXPECT_EQ(samples[i].timeStamp, 100u + i) << type;
    }
    ASSERT_EQ(ask(other_device(), type, 0, &value_type, &count, samples), 0u);
    EXPECT_EQ(samples[0].sampleValue.uiVal, 90u) << "not the tenant's: as it is";
  }
  unsigned value_type = 0, count = 0;
  ASSERT_EQ(ask(nullptr, kGpu, 0, &value_type, &count, nullptr), 0u);
  EXPECT_EQ(count, 3u) << "for how many there must be room";
}

TEST_F(GuestNvmlTest, TheListOfDetailsHasTheTenantsProcessesInEveryMode) {
  constexpr unsigned kVersion = sizeof(nvmlProcessDetailList_v1_t) | 1u << 24;
  constexpr unsigned kVersionMismatch = 25, kInvalidArgument = 2;
  auto& slot = broker->claims().slots[5];
  slot.pid.store(1000);
  slot.own_pid.store(12);
  slot.gpus[0].held_bytes.store(77 * kMiB);
  listed(kStranger, 500 * kMiB);
  listed(1000, 9 * kMiB);
  const auto ask = function<decltype(nvmlDeviceGetRunningProcessDetailList)>(
      "nvmlDeviceGetRunningProcessDetailList");
  for (const unsigned mode : {0u, 1u, 2u}) {
    nvmlProcessDetail_v1_t details[4] = {};
    nvmlProcessDetailList_v1_t list{kVersion, mode, 4, details};
    ASSERT_EQ(ask(nullptr, &list), 0u) << mode;
    ASSERT_EQ(list.numProcArrayEntries, 1u) << mode;
    EXPECT_EQ(list.procArray, details) << mode;
    EXPECT_EQ(details[0].pid, 12u) << mode;
    EXPECT_EQ(details[0].usedGpuMemory, mode == 0 ? 77 * kMiB : 9 * kMiB) << mode;
    list = {kVersion, mode, 0, nullptr};
    EXPECT_EQ(ask(nullptr, &list), kInsufficientSize) << mode;
    EXPECT_EQ(list.numProcArrayEntries, 1u) << mode;
    list = {kVersion + 1, mode, 4, details};
    EXPECT_EQ(ask(nullptr, &list), kVersionMismatch) << mode;
  }
  nvmlProcessDetailList_v1_t list{kVersion, 3, 0, nullptr};
  EXPECT_EQ(ask(nullptr, &list), kInvalidArgument);
}

}  // namespace
