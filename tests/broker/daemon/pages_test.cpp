// Seals, slots and sums.
#include "broker/daemon/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "broker/daemon/identity.h"
#include "broker/protocol/snapshot.h"

namespace sluice::daemon {
namespace {

using protocol::ClaimsPage;
using protocol::LeasePage;

PageSetup setup(std::size_t gpus = 2) {
  PageSetup out;
  out.tenant = 7;
  out.tenant_class = protocol::TenantClass::kDebug;
  out.memory_max_bytes = 1 << 30;
  out.memory_min_bytes = 1 << 29;
  out.sm_percent = 25;
  for (std::size_t i = 0; i < gpus; ++i) {
    PageSetup::Gpu gpu;
    gpu.uuid.bytes[15] = static_cast<std::uint8_t>(i + 1);
    gpu.context_bytes = 100 + i;
    out.gpus.push_back(gpu);
  }
  return out;
}

// What a client has: the descriptor that came with Registered.
ClaimsPage* claims_map(const Pages& pages) {
  void* page =
      mmap(nullptr, sizeof(ClaimsPage), PROT_READ | PROT_WRITE, MAP_SHARED, pages.claims_fd(), 0);
  EXPECT_NE(page, MAP_FAILED);
  return static_cast<ClaimsPage*>(page);
}

TEST(LeasePage, StartsClosedWithTheLimits) {
  const auto pages = Pages::create(setup());
  const void* map = mmap(nullptr, sizeof(LeasePage), PROT_READ, MAP_SHARED, pages->lease_fd(), 0);
  ASSERT_NE(map, MAP_FAILED);
  const auto* lease = static_cast<const LeasePage*>(map);
  EXPECT_EQ(lease->magic, protocol::kLeasePageMagic);
  EXPECT_EQ(lease->version, protocol::kVersion);
  EXPECT_EQ(lease->tenant, 7u);
  EXPECT_EQ(lease->gpu_count, 2u);
  EXPECT_EQ(lease->gpus[1].gpu.bytes[15], 2);
  EXPECT_EQ(lease->gpus[1].context_bytes, 101u);
  EXPECT_EQ(lease->gpus[1].memory_max_bytes, 1u << 30);
  EXPECT_EQ(lease->gpus[1].sm_percent, 25u);
  EXPECT_EQ(lease->gpus[1].lease.load(), protocol::lease_word(1, 0));
  pages->lease_store(1, protocol::lease_word(2, protocol::kLeaseOpen), 5, 6);
  EXPECT_EQ(lease->gpus[1].lease.load(), protocol::lease_word(2, protocol::kLeaseOpen));
  EXPECT_EQ(lease->gpus[1].window_ns.load(), 5u);
  EXPECT_EQ(lease->gpus[1].idle_grace_ns.load(), 6u);
  EXPECT_EQ(lease->gpus[0].lease.load(), protocol::lease_word(1, 0));
}

TEST(LeasePage, ClientCanNeitherWriteNorResize) {
  const auto pages = Pages::create(setup());
  const int fd = pages->lease_fd();
  EXPECT_EQ(mmap(nullptr, sizeof(LeasePage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
            MAP_FAILED);
  void* map = mmap(nullptr, sizeof(LeasePage), PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_EQ(mprotect(map, sizeof(LeasePage), PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd, 0), -1);
  EXPECT_EQ(ftruncate(fd, 1 << 20), -1);
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(ClaimsPage, ClientWritesButCannotResize) {
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  EXPECT_EQ(claims->magic, protocol::kClaimsPageMagic);
  EXPECT_EQ(claims->slot_count, protocol::kTenantProcessesMax);
  EXPECT_EQ(claims->gpu_count, 2u);
  EXPECT_EQ(ftruncate(pages->claims_fd(), 0), -1);
  EXPECT_EQ(ftruncate(pages->claims_fd(), 1 << 22), -1);
}

TEST(ClaimsPage, EmptiedOrScribbledOnIsOnlyItsTenantsLoss) {
  const auto pages = Pages::create(setup()), other = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  ClaimsPage* honest = claims_map(*other);
  const auto slot = pages->slot_take(10), theirs = other->slot_take(11);
  for (ClaimsPage* page : {claims, honest}) {
    page->slots[0].gpus[0].busy_ns.store(70);
    page->slots[0].gpus[0].held_bytes.store(4096);
  }
  EXPECT_EQ(pages->usage(0).busy_ns, 70u);
  // Its size is sealed, its content is the client's: as near as it comes to taking the page away.
  ASSERT_EQ(fallocate(pages->claims_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      sizeof(ClaimsPage)),
            0);
  EXPECT_EQ(pages->usage(0).busy_ns, 70u) << "what was used stays used";
  EXPECT_EQ(pages->usage(0).held_bytes, 0u);
  memset(static_cast<void*>(claims), 0xFF, sizeof *claims);
  EXPECT_EQ(pages->usage(0).held_bytes, UINT64_MAX);
  EXPECT_EQ(pages->memory(0).swapped_bytes, UINT64_MAX) << "bounded by the core";
  EXPECT_EQ(pages->slot_take(12), *slot + 1) << "who has which slot is not read from the page";
  pages->slot_retire(*slot);
  EXPECT_EQ(pages->usage(0).held_bytes, 0u) << "and a slot is cleaned when it is given back";
  EXPECT_EQ(other->usage(0).busy_ns, 70u);
  EXPECT_EQ(other->usage(0).held_bytes, 4096u);
  EXPECT_TRUE(theirs);
}

// What no honest shim writes is a lie at once; what a look between two stores may find is one when
// it stays.
TEST(ClaimsPage, WhatCannotBeTrueIsFound) {
  constexpr std::uint64_t kGpu = 1 << 30, kDay_ns = 86'400'000'000'000;
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  const auto slot = *pages->slot_take(10);
  protocol::ClaimsGpu& account = claims->slots[slot].gpus[1];
  const auto look = [&] { return pages->lies_look({kGpu, kGpu}, kDay_ns); };
  const auto looks = [&] {
    std::uint8_t lies = 0;
    for (int i = 0; i < Pages::kOddLooksMax; ++i) lies |= look();
    return lies;
  };
  account.held_bytes.store(kGpu);
  account.movable_bytes.store(kGpu);
  account.busy_ns.store(kDay_ns);
  account.asked_bytes.store(UINT64_MAX);                         // asked for, and refused: no lie
  claims->slots_used.store(1000);                                // the shims' own
  claims->slots[slot + 1].gpus[0].held_bytes.store(UINT64_MAX);  // nobody's slot
  EXPECT_EQ(looks(), 0);

  account.movable_bytes.store(2 * kGpu);
  EXPECT_EQ(look(), 0) << "held may follow";
  account.movable_bytes.store(kGpu);
  EXPECT_EQ(look(), 0);
  account.swapped_bytes.store(kGpu + 1);
  EXPECT_EQ(looks(), protocol::kDistrustMemory);
  account.swapped_bytes.store(0);
  EXPECT_EQ(look(), 0);
  account.held_bytes.store(3 * kGpu);
  EXPECT_EQ(look(), protocol::kDistrustMemory);
  account.held_bytes.store(kGpu);

  account.busy_ns.store(kDay_ns - 1);
  EXPECT_EQ(look(), protocol::kDistrustTime) << "backwards";
  account.busy_ns.store(3 * kDay_ns);
  EXPECT_EQ(look(), protocol::kDistrustTime) << "faster than the clock";
  account.busy_ns.store(UINT64_MAX);
  pages->slot_retire(slot);
  EXPECT_EQ(look(), protocol::kDistrustTime) << "what the dead have used still counts";

  const auto other = Pages::create(setup());
  ClaimsPage* theirs = claims_map(*other);
  other->slot_take(11);
  EXPECT_EQ(other->lies_look({kGpu, kGpu}, kDay_ns), 0);
  theirs->slots[0].pid.store(12);
  EXPECT_EQ(other->lies_look({kGpu, kGpu}, kDay_ns), protocol::kDistrustSlot);
  ASSERT_EQ(fallocate(other->claims_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      sizeof(ClaimsPage)),
            0);
  EXPECT_EQ(other->lies_look({kGpu, kGpu}, kDay_ns),
            protocol::kDistrustSlot | protocol::kDistrustPage);
}

TEST(Slots, SumOfLivingAndDead) {
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  const auto a = pages->slot_take(100);
  const auto b = pages->slot_take(101);
  ASSERT_TRUE(a && b);
  ASSERT_NE(*a, *b);
  EXPECT_EQ(claims->slots[*a].pid.load(), 100u);
  claims->slots[*a].gpus[1].held_bytes.store(1000);
  claims->slots[*a].gpus[1].peak_bytes.store(4000);
  claims->slots[*a].gpus[1].busy_ns.store(50);
  claims->slots[*a].gpus[1].launches.store(3);
  claims->slots[*b].gpus[1].held_bytes.store(10);
  claims->slots[*b].gpus[1].busy_ns.store(5);
  EXPECT_EQ(pages->usage(1).held_bytes, 1010u);
  EXPECT_EQ(pages->usage(1).busy_ns, 55u);
  EXPECT_EQ(pages->usage(0).busy_ns, 0u);

  pages->slot_retire(*a);
  EXPECT_EQ(claims->slots[*a].pid.load(), 0u);
  EXPECT_EQ(claims->slots[*a].gpus[1].held_bytes.load(), 0u);
  EXPECT_EQ(pages->usage(1).held_bytes, 10u);
  EXPECT_EQ(pages->usage(1).busy_ns, 55u);
  EXPECT_EQ(pages->usage(1).launches, 3u);
  EXPECT_EQ(pages->usage(1).peak_bytes, 4000u);

  EXPECT_EQ(pages->slot_take(102), a) << "a retired slot is used again";
  EXPECT_EQ(pages->usage(1).busy_ns, 55u);
}

TEST(Slots, FreeOnesAreNotBelieved) {
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  claims->slots[5].gpus[0].held_bytes.store(1 << 20);
  EXPECT_EQ(pages->usage(0).held_bytes, 0u);
  for (int i = 0; i <= 5; ++i) ASSERT_TRUE(pages->slot_take(i + 1));
  EXPECT_EQ(pages->usage(0).held_bytes, 0u) << "a slot is cleaned when it is handed out";
}

TEST(Slots, OfAnEndedProcessStaysChargedUntilItIsRetired) {
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  const std::uint32_t slot = *pages->slot_take(11);
  protocol::ClaimsSlot& mine = claims->slots[slot];
  mine.gpus[0].asked_bytes.store(7);
  mine.gpus[0].reserved_bytes.store(7);
  mine.gpus[0].held_bytes.store(1000);
  mine.gpus[0].movable_bytes.store(600);
  mine.gpus[0].swapped_bytes.store(100);
  mine.gpus[0].in_flight.store(1);
  EXPECT_EQ(pages->slot_on_device(slot, 0), 900U);
  EXPECT_TRUE(pages->slot_in_flight(slot, 0));
  EXPECT_FALSE(pages->slot_in_flight(slot, 1));

  EXPECT_EQ(mine.end_seen.load(), 0U);
  pages->slot_doubt(slot);
  EXPECT_EQ(mine.end_seen.load(), 1U);
  EXPECT_EQ(mine.gpus[0].version.load() % 2, 1U) << "others that do not fit wait";
  EXPECT_EQ(mine.gpus[0].asked_bytes.load() + mine.gpus[0].reserved_bytes.load(), 0U);
  EXPECT_EQ(pages->memory(0).held_bytes, 900U);
  EXPECT_EQ(pages->memory(0).movable_bytes, 0U) << "nothing can be ordered out any more";

  pages->slot_settle(slot);
  EXPECT_EQ(mine.gpus[0].version.load() % 2, 0U) << "others that do not fit are refused";
  EXPECT_EQ(pages->memory(0).held_bytes, 900U);
  pages->slot_retire(slot);
  EXPECT_EQ(pages->memory(0).held_bytes, 0U);
  EXPECT_EQ(mine.end_seen.load(), 0U);
  munmap(claims, sizeof *claims);
}

// A process that finds no process in a slot need not look at it again: nothing is charged there.
TEST(Slots, AChargeHasAProcessUntilItIsGone) {
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  constexpr int kRounds = 2000;
  std::atomic<int> charged{0}, seen{0};
  int left = 0;
  std::thread reader([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (charged != round) std::this_thread::yield();
      while (claims->slots[0].own_pid.load() != 0) {
      }
      left += claims->slots[0].gpus[0].held_bytes.load() != 0 ? 1 : 0;
      seen = round;
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    const std::uint32_t slot = *pages->slot_take(11);
    ASSERT_EQ(slot, 0U);
    claims->slots[slot].own_pid.store(11);
    claims->slots[slot].gpus[0].held_bytes.store(1000);
    charged = round;
    pages->slot_retire(slot);
    while (seen != round) std::this_thread::yield();
  }
  reader.join();
  EXPECT_EQ(left, 0);
  munmap(claims, sizeof *claims);
}

TEST(Slots, UnhookedEntryPointsAreThoseOfTheProcessThatSaysMost) {
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  EXPECT_EQ(pages->unhooked(), 0u);
  const auto first = pages->slot_take(1), second = pages->slot_take(2);
  claims->slots[*first].unhooked_seen.store(3);
  claims->slots[*second].unhooked_seen.store(5);
  claims->slots[*second + 1].unhooked_seen.store(9);  // nobody's
  EXPECT_EQ(pages->unhooked(), 5u);
  pages->slot_retire(*second);
  EXPECT_EQ(pages->unhooked(), 3u);
  munmap(claims, sizeof *claims);
}

TEST(Slots, WaitsAndFullGpusAreSummedOverTheLivingAndTheDeadAndNeverRunBack) {
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  const auto first = pages->slot_take(1), second = pages->slot_take(2);
  claims->slots[*first].gate_wait_counts[2].store(3);
  claims->slots[*second].gate_wait_counts[2].store(4);
  claims->slots[*second].gate_wait_counts[6].store(1);
  claims->slots[*second].refused_full.store(5);
  claims->slots[*second + 1].refused_full.store(9);  // nobody's
  EXPECT_EQ(pages->waits().gate_wait_counts[2], 7u);
  EXPECT_EQ(pages->waits().gate_wait_counts[6], 1u);
  EXPECT_EQ(pages->waits().refused_full, 5u);
  pages->slot_retire(*second);
  EXPECT_EQ(pages->waits().gate_wait_counts[2], 7u);
  EXPECT_EQ(pages->waits().refused_full, 5u);
  claims->slots[*first].gate_wait_counts[2].store(0);  // it lies
  EXPECT_EQ(pages->waits().gate_wait_counts[2], 7u);
  munmap(claims, sizeof *claims);
}

TEST(Slots, RunOut) {
  const auto pages = Pages::create(setup());
  for (std::uint32_t i = 0; i < protocol::kTenantProcessesMax; ++i)
    ASSERT_TRUE(pages->slot_take(1));
  EXPECT_FALSE(pages->slot_take(1));
  pages->slot_retire(17);
  EXPECT_EQ(*pages->slot_take(1), 17u);
}

TEST(Usage, LiesSaturateAndTimeNeverRunsBack) {
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  const auto a = *pages->slot_take(1);
  const auto b = *pages->slot_take(2);
  claims->slots[a].gpus[0].held_bytes.store(UINT64_MAX);
  claims->slots[b].gpus[0].held_bytes.store(UINT64_MAX);
  EXPECT_EQ(pages->usage(0).held_bytes, UINT64_MAX);
  claims->slots[a].gpus[0].busy_ns.store(500);
  EXPECT_EQ(pages->usage(0).busy_ns, 500u);
  claims->slots[a].gpus[0].busy_ns.store(0);
  EXPECT_EQ(pages->usage(0).busy_ns, 500u);
}

TEST(LeasePage, TakesOtherLimits) {
  const auto pages = Pages::create(setup());
  const void* map = mmap(nullptr, sizeof(LeasePage), PROT_READ, MAP_SHARED, pages->lease_fd(), 0);
  ASSERT_NE(map, MAP_FAILED);
  pages->limits_store(300, 200, 10);
  for (const protocol::LeaseEntry& entry :
       {static_cast<const LeasePage*>(map)->gpus[0], static_cast<const LeasePage*>(map)->gpus[1]}) {
    EXPECT_EQ(entry.memory_max_bytes, 300u);
    EXPECT_EQ(entry.memory_min_bytes, 200u);
    EXPECT_EQ(entry.sm_percent, 10u);
  }
}

TEST(LeasePage, HoldRoomAndSwap) {
  PageSetup swappable = setup();
  swappable.swap = true;
  const auto plain = Pages::create(setup());
  const auto pages = Pages::create(swappable);
  const void* map = mmap(nullptr, sizeof(LeasePage), PROT_READ, MAP_SHARED, pages->lease_fd(), 0);
  ASSERT_NE(map, MAP_FAILED);
  const auto* lease = static_cast<const LeasePage*>(map);
  EXPECT_EQ(lease->gpus[0].flags, protocol::kEntrySwap);
  EXPECT_EQ(lease->gpus[1].flags, protocol::kEntrySwap);
  EXPECT_EQ(lease->gpus[1].hold.load(), 0u);
  EXPECT_EQ(lease->gpus[1].room.load(), 0u);
  pages->hold_store(1, protocol::hold_word(7, protocol::kHoldSet | protocol::kHoldOut));
  pages->room_store(1, protocol::room_next(0, true));
  EXPECT_EQ(lease->gpus[1].hold.load(), (7u << 3) | 3u);
  EXPECT_EQ(pages->hold_load(1), (7u << 3) | 3u);
  EXPECT_EQ(lease->gpus[1].room.load(), 3u);
  EXPECT_EQ(pages->room_load(1), 3u);
  EXPECT_EQ(lease->gpus[0].hold.load(), 0u);
  protocol::GpuUuid other{};
  other.bytes[0] = 9;
  pages->gpu_store(0, other, 55);
  EXPECT_EQ(lease->gpus[0].gpu, other);
  EXPECT_EQ(lease->gpus[0].context_bytes, 55u);
  const void* of_plain =
      mmap(nullptr, sizeof(LeasePage), PROT_READ, MAP_SHARED, plain->lease_fd(), 0);
  ASSERT_NE(of_plain, MAP_FAILED);
  EXPECT_EQ(static_cast<const LeasePage*>(of_plain)->gpus[0].flags, 0u);
}

TEST(Memory, EachProcessIsBoundedByItself) {
  const auto pages = Pages::create(setup());
  ClaimsPage* claims = claims_map(*pages);
  const auto honest = *pages->slot_take(1);
  const auto liar = *pages->slot_take(2);
  claims->slots[honest].gpus[0].held_bytes.store(1000);
  claims->slots[honest].gpus[0].movable_bytes.store(800);
  claims->slots[honest].gpus[0].swapped_bytes.store(300);
  claims->slots[honest].gpus[0].held_epoch.store(7);
  claims->slots[honest].gpus[0].moved_word.store(59);
  EXPECT_EQ(pages->memory(0).held_bytes, 1000u);
  EXPECT_EQ(pages->memory(0).movable_bytes, 800u);
  EXPECT_EQ(pages->memory(0).swapped_bytes, 300u);
  EXPECT_EQ(pages->memory(0).limits_bytes, 0u);
  claims->slots[honest].limits_pages[0].store(1);
  EXPECT_EQ(pages->memory(0).limits_bytes, 200u) << "at most what is held and not movable";
  EXPECT_EQ(pages->memory(1).held_bytes, 0u);
  EXPECT_EQ(pages->held_epoch(honest, 0), 7u);
  EXPECT_EQ(pages->moved_word(honest, 0), 59u);
  EXPECT_TRUE(pages->slot_holds(honest, 0));
  EXPECT_FALSE(pages->slot_holds(liar, 0));

  claims->slots[liar].gpus[0].movable_bytes.store(UINT64_MAX);
  claims->slots[liar].gpus[0].swapped_bytes.store(UINT64_MAX);
  EXPECT_EQ(pages->memory(0).swapped_bytes, 300u) << "who holds nothing has nothing out";
  claims->slots[liar].gpus[0].held_bytes.store(UINT64_MAX);
  EXPECT_EQ(pages->memory(0).held_bytes, UINT64_MAX) << "sums saturate";
  claims->slots[3].gpus[0].held_bytes.store(5);
  claims->slots[liar].gpus[0].held_bytes.store(50);
  EXPECT_EQ(pages->memory(0).held_bytes, 1050u) << "free slots are not believed";
  EXPECT_EQ(pages->memory(0).swapped_bytes, 350u);
}

}  // namespace
}  // namespace sluice::daemon
