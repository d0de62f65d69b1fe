// What the stress tests of the ledger share: eight processes with four threads each at the limit of
// one tenant on a small GPU, and a look at the most that the device ever held.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "tests/interpose/softgpu_fixture.h"
#include "tests/interpose/softgpu_partner.h"

namespace sluice::test {

inline constexpr int kProcesses = 8, kThreads = 4;
inline constexpr size_t kSmallContext = kMiB;
inline constexpr size_t kEach = 300'007;  // of one thread, at a time
inline constexpr size_t kAll = kProcesses * (kSmallContext + kThreads * kEach);
inline constexpr size_t kGrain = 2 * kMiB;  // of physical memory and of pools

class SoftGpuStressTest : public SoftGpuTest {
 protected:
  explicit SoftGpuStressTest(size_t quota = kAll)
      : SoftGpuTest({.quota = quota,
                     .device_bytes = 1024 * kMiB,
                     .context_told = kSmallContext,
                     .uses_cuda = false}) {
    setenv("SOFTGPU_CONTEXT", "1MiB", 1);
    setenv("SOFTGPU_SMS", "1", 1);
  }
  void SetUp() override {
    SoftGpuTest::SetUp();
    loads_open();
    broker->lease_store(sluice::protocol::kLeaseOpen);
    for (Partner& partner : partners) {
      partner.start();
      ASSERT_EQ(partner.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
    }
    ASSERT_EQ(device_total(), kProcesses * kSmallContext);
  }
  // All at the same time; `extra` as in softgpu_partner.cpp. Those who are to be killed do not end.
  void churn_begin(size_t bytes, int rounds, bool same_size, bool every_other_endless = false) {
    for (size_t i = 0; i < partners.size(); ++i) {
      const bool endless = every_other_endless && i % 2 == 0;
      partners[i].send({.op = PartnerOp::kChurn,
                        .a = bytes,
                        .b = endless ? UINT64_MAX : static_cast<uint64_t>(rounds),
                        .value = i,
                        .extra = same_size ? 1u : 0u});
    }
  }
  // The same by every way to take memory, after each process has met the driver's ways once.
  void churn_all_ways(size_t bytes, int rounds, uint64_t flags, uint64_t* refused) {
    const uint64_t base = held_total();
    PartnerMessage request{
        .op = PartnerOp::kChurnAllWays, .a = bytes, .extra = flags | kChurnSameSize};
    for (Partner& partner : partners) {
      const PartnerMessage met = partner.ask(request);
      EXPECT_EQ(met.value + met.extra, 0u);
    }
    watch_begin();
    request.b = static_cast<uint64_t>(rounds);
    request.extra = flags;
    for (size_t i = 0; i < partners.size(); ++i) {
      request.value = i;
      partners[i].send(request);
    }
    *refused = 0;
    for (Partner& partner : partners) {
      const PartnerMessage done = partner.receive();
      EXPECT_EQ(done.result, CUDA_SUCCESS);
      EXPECT_EQ(done.extra, 0u) << "wrong answers";
      *refused += done.value;
    }
    watch_end();
    quiet("after all ways");
    EXPECT_EQ(held_total(), base);
  }
  // Readings that were put off are made up for by the helpers.
  void quiet(const char* when) {
    EXPECT_TRUE(eventually([&] { return difference().empty(); })) << when << "\n" << difference();
  }
  void watch_begin() { ASSERT_LE(device_peak(), options.quota) << "before the work"; }
  // Exact: the device notes the most it holds within every call that takes memory. Loads that were
  // in progress at one moment are what may have come on top.
  void watch_end() {
    printf("the device held at most %zu of %zu bytes, loads %zu\n", size_t{device_peak()},
           options.quota, size_t{loads->most_bytes});
    EXPECT_LE(device_peak(), options.quota + loads->most_bytes);
    EXPECT_GT(device_peak(), kProcesses * kSmallContext) << "nothing was noted";
  }
  // The same by looking as often as one can, for tests that kill: the device knows of a death by
  // the process table and the broker by its socket, so that what a dead process held may be given
  // to another just before the device hears of it.
  void look_begin() {
    watcher = std::thread([this] {
      while (!stop) {
        device_most = std::max<size_t>(device_most, device_total());
        ++looks;
      }
    });
  }
  void look_end() {
    stop = true;
    watcher.join();
    EXPECT_GT(looks, 10);
    printf("%d looks, the device held at most %zu of %zu bytes\n", looks.load(), device_most,
           options.quota);
    EXPECT_LE(device_most, options.quota);
  }

  void loads_open() {
    const int file = open((directory + "/loads").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(ftruncate(file, sizeof(LoadsPage)), 0);
    loads = static_cast<LoadsPage*>(
        mmap(nullptr, sizeof(LoadsPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ASSERT_NE(loads, MAP_FAILED);
    close(file);
  }

  LoadsPage* loads = nullptr;
  std::array<Partner, kProcesses> partners;
  std::thread watcher;
  std::atomic<bool> stop{false};
  std::atomic<int> looks{0};
  size_t device_most = 0;
};

}  // namespace sluice::test
