// Movable memory over the fake driver, any of whose calls can fail: whatever fails, and however
// often, no contents are lost and nothing is kept that is not accounted for. Each case is a process
// of its own.
#include <gtest/gtest.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/interpose/guest.h"

namespace {

using sluice::protocol::kHoldIn;
using sluice::protocol::kHoldOut;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::Moved;
using sluice::test::kMiB;
using sluice::test::TestBroker;

constexpr unsigned long long kAlways = 1'000'000;

class SwapFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    broker = std::make_unique<TestBroker>(1ull << 30);
    broker->swap_set();
    broker->environment_set();
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    broker->lease_store(kLeaseOpen);
  }
  // Larger than the buffers copies go through, smaller, and two in one granule.
  void allocate() {
    for (const size_t bytes : {size_t{20 * kMiB}, size_t{3 * kMiB}, size_t{1000}, size_t{70000}}) {
      CUdeviceptr p = 0;
      ASSERT_EQ(cuMemAlloc_v2(&p, bytes), CUDA_SUCCESS);
      memset(reinterpret_cast<void*>(p), static_cast<int>(bytes % 251), bytes);
      given.push_back({p, bytes});
    }
  }
  static constexpr size_t kAll = (20 + 4 + 2) * kMiB;
  void expect_contents(const char* when) {
    for (const auto& [p, bytes] : given) {
      const auto* at = reinterpret_cast<const unsigned char*>(p);
      for (size_t i = 0; i < bytes; i += 97) ASSERT_EQ(at[i], bytes % 251) << when << " at " << i;
      ASSERT_EQ(at[bytes - 1], bytes % 251) << when;
    }
  }
  // Another broker comes, while the device has no room for what is out.
  void replaced_without_room(TestBroker* next) {
    fake.capacity_bytes = 10 * kMiB;
    broker->die();
    next->path_take(*broker);
    for (int i = 0; i < 5000 && next->wants().empty(); ++i) usleep(1000);
    ASSERT_FALSE(next->wants().empty());
  }
  void hold() {
    broker->lease_store(0);
    broker->hold_store(true);
    ASSERT_TRUE(broker->wait_held());
  }
  // Each order has a hold of its own, so that the same one can be given again.
  Moved order(uint32_t flag) {
    hold();
    std::vector<Moved> moved;
    EXPECT_TRUE(broker->wait_moved(broker->order_store(flag), 5000, &moved));
    return moved.empty() ? Moved{} : moved.back();
  }
  // The order with its first, second, ... call failing, until there are no more calls.
  // `check(result)` looks at what that left.
  void fail_each(uint32_t flag, unsigned long long times,
                 const std::function<void(const Moved&)>& check) {
    for (unsigned long long n = 1; n < 200; ++n) {
      fake.calls_failed = 0;
      hold();
      fake.calls_memory = 0;
      fake.fail_times = times;
      fake.fail_at = n;
      std::vector<Moved> moved;
      const uint32_t word = broker->order_store(flag);
      ASSERT_TRUE(broker->wait_moved(word, 5000, &moved)) << n;
      fake.fail_at = 0;
      EXPECT_EQ(broker->account().moved_word.load() == word, moved.back().result == 0) << n;
      const bool failed = fake.calls_failed != 0;
      check(moved.back());
      if (HasFatalFailure()) FAIL() << "call " << n;
      if (!failed) {
        EXPECT_GT(n, 5u);
        return;
      }
    }
    FAIL() << "it did not end";
  }
  uint64_t swapped() { return broker->account().swapped_bytes.load(); }

  struct Given {
    CUdeviceptr p;
    size_t bytes;
  };
  std::vector<Given> given;
  std::unique_ptr<TestBroker> broker;
};

TEST_F(SwapFaultTest, AnyFailingCallOfTheWayOutLeavesEverythingAsItWas) {
  allocate();
  fail_each(kHoldOut, 1, [&](const Moved& moved) {
    ASSERT_EQ(fake.used_bytes, kAll - swapped());
    ASSERT_EQ(moved.bytes, swapped());
    if (moved.result != 0) {
      ASSERT_EQ(swapped(), 0u);
    } else {
      ASSERT_GT(swapped(), 0u);
      ASSERT_EQ(order(kHoldIn).result, 0);
    }
    expect_contents("afterwards");
    ASSERT_EQ(fake.used_bytes, kAll);
  });
}

