// A process and the pages of another broker than before: it may number GPUs otherwise, may come
// while launches that nothing binds are under way, and may not be kept waiting.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tests/interpose/guest.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using namespace sluice::test;

constexpr unsigned char kOtherGpu = kFakeUuidBase + 1;  // a GPU that the process does not use

std::atomic<int> launches_kept;  // in the driver
std::atomic<bool> launches_go;
thread_local bool call_is_kept;
thread_local bool reads_slowly;  // what pools have reserved
TestBroker* moves_to;

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
    ASSERT_TRUE(eventually([&] { return broker->registrations() > 0; }));
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
  void work_is_waited_for() {
    ASSERT_EQ(launch(), CUDA_SUCCESS);
    fake.events_pending = 1;
    auto next = std::make_unique<TestBroker>(kGiB);
    next->hold_store(true);
    replace(std::move(next));
    EXPECT_FALSE(broker->wait_held(200));
    EXPECT_FALSE(drained(0, 0));
    fake.events_pending = 0;
    EXPECT_TRUE(broker->wait_held());
    broker->hold_store(false);
  }
  std::thread launch_kept() {
    fake.on_launch = launch_keep;
    std::thread program([] { EXPECT_EQ(launch(), CUDA_SUCCESS); });
    while (launches_kept == 0) sleep_ms(1);
    return program;
  }
  // By a broker that comes while the driver has a launch.
  void launch_is_waited_for() {
    std::thread program = launch_kept();
    auto next = std::make_unique<TestBroker>(kGiB);
    next->hold_store(true);
    replace(std::move(next));
    EXPECT_FALSE(broker->wait_held(200));
    EXPECT_FALSE(drained(0, 0));
    launches_go = true;
    EXPECT_TRUE(broker->wait_held());
    program.join();
    broker->hold_store(false);
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
  ASSERT_TRUE(broker->wait_for(MessageType::kGateWant, 0));
  auto next = std::make_unique<TestBroker>(kGiB);
  next->lease_store(kLeaseOpen);
  replace(std::move(next));
  EXPECT_TRUE(eventually([&] { return done.load(); }));
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
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  broker->die();
  launch_is_waited_for();  // it is let through after the grace
}

TEST_F(AdoptionTest, ADrainWaitsForALaunchBeforeTheFirstBroker) {
  begin_offline();
  launch_is_waited_for();
}

// The hold is there with the pages, so that nothing else lies between the two. Each call in a
// process of its own: a process meets its first broker once.
struct Touch {
  std::string name;
  std::function<CUresult()> call;
};
void PrintTo(const Touch& touch, std::ostream* out) { *out << touch.name; }

class AdoptionTouchTest : public AdoptionTest, public ::testing::WithParamInterface<Touch> {};

TEST_P(AdoptionTouchTest, AHoldWaitsForACallFromBeforeTheFirstBroker) {
  begin_offline();
  fake.on_enter = [](const char*) {
    if (!call_is_kept) return;
    ++launches_kept;
    while (!launches_go) sleep_ms(1);
  };
  std::thread program([] {
    call_is_kept = true;
    EXPECT_EQ(GetParam().call(), CUDA_SUCCESS);
  });
  while (launches_kept == 0) sleep_ms(1);
  auto next = std::make_unique<TestBroker>(kGiB);
  next->hold_store(true);
  replace(std::move(next));
  EXPECT_FALSE(broker->wait_held(200));
  launches_go = true;
  EXPECT_TRUE(broker->wait_held());
  program.join();
  broker->hold_store(false);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, AdoptionTouchTest,
    ::testing::Values(
        Touch{"copy", [] { return cuMemcpyHtoD_v2(1, nullptr, 1); }},
        Touch{"copy_in_a_stream",
              [] { return cuMemcpyHtoDAsync_v2(1, nullptr, 1 << 20, nullptr); }},
        Touch{"allocation",
              [] {
                CUdeviceptr pointer = 0;
                return cuMemAlloc_v2(&pointer, 4096);
              }},
        Touch{"stream_end", [] { return cuStreamDestroy_v2(reinterpret_cast<CUstream>(0x40)); }},
        Touch{"wait_for_an_event", [] { return cuStreamWaitEvent(nullptr, nullptr, 0); }},
        Touch{"wait_for_a_stream", [] { return cuStreamSynchronize(nullptr); }},
        Touch{"limit", [] { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024); }}),
    [](const auto& one) { return one.param.name; });

// What was launched then is in no counter.
TEST_F(AdoptionTest, ADrainWaitsForWorkFromBeforeTheFirstBroker) {
  begin_offline();
  work_is_waited_for();
}

