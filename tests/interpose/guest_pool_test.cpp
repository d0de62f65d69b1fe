// Pools are charged by what the driver says they reserve: who asks, when, and what becomes of an
// answer that is old when it is charged. Over the fake driver; each case is a process of its own.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/interpose/guest.h"

namespace {

using sluice::test::eventually;
using sluice::test::kMiB;
using sluice::test::sleep_ms;

class GuestPoolTest : public sluice::test::GuestTest {};

TEST_F(GuestPoolTest, PoolsAreChargedByWhatTheyReserve) {
  start(8 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  fake.pool_pieces = 1;  // a trim leaves whole steps
  CUdeviceptr a = 0, b = 0;
  auto held = [&] { return broker->account().held_bytes.load(); };
  ASSERT_EQ(cuMemAllocAsync(&a, 3 * kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(held(), 4 * kMiB);  // two steps of 2 MiB
  EXPECT_EQ(cuMemAllocAsync(&b, 6 * kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAllocAsync(&b, kMiB, nullptr), CUDA_SUCCESS);  // from the pool's own reserve
  EXPECT_EQ(held(), 4 * kMiB);
  ASSERT_EQ(cuMemFreeAsync(a, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(held(), 4 * kMiB);
  fake.pool_reserved_bytes = 2 * kMiB;  // the device got it back at some synchronisation
  CUdeviceptr c = 0;
  EXPECT_EQ(cuMemAlloc_v2(&c, 6 * kMiB),
            CUDA_SUCCESS);  // fits now: the pool is read again before a refusal
  EXPECT_EQ(held(), 8 * kMiB);
  EXPECT_EQ(broker->account().reserved_bytes.load(), 0u);
}

// The driver says of no pool where it is, but of a device's own: others are known from the call
// that gave them.
TEST_F(GuestPoolTest, APoolThatWasAskedForByItsPlaceIsCharged) {
  start(8 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, host{CU_MEM_LOCATION_TYPE_HOST, {0}};
  CUmemoryPool current = nullptr, own = nullptr, of_host = nullptr;
  ASSERT_EQ(cuMemGetMemPool(&of_host, &host, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
  CUdeviceptr a = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&a, 20 * kMiB, of_host, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 0u) << "memory of the host";
  ASSERT_EQ(cuMemFreeAsync(a, nullptr), CUDA_SUCCESS);
  fake.pool_reserved_bytes = 0;
  // The fake driver gives the same pool for every place.
  ASSERT_EQ(cuMemGetMemPool(&current, &here, CU_MEM_ALLOCATION_TYPE_MANAGED), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&a, 20 * kMiB, current, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&a, 3 * kMiB, current, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(broker->account().held_bytes.load(), 4 * kMiB);
  fake.pool_reserved_bytes = fake.pool_used_bytes = 0;
  ASSERT_EQ(cuMemGetDefaultMemPool(&own, &here, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
  ASSERT_NE(own, current);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&a, 20 * kMiB, own, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&a, kMiB, own, nullptr), CUDA_SUCCESS);
}

// A thread that has read what a pool has reserved and not yet charged it.
std::atomic<int> pool_readers{0};
std::atomic<bool> pool_reader_goes{false};
void pool_reader_stops() {
  if (pool_readers.fetch_add(1) > 0) return;  // the first one only
  for (int i = 0; i < 10000 && !pool_reader_goes; ++i) sleep_ms(1);
}

TEST_F(GuestPoolTest, WhoReadsAPoolTooEarlyIsWaitedFor) {
  start(8 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr a = 0, b = 0;
  ASSERT_EQ(cuMemAllocAsync(&a, 2 * kMiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&b, 2 * kMiB, nullptr), CUDA_SUCCESS);
  fake.on_pool_read = pool_reader_stops;
  std::thread other([&] { EXPECT_EQ(cuMemFreeAsync(b, nullptr), CUDA_SUCCESS); });
  ASSERT_TRUE(eventually([] { return pool_readers > 0; }));
  fake.pool_reserved_bytes = 0;
  std::thread releaser([] {
    sleep_ms(50);
    pool_reader_goes = true;
  });
  EXPECT_EQ(cuMemFreeAsync(a, nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(pool_reader_goes);
  EXPECT_EQ(broker->account().held_bytes.load(), 0u);
  releaser.join();
  other.join();
  EXPECT_EQ(broker->account().held_bytes.load(), 0u);
}

TEST_F(GuestPoolTest, ACallOnAPoolReadsForWhoCameMeanwhile) {
  start(8 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr a = 0;
  ASSERT_EQ(cuMemAllocAsync(&a, 3 * kMiB, nullptr), CUDA_SUCCESS);
  fake.on_pool_read = pool_reader_stops;
  std::thread other(
      [&] { EXPECT_EQ(cuMemPoolTrimTo(reinterpret_cast<CUmemoryPool>(0x5000), 0), CUDA_SUCCESS); });
  ASSERT_TRUE(eventually([] { return pool_readers > 0; }));
  fake.pool_reserved_bytes = 0;
  EXPECT_EQ(cuMemFreeAsync(a, nullptr), CUDA_SUCCESS);  // returns while the other call lasts
  EXPECT_EQ(broker->account().held_bytes.load(), 4 * kMiB);
  pool_reader_goes = true;
  other.join();
  EXPECT_EQ(broker->account().held_bytes.load(), 0u);
}

// A thread within a call on a pool, which gives back what another one needs.
class GuestPoolCallTest : public GuestPoolTest {
 protected:
  void SetUp() override {
    start(8 * kMiB);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUdeviceptr pointer = 0;
    ASSERT_EQ(cuMemAllocAsync(&pointer, 3 * kMiB, nullptr), CUDA_SUCCESS);
    fake.on_pool_read = pool_reader_stops;
    other = std::thread([] {
      EXPECT_EQ(cuMemPoolTrimTo(reinterpret_cast<CUmemoryPool>(0x5000), 0), CUDA_SUCCESS);
    });
    ASSERT_TRUE(eventually([] { return pool_readers > 0; }));
    fake.pool_reserved_bytes = 0;
  }
  void TearDown() override {
    pool_reader_goes = true;
    other.join();
  }
  std::thread other;
};

TEST_F(GuestPoolCallTest, IsWaitedForBeforeARefusal) {
  std::thread releaser([] {
    sleep_ms(50);
    pool_reader_goes = true;
  });
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 6 * kMiB), CUDA_SUCCESS);
  EXPECT_TRUE(pool_reader_goes);
  EXPECT_EQ(broker->account().refused.load(), 0u);
  releaser.join();
}

TEST_F(GuestPoolCallTest, IsNotWaitedForWithoutEnd) {
  CUdeviceptr pointer = 0x77;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 6 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(pool_reader_goes);
  EXPECT_EQ(pointer, 0x77u);
}

// Pools whose reserve lies in pieces, on a driver with larger steps than the software GPU's.
unsigned allocations_asked;

class GuestPiecesTest : public GuestPoolTest, public ::testing::WithParamInterface<size_t> {
 protected:
  static constexpr size_t kPiecesQuota = 384 * kMiB, kStep = 32 * kMiB;
  void SetUp() override {
    start(kPiecesQuota);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    fake.pool_pieces = 1;
    fake.pool_step_bytes = kStep;
    fake.on_enter = [](const char* function) {
      if (function == std::string("cuMemAllocAsync")) ++allocations_asked;
    };
  }
  std::uint64_t held() { return broker->account().held_bytes.load(); }
  void within(const char* when) {
    EXPECT_LE(fake.pool_reserved_bytes, kPiecesQuota) << when;
    EXPECT_EQ(held(), fake.pool_reserved_bytes) << when;
    EXPECT_EQ(broker->account().reserved_bytes.load(), 0u) << when;
  }
  // Until the first refusal; how much that is.
  size_t fill(size_t bytes) {
    size_t sum = 0;
    CUdeviceptr pointer = 0;
    while (cuMemAllocAsync(&pointer, bytes, nullptr) == CUDA_SUCCESS && !HasFailure()) {
      within("allocated");
      sum += bytes;
    }
    return sum;
  }
};

TEST_P(GuestPiecesTest, NeverReserveMoreThanTheQuota) {
  const size_t chunk = (GetParam() + kStep - 1) / kStep * kStep;
  EXPECT_GE(fill(GetParam()), kPiecesQuota / chunk * GetParam()) << "refused far below the quota";
  within("refused");
  // What is left is the program's to the last piece.
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAllocAsync(&pointer, 4096, nullptr), CUDA_SUCCESS);
  within("a small piece");
}
INSTANTIATE_TEST_SUITE_P(Sizes, GuestPiecesTest,
                         ::testing::Values(205 * kMiB / 1024, 1126 * kMiB / 1024, 3 * kMiB + 77,
                                           9 * kMiB, 33 * kMiB));

// The step is not known before the first growth, which is taken back.
TEST_F(GuestPiecesTest, TheFirstStepDoesNotStayAboveTheQuota) {
  CUdeviceptr plain = 0, pointer = 0x77;
  ASSERT_EQ(cuMemAlloc_v2(&plain, kPiecesQuota - 16 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocAsync(&pointer, kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pointer, 0x77u);
  EXPECT_EQ(allocations_asked, 1u);
  EXPECT_EQ(fake.pool_reserved_bytes, 0u);
  EXPECT_EQ(held(), kPiecesQuota - 16 * kMiB);
  EXPECT_EQ(broker->account().refused.load(), 1u);
  // Now it is known, and the driver is not asked.
  EXPECT_EQ(cuMemAllocAsync(&pointer, kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allocations_asked, 1u);
}

// A driver that cannot take it back yet: the account says what there is, and there is no way around
// the refusal into the memory that was left.
TEST_F(GuestPiecesTest, WhatADriverKeepsOfARefusedCallIsNotGivenOut) {
  CUdeviceptr plain = 0, pointer = 0x77;
  ASSERT_EQ(cuMemAlloc_v2(&plain, kPiecesQuota - 16 * kMiB), CUDA_SUCCESS);
  fake.pool_stuck = 1;
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(cuMemAllocAsync(&pointer, kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY) << i;
  EXPECT_EQ(allocations_asked, 1u);
  EXPECT_EQ(held(), kPiecesQuota + 16 * kMiB);
  fake.pool_stuck = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 16 * kMiB), CUDA_SUCCESS) << "the pool is trimmed for it";
  EXPECT_EQ(held(), kPiecesQuota);
}

// Frameworks let their pools keep all they ever took.
TEST_F(GuestPiecesTest, AnIdleReserveIsNoReasonForARefusal) {
  for (const size_t bytes : {9 * kMiB, 100 * kMiB, 31 * kMiB, 150 * kMiB, 64 * kMiB, 200 * kMiB}) {
    CUdeviceptr pointers[3] = {};
    for (CUdeviceptr& pointer : pointers)
      ASSERT_EQ(cuMemAllocAsync(&pointer, bytes / 2, nullptr), CUDA_SUCCESS) << bytes;
    within("in use");
    for (const CUdeviceptr pointer : pointers)
      ASSERT_EQ(cuMemFreeAsync(pointer, nullptr), CUDA_SUCCESS);
  }
  EXPECT_EQ(broker->account().refused.load(), 0u);
}

}  // namespace
