// A process and the pages of another broker than before: it may number GPUs otherwise, may come
// while launches that nothing binds are under way, and may not be kept waiting.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tests/interpose/guest.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using namespace sluice::test;

constexpr unsigned char kOtherGpu = kFakeUuidBase + 1;  // a GPU that the process does not use

std::atomic<int> launches_kept;  // in the driver
std::atomic<bool> launches_go;

CUresult launch_keep(const FakeLaunch&) {
  ++launches_kept;
  while (!launches_go) sleep_ms(1);
  return CUDA_SUCCESS;
}

class AdoptionTest : public GuestTest {
 protected:
  static std::unique_ptr<TestBroker> with_other_first() {
    unsigned char own[16];
    for (unsigned char& byte : own) byte = kFakeUuidBase;
    auto made = std::make_unique<TestBroker>(kGiB, 0, kOtherGpu);
    made->gpu_add(own);
    return made;
  }
  void begin(std::unique_ptr<TestBroker> first) {
    broker = std::move(first);
    broker->environment_set();
    broker->lease_store(kLeaseOpen);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(launch(), CUDA_SUCCESS);
  }
  // No broker answers at the first call.
  void begin_offline() {
    broker = std::make_unique<TestBroker>(kGiB);
    broker->environment_set();
    broker->die();
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext primary = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
  }
  void replace(std::unique_ptr<TestBroker> next) {
    broker->die();
    next->path_take(*broker);
    broker = std::move(next);
    ASSERT_TRUE(eventually([&] { return broker->registrations() > 0; }, 20000));
  }
  bool drained(std::uint32_t gpu, int timeout_ms) {
    return eventually(
        [&] {
          for (const Note& note : broker->notes()) {
            if (note.type == MessageType::kDrained && note.gpu == gpu &&
                note.epoch == broker->epoch(gpu))
              return true;
          }
          return false;
        },
        timeout_ms);
  }
  std::thread launch_kept() {
    fake.on_launch = launch_keep;
    std::thread program([] { EXPECT_EQ(launch(), CUDA_SUCCESS); });
    while (launches_kept == 0) sleep_ms(1);
    return program;
  }
};

TEST_F(AdoptionTest, ALaunchAsksTheLeaseThatItsGpuHasNow) {
  begin(std::make_unique<TestBroker>(kGiB));
  auto next = with_other_first();
  next->lease_store(kLeaseOpen, 0);
  replace(std::move(next));
  ASSERT_TRUE(drained(1, 5000));
  std::atomic<bool> closed{true};
  std::thread opener([&] {
    sleep_ms(200);
    closed = false;
    broker->lease_store(kLeaseOpen, 1);
  });
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_FALSE(closed) << "it went through the other GPU's lease";
  opener.join();
}

TEST_F(AdoptionTest, ALaunchThatWaitsGoesOverToTheLeaseThatItsGpuHasNow) {
  begin(with_other_first());
  broker->lease_store(0);
  std::atomic<bool> done{false};
  std::thread program([&] {
    EXPECT_EQ(launch(), CUDA_SUCCESS);
    done = true;
  });
  ASSERT_TRUE(broker->wait_for(MessageType::kGateWant, 0, 5000));
  auto next = std::make_unique<TestBroker>(kGiB);
  next->lease_store(kLeaseOpen);
  replace(std::move(next));
  EXPECT_TRUE(eventually([&] { return done.load(); }, 10000));
  broker->lease_store(kLeaseOpen, 1);  // whoever waits for it after all shall end
  program.join();
}

TEST_F(AdoptionTest, ADrainWaitsForALaunchThatIsInsideByTheNumberThatWas) {
  begin(std::make_unique<TestBroker>(kGiB));
  std::thread program = launch_kept();
  replace(with_other_first());
  EXPECT_FALSE(drained(1, 200));
  launches_go = true;
  EXPECT_TRUE(drained(1, 5000));
  program.join();
}

TEST_F(AdoptionTest, ADrainWaitsForALaunchThatWasLetThroughWithoutABroker) {
  begin(std::make_unique<TestBroker>(kGiB));
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch(), 5000));
  broker->die();
  std::thread program = launch_kept();  // after the grace
  auto next = std::make_unique<TestBroker>(kGiB);
  next->hold_store(true);
  replace(std::move(next));
  EXPECT_FALSE(broker->wait_held(200));
  EXPECT_FALSE(drained(0, 0));
  launches_go = true;
  EXPECT_TRUE(broker->wait_held(5000));
  program.join();
  broker->hold_store(false);
}

TEST_F(AdoptionTest, ADrainWaitsForALaunchBeforeTheFirstBroker) {
  begin_offline();
  std::thread program = launch_kept();
  auto next = std::make_unique<TestBroker>(kGiB);
  next->hold_store(true);
  replace(std::move(next));
  EXPECT_FALSE(broker->wait_held(200));
  EXPECT_FALSE(drained(0, 0));
  launches_go = true;
  EXPECT_TRUE(broker->wait_held(5000));
  program.join();
  broker->hold_store(false);
}

}  // namespace