TEST_F(SwapFaultTest, AnyFailingCallOfTheWayInLeavesTheMemoryOut) {
  allocate();
  ASSERT_EQ(order(kHoldOut).result, 0);
  fail_each(kHoldIn, 1, [&](const Moved& moved) {
    ASSERT_EQ(fake.used_bytes, kAll - swapped());
    if (moved.result != 0) return;
    ASSERT_EQ(swapped(), 0u);
    expect_contents("in");
    ASSERT_EQ(order(kHoldOut).result, 0);
  });
}

TEST_F(SwapFaultTest, ContentsAreNotLostWhenEverythingFailsFromSomeCallOn) {
  allocate();
  for (const uint32_t first : {kHoldOut, kHoldIn}) {
    fail_each(first, kAlways, [&](const Moved&) {
      ASSERT_EQ(fake.used_bytes, kAll - swapped());
      ASSERT_EQ(order(kHoldIn).result, 0);
      expect_contents("after all");
      ASSERT_EQ(fake.used_bytes, kAll);
      if (first == kHoldIn) {
        ASSERT_EQ(order(kHoldOut).result, 0);
      }
    });
    ASSERT_EQ(order(kHoldOut).result, 0);
  }
}

TEST_F(SwapFaultTest, AnAllocationThatFailsHalfWayGivesAllBack) {
  CUdeviceptr p = 0;
  bool failed = true;
  for (unsigned long long n = 1; failed; ++n) {
    ASSERT_LT(n, 20u);
    const auto before = broker->account().held_bytes.load();
    fake.calls_failed = fake.calls_memory = 0;
    fake.fail_times = kAlways;
    fake.fail_at = n;
    p = 0x77;
    const CUresult result = cuMemAlloc_v2(&p, 3 * kMiB);
    fake.fail_at = 0;
    failed = fake.calls_failed != 0;
    if (!failed) {
      EXPECT_EQ(result, CUDA_SUCCESS);
      EXPECT_EQ(broker->account().held_bytes.load(), 4 * kMiB);
      break;
    }
    EXPECT_NE(result, CUDA_SUCCESS) << n;
    EXPECT_EQ(p, 0x77u);
    EXPECT_EQ(broker->account().held_bytes.load(), before);
    EXPECT_EQ(broker->account().reserved_bytes.load(), 0u);
    EXPECT_EQ(broker->account().movable_bytes.load(), 0u);
  }
  EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 0u);
  EXPECT_EQ(broker->account().movable_bytes.load(), 0u);
}

TEST_F(SwapFaultTest, OneFailingCallOfAnAllocationLeavesNothingWithTheDriver) {
  for (unsigned long long n = 1; n <= 4; ++n) {
    fake.calls_memory = 0;
    fake.fail_times = 1;
    fake.fail_at = n;
    CUdeviceptr p = 0;
    // Where there was no room at first, the driver is asked once more.
    const bool again = n <= 2;
    EXPECT_EQ(cuMemAlloc_v2(&p, 3 * kMiB), again ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE) << n;
    fake.fail_at = 0;
    EXPECT_EQ(p != 0, again) << n;
    if (p != 0) {
      EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    }
    EXPECT_EQ(fake.used_bytes, 0u) << n;
    EXPECT_EQ(fake.reserved_ranges, 0u) << n;
    EXPECT_EQ(broker->account().held_bytes.load(), 0u) << n;
  }
}

size_t address_space() {
  size_t pages = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  EXPECT_EQ(fscanf(file, "%zu", &pages), 1);
  fclose(file);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(SwapFaultTest, WithoutHostMemoryNothingMoves) {
  allocate();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit tight{address_space() + 20 * kMiB, before.rlim_max};
  hold();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  std::vector<Moved> moved;
  const bool said =
      broker->wait_moved(broker->order_store(kHoldOut), sluice::test::kPatience_ms, &moved);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_TRUE(said);
  EXPECT_EQ(moved.back().result, -1);
  EXPECT_EQ(moved.back().bytes, 0u);
  EXPECT_EQ(swapped(), 0u);
  EXPECT_EQ(fake.used_bytes, kAll);
  expect_contents("there");
  EXPECT_EQ(order(kHoldOut).bytes, kAll);
}

TEST_F(SwapFaultTest, AnOrderThatWasCarriedOutIsAnsweredAtOnceWhenItComesAgain) {
  allocate();
  EXPECT_EQ(order(kHoldIn).bytes, 0u);
  EXPECT_EQ(order(kHoldOut).bytes, kAll);
  const Moved again = order(kHoldOut);
  EXPECT_EQ(again.result, 0);
  EXPECT_EQ(again.bytes, 0u);
  EXPECT_EQ(swapped(), kAll);
  // Without a new hold too, after the order was taken back.
  std::vector<Moved> moved;
  ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldIn), 5000, &moved));
  EXPECT_EQ(moved.back().bytes, kAll);
  expect_contents("in");
}