TEST_F(AdoptionTest, ADrainWaitsForWorkOfAnyContextFromBeforeTheFirstBroker) {
  begin_offline();
  auto context = reinterpret_cast<CUcontext>(0x5000);
  ASSERT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  work_is_waited_for();
}

// A wait that returns looks at pools, whatever becomes of the account meanwhile. What it finds goes
// into the old pages or comes after the move.
class AdoptionLookTest : public AdoptionTest {
 protected:
  void SetUp() override {
    begin(std::make_unique<TestBroker>(kGiB));
    fake.pool_step_bytes = 8 * kMiB;
    CUdeviceptr pooled = 0, pointer = 0;
    ASSERT_EQ(cuMemAllocAsync(&pooled, kMiB, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc_v2(&pointer, kKept), CUDA_SUCCESS);
    // Each look of the program's finds less, and nobody's before it.
    fake.on_enter = [](const char* function) {
      if (reads_slowly && function == std::string("cuMemPoolGetAttribute"))
        fake.pool_reserved_bytes -= 4096;
    };
    fake.on_pool_read = pool_read;
  }
  // Whether a move waited for the end of the program's look: then it comes before anybody else's,
  // and else the helper waited to look at pools itself.
  bool look() {
    looks = looked = others_looked = false;
    auto next = std::make_unique<TestBroker>(kGiB);
    moves_to = next.get();
    std::thread program([] {
      reads_slowly = true;
      while (!looked) EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    });
    EXPECT_TRUE(eventually([] { return looks.load(); }));
    replace(std::move(next));
    program.join();
    EXPECT_FALSE(moved_meanwhile);
    EXPECT_TRUE(eventually([] { return others_looked.load(); })) << "after the move";
    return moved_before_others;
  }
  static constexpr std::uint64_t kKept = 4096;
  static std::uint64_t held() { return moves_to->account().held_bytes.load(); }
  static inline std::atomic<std::uint64_t> calls_of_another;

 private:
  static void pool_read() {
    if (reads_slowly) {
      looks = true;
      // The helper stops the account before it moves it.
      (void)eventually([] { return moves_to->registrations() > 0 && another_is_stopped(); }, 1000);
      moved_meanwhile = held() != 0;
      looked = true;
    } else if (looked && !others_looked) {
      moved_before_others = held() >= kKept;
      others_looked = true;
    }
  }
  static bool another_is_stopped() {
    const std::uint64_t calls = calls_of_another;
    sleep_ms(100);
    return calls_of_another == calls;
  }
  static inline std::atomic<bool> looks, looked, moved_meanwhile;  // the program
  static inline std::atomic<bool> others_looked, moved_before_others;
};

TEST_F(AdoptionLookTest, TheAccountMovesInNobodysLookAtPools) {
  std::atomic<bool> over{false};
  std::thread another([&] {
    CUdeviceptr pointer = 0;
    for (; !over; ++calls_of_another) {
      EXPECT_EQ(cuMemAlloc_v2(&pointer, 512), CUDA_SUCCESS);
      EXPECT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
    }
  });
  bool waited = false;
  for (int round = 0; round < 30 && !waited; ++round) waited = look();
  EXPECT_TRUE(waited) << "no move was tried meanwhile";
  over = true;
  another.join();
  const std::uint64_t expected = kKept + fake.pool_reserved_bytes;
  EXPECT_TRUE(eventually([&] { return held() == expected; })) << held();
}

// A free may wait for a kernel, and who waits for a lease shall not wait for that.
TEST_F(AdoptionTest, AFreeThatWaitsKeepsNobodyAtTheGateOfABrokerThatIsGone) {
  begin(std::make_unique<TestBroker>(kGiB));
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 4096), CUDA_SUCCESS);
  fake.on_enter = [](const char* function) {
    if (function != std::string("cuMemFree_v2")) return;
    ++launches_kept;
    while (!launches_go) sleep_ms(1);
  };
  std::thread program([&] { EXPECT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS); });
  while (launches_kept == 0) sleep_ms(1);
  broker->lease_store(0);
  replace(std::make_unique<TestBroker>(kGiB));
  std::atomic<bool> launched{false};
  std::thread launcher([&] {
    EXPECT_EQ(launch(), CUDA_SUCCESS);
    launched = true;
  });
  EXPECT_TRUE(eventually([&] { return launched.load(); }));
  EXPECT_EQ(broker->account().held_bytes.load(), 0u) << "the account is not the new broker's yet";
  launches_go = true;
  program.join();
  launcher.join();
  // Nothing is held: that it is the new broker's now is seen by its drain.
  EXPECT_TRUE(drained(0, 10000));
}

}  // namespace
