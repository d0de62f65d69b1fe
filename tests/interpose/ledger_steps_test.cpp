// The slot protocol under SIGKILL at every step: a process is ended behind each single store that
// others can see, once for each, and the sum is right before and after the broker zeroes its slot.
namespace {
void ledger_step();
}
#define SLUICE_LEDGER_STEP() ledger_step()
#include "interpose/ledger.cpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace {

long steps_done;
long steps_left = -1;  // SIGKILL when it comes to 0
bool counting;         // only the process that is to die

void ledger_step() {
  if (!counting) return;
  ++steps_done;
  if (steps_left > 0 && --steps_left == 0) kill(getpid(), SIGKILL);
}

}  // namespace

namespace sluice::interpose {
namespace {

using protocol::ClaimsPage;
using protocol::ClaimsSlot;

constexpr uint64_t kQuota = 1000;
constexpr uint32_t kMortal = 1;

struct Shared {
  ClaimsPage page;
  uint64_t device_mortal;  // what the device has given to the process that dies
  uint64_t device_others;
  uint64_t over;
  bool stop;
};

class LedgerStepsTest : public ::testing::Test {
 protected:
  LedgerStepsTest() {
    shared = static_cast<Shared*>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    survivor.attach(&shared->page, 0);
    // Nobody zeroes a dead one's slot for a while; who waits for it must not wait for seconds.
    survivor.patience_ns = 3'000'000;
  }
  ~LedgerStepsTest() override { munmap(shared, sizeof(Shared)); }

  // Every transition of the protocol once: taken, given back, refused, unasked, contexts.
  void life(uint64_t scale) const {
    Ledger mine;
    mine.attach(&shared->page, kMortal);
    mine.patience_ns = 3'000'000;
    auto& device = shared->device_mortal;
    if (mine.reserve(0, 4 * scale, kQuota)) {
      __atomic_add_fetch(&device, 4 * scale, __ATOMIC_SEQ_CST);
      mine.hold(0, 4 * scale);
      if (mine.reserve(0, 2 * scale, kQuota)) mine.abort(0, 2 * scale);
      (void)mine.reserve(0, kQuota, kQuota);  // too much with what it holds
      __atomic_sub_fetch(&device, 4 * scale, __ATOMIC_SEQ_CST);
      mine.release(0, 4 * scale);
    }
    mine.hold_unasked(0, scale);
    __atomic_add_fetch(&device, scale, __ATOMIC_SEQ_CST);
    mine.context_add(0, scale);
    mine.context_sub(0, scale);
    __atomic_sub_fetch(&device, scale, __ATOMIC_SEQ_CST);
    mine.release(0, scale);
  }
  long steps_of_a_life(uint64_t scale) const {
    counting = true;
    steps_done = 0;
    steps_left = -1;
    life(scale);
    counting = false;
    return steps_done;
  }
  void die_at(long step, uint64_t scale) const {
    const pid_t pid = fork();
    if (pid == 0) {
      counting = true;
      steps_left = step;
      life(scale);
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "step " << step;
  }
  void bury() const {
    __atomic_store_n(&shared->device_mortal, 0, __ATOMIC_SEQ_CST);
    memset(&shared->page.slots[kMortal], 0, sizeof(ClaimsSlot));
  }
  // Takes and returns; every grant is compared with what all have of the device.
  void churn(unsigned seed) {
    while (!__atomic_load_n(&shared->stop, __ATOMIC_ACQUIRE)) {
      seed = seed * 1664525u + 1013904223u;
      const uint64_t bytes = 1 + (seed >> 8) % 700;
      if (!survivor.reserve(0, bytes, kQuota)) continue;
      const uint64_t others = __atomic_add_fetch(&shared->device_others, bytes, __ATOMIC_SEQ_CST);
      if (others + __atomic_load_n(&shared->device_mortal, __ATOMIC_SEQ_CST) > kQuota)
        __atomic_add_fetch(&shared->over, 1, __ATOMIC_SEQ_CST);
      survivor.hold(0, bytes);
      __atomic_sub_fetch(&shared->device_others, bytes, __ATOMIC_SEQ_CST);
      survivor.release(0, bytes);
    }
  }
  Shared* shared;
  Ledger survivor;
};

TEST_F(LedgerStepsTest, AKillBehindAnyStoreLeavesARightSum) {
  const long steps = steps_of_a_life(100);
  ASSERT_GE(steps, 30);
  for (long step = 1; step <= steps; ++step) {
    SCOPED_TRACE(step);
    die_at(step, 100);
    const auto& left = shared->page.slots[kMortal].gpus[0];
    const uint64_t counted = left.reserved_bytes.load() + left.held_bytes.load();
    const uint64_t claimed = counted + left.asked_bytes.load();
    // Never less than it had, and no more than it ever asked for, even in the middle of a move.
    EXPECT_GE(counted, shared->device_mortal);
    EXPECT_LE(claimed, 2 * kQuota);
    // The others get what is left beside it and not one byte more.
    const uint64_t rest = claimed < kQuota ? kQuota - claimed : 0;
    EXPECT_TRUE(survivor.reserve(0, rest, kQuota));
    EXPECT_FALSE(survivor.reserve(0, 1, kQuota));
    survivor.abort(0, rest);
    bury();
    EXPECT_TRUE(survivor.reserve(0, kQuota, kQuota));
    EXPECT_EQ(claims_total(shared->page, 0), kQuota);
    survivor.abort(0, kQuota);
    EXPECT_EQ(claims_total(shared->page, 0), 0u);
  }
}

TEST_F(LedgerStepsTest, AKillBehindAnyStoreWhileOthersTakeAndReturn) {
  const long steps = steps_of_a_life(100);
  const pid_t others = fork();
  if (others == 0) {
    std::thread second([&] { churn(1); });
    churn(2);
    second.join();
    _exit(0);
  }
  for (long step = 1; step <= steps; ++step) {
    const pid_t pid = fork();
    if (pid == 0) {
      counting = true;
      steps_left = step;
      // Refusals make its life shorter than the count: it goes on until it is killed.
      for (;;) life(100);
    }
    waitpid(pid, nullptr, 0);
    bury();
  }
  __atomic_store_n(&shared->stop, true, __ATOMIC_RELEASE);
  waitpid(others, nullptr, 0);
  EXPECT_EQ(shared->over, 0u);
  EXPECT_EQ(claims_total(shared->page, 0), 0u);
  EXPECT_TRUE(survivor.reserve(0, kQuota, kQuota));
}

}  // namespace
}  // namespace sluice::interpose