TEST_F(SwapFaultTest, NothingGrowsHoweverOftenMemoryMoves) {
  allocate();
  size_t first = 0;
  for (int round = 0; round < 30; ++round) {
    ASSERT_EQ(order(kHoldOut).bytes, kAll);
    ASSERT_EQ(order(kHoldIn).bytes, kAll);
    if (round == 2) first = address_space();
  }
#if defined(__SANITIZE_ADDRESS__)  // which keeps for a while what is freed
  first += 256 * kMiB;
#endif
  EXPECT_LE(address_space(), first + kMiB);
  EXPECT_EQ(fake.reserved_ranges, 3u);
  EXPECT_EQ(fake.used_bytes, kAll);
  broker->hold_store(false);
  for (const Given& each : given) EXPECT_EQ(cuMemFree_v2(each.p), CUDA_SUCCESS);
  EXPECT_EQ(fake.reserved_ranges, 0u);
  EXPECT_EQ(fake.used_bytes, 0u);
}

TEST_F(SwapFaultTest, AForkChildHasNothingOfWhatIsOut) {
  allocate();
  ASSERT_EQ(order(kHoldOut).result, 0);
  const pid_t pid = fork();
  if (pid == 0) {
    // The child is another process, which registers and acknowledges the hold of its own; without
    // a call it is nobody's.
    CUdeviceptr base = 0;
    size_t bytes = 0;
    _exit(cuMemGetAddressRange_v2(&base, &bytes, given[0].p) == CUDA_SUCCESS && base == given[0].p);
  }
  int status = 1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  std::vector<Moved> moved;
  const uint32_t word = broker->order_store(kHoldIn);
  for (int i = 0; i < 5000 && broker->account().moved_word.load() != word; ++i) usleep(1000);
  EXPECT_EQ(broker->account().moved_word.load(), word);
  expect_contents("in");
}

TEST_F(SwapFaultTest, WaitersSayThatTheyWantTheirMemoryBack) {
  allocate();
  ASSERT_EQ(order(kHoldOut).result, 0);
  pthread_t program;
  const auto free_one = [](void* p) -> void* {
    EXPECT_EQ(cuMemFree_v2(*static_cast<CUdeviceptr*>(p)), CUDA_SUCCESS);
    return nullptr;
  };
  CUdeviceptr p = given.back().p;
  ASSERT_EQ(pthread_create(&program, nullptr, free_one, &p), 0);
  EXPECT_TRUE(broker->wait_for(sluice::protocol::MessageType::kGateWant, broker->epoch()));
  given.pop_back();
  ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldIn)));
  broker->hold_store(false);
  ASSERT_EQ(pthread_join(program, nullptr), 0);
  expect_contents("in");
}

TEST_F(SwapFaultTest, ABrokerThatIsReplacedTakesTheMemoryBackInFirst) {
  allocate();
  ASSERT_EQ(order(kHoldOut).result, 0);
  TestBroker next(1ull << 30);
  replaced_without_room(&next);
  EXPECT_EQ(next.wants().back().bytes, kAll);
  EXPECT_EQ(next.account().held_bytes.load(), 0u);
  EXPECT_EQ(fake.used_bytes, 0u) << "not half of it";
  fake.capacity_bytes = 1 << 30;
  for (int i = 0; i < 5000 && next.account().held_bytes.load() != kAll; ++i) usleep(1000);
  EXPECT_EQ(next.account().held_bytes.load(), kAll);
  EXPECT_EQ(next.account().movable_bytes.load(), kAll);
  EXPECT_EQ(next.account().swapped_bytes.load(), 0u);
  expect_contents("in");
}

TEST_F(SwapFaultTest, ABrokerThatKnowsOfTheMemoryOrdersItBack) {
  allocate();
  ASSERT_EQ(order(kHoldOut).result, 0);
  TestBroker next(1ull << 30);
  next.swap_set();
  next.hold_store(true);
  broker->die();
  next.path_take(*broker);
  for (int i = 0; i < 5000 && next.registrations() == 0; ++i) usleep(1000);
  ASSERT_TRUE(next.wait_held());
  EXPECT_EQ(next.account().swapped_bytes.load(), kAll) << "it was not brought back unasked";
  EXPECT_EQ(next.account().movable_bytes.load(), kAll);
  EXPECT_EQ(next.account().held_bytes.load(), kAll);
  EXPECT_EQ(fake.used_bytes, 0u);
  std::vector<Moved> moved;
  ASSERT_TRUE(next.wait_moved(next.order_store(kHoldIn), 5000, &moved));
  EXPECT_EQ(moved.back().bytes, kAll);
  EXPECT_EQ(next.account().swapped_bytes.load(), 0u);
  expect_contents("in");
}

// Contents that are in the host while the driver keeps the memory are on the device as well.
TEST_F(SwapFaultTest, ABrokerThatIsReplacedIsToldWhatTheDeviceHas) {
  allocate();
  std::vector<std::unique_ptr<TestBroker>> dead;
  bool failed = true;
  for (unsigned long long n = 1; failed; n += 3) {
    hold();
    fake.calls_memory = fake.calls_failed = 0;
    fake.fail_times = kAlways;
    fake.fail_at = n;
    ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldOut), 5000));
    fake.fail_at = 0;
    failed = fake.calls_failed != 0;
    auto next = std::make_unique<TestBroker>(1ull << 30);
    next->swap_set();
    next->hold_store(true);
    broker->die();
    next->path_take(*broker);
    dead.push_back(std::move(broker));
    broker = std::move(next);
    for (int i = 0; i < 5000 && broker->registrations() == 0; ++i) usleep(1000);
    ASSERT_TRUE(broker->wait_held());
    EXPECT_EQ(broker->account().held_bytes.load(), kAll) << n;
    EXPECT_EQ(swapped(), kAll - fake.used_bytes) << n;
    ASSERT_TRUE(broker->wait_moved(broker->order_store(kHoldIn), 5000));
    EXPECT_EQ(swapped(), 0u) << n;
    expect_contents("in");
  }
  EXPECT_GT(dead.size(), 5u);
}

TEST_F(SwapFaultTest, AForkChildHasNoPagesThatWaitForMemory) {
  allocate();
  ASSERT_EQ(order(kHoldOut).result, 0);
  TestBroker next(1ull << 30);
  replaced_without_room(&next);
  const pid_t child = fork();
  if (child == 0) {
    int pages = 0;
    for (int fd = 0; fd < 2000; ++fd) {
      char target[64] = {};
      const std::string link = "/proc/self/fd/" + std::to_string(fd);
      if (readlink(link.c_str(), target, sizeof target - 1) > 0 &&
          (strstr(target, "memfd:lease") != nullptr || strstr(target, "memfd:claims") != nullptr))
        ++pages;
    }
    _exit(pages);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 4) << "those of the brokers, which are in this process";
}

// A program is told that memory is freed, which a capture keeps for a while.
TEST_F(SwapFaultTest, WhatWasFreedUnderACaptureStaysFreed) {
  allocate();
  const auto [freed, bytes] = given.front();
  auto* const stream = reinterpret_cast<CUstream>(0x55);
  CUgraph graph = nullptr;
  CUdeviceptr more = 0;
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree_v2(freed), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  ASSERT_EQ(broker->account().movable_bytes.load(), kAll) << "the capture kept it";
  fake.event_result = CUDA_ERROR_OUT_OF_MEMORY;
  ASSERT_EQ(cuMemAlloc_v2(&more, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(freed), CUDA_ERROR_INVALID_VALUE);
  fake.event_result = CUDA_SUCCESS;
  ASSERT_EQ(cuMemAlloc_v2(&more, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().movable_bytes.load(), kAll - bytes + 4 * kMiB);
}

TEST_F(SwapFaultTest, WithoutABrokerTheMemoryIsBackBeforeTheGatesOpen) {
  allocate();
  ASSERT_EQ(order(kHoldOut).result, 0);
  broker->die();
  CUdeviceptr p = given.back().p;
  given.pop_back();
  EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);  // waits for the grace, and the memory
  EXPECT_EQ(broker->account().swapped_bytes.load(), 0u);
  expect_contents("in");
}

}  // namespace
