// Blocks of movable memory against a plain model: allocations never overlap, addresses find theirs,
// what is freed can be given again.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "interpose/swap_blocks.h"

namespace {

using namespace sluice::interpose;

constexpr uint64_t kGranule = 2 << 20;

TEST(SwapBlocksTest, AllocationsOfABlockNeverOverlapAndAreFoundByAnyOfTheirAddresses) {
  Blocks blocks;
  std::mt19937 random(7);
  for (uint64_t i = 0; i < 3; ++i) {
    Block* block = blocks.add((100 - i) * kGranule, kGranule, true);
    ASSERT_NE(block, nullptr);
    block->context = &blocks;
  }
  std::map<uint64_t, uint64_t> model;  // address -> bytes
  std::map<uint64_t, uint64_t> ids;
  for (int step = 0; step < 20000; ++step) {
    const bool takes = model.empty() || random() % 100 < 55;
    if (takes) {
      const uint64_t bytes = 1 + random() % (step % 7 == 0 ? 400000 : 6000);
      Placed placed;
      if (!blocks.place_shared(&blocks, bytes, &placed)) continue;
      EXPECT_EQ(placed.address % kUnitBytes, 0u);
      const auto next = model.lower_bound(placed.address);
      if (next != model.end()) {
        ASSERT_LE(placed.address + bytes, next->first);
      }
      if (next != model.begin()) {
        const auto before = std::prev(next);
        ASSERT_GE(placed.address, before->first + before->second);
      }
      model[placed.address] = bytes;
      EXPECT_TRUE(ids.emplace(placed.unit->id, placed.address).second) << "an id is used again";
      continue;
    }
    auto victim = model.begin();
    std::advance(victim, static_cast<long>(random() % model.size()));
    Placed placed;
    ASSERT_TRUE(blocks.find(victim->first + random() % victim->second, &placed));
    ASSERT_EQ(placed.address, victim->first);
    ASSERT_EQ(placed.unit->asked, victim->second);
    blocks.take_out(placed);
    EXPECT_FALSE(blocks.find(victim->first, &placed));
    model.erase(victim);
  }
  for (const auto& [address, bytes] : model) {
    Placed placed;
    EXPECT_TRUE(blocks.find(address + bytes - 1, &placed));
    if (blocks.find(address + bytes, &placed)) {
      EXPECT_NE(placed.address, address);
    }
    ASSERT_TRUE(blocks.find(address, &placed));
    blocks.take_out(placed);
  }
  // All holes have become one: each block takes an allocation of its whole size.
  for (uint32_t i = 0; i < blocks.count(); ++i) {
    Placed placed;
    EXPECT_EQ(blocks[i].units_used, 0u);
    EXPECT_TRUE(blocks.place(blocks[i], kGranule, &placed));
    EXPECT_FALSE(blocks.place(blocks[i], 1, &placed));
  }
}

TEST(SwapBlocksTest, BlocksAreFoundByAddressAndSharedOnlyWithinAContext) {
  Blocks blocks;
  int one = 0, other = 0;
  constexpr uint32_t kCount = 2000;  // more than the first table holds
  for (uint32_t i = 0; i < kCount; ++i) {
    // In an order that is none, with a hole of a granule behind each.
    const uint64_t place = uint64_t{i} * 773 % kCount;
    Block* block = blocks.add((1000 + 2 * place) * kGranule, kGranule, i % 2 == 0);
    ASSERT_NE(block, nullptr);
    block->context = &one;
  }
  for (uint64_t place = 0; place < kCount; ++place) {
    const uint64_t address = (1000 + 2 * place) * kGranule;
    ASSERT_NE(blocks.at(address + kGranule - 1), nullptr);
    EXPECT_EQ(blocks.at(address)->address, address);
    EXPECT_EQ(blocks.at(address + kGranule), nullptr);
    EXPECT_EQ(blocks.at(address - 1), nullptr);
  }
  Placed placed;
  EXPECT_FALSE(blocks.place_shared(&other, 1, &placed));
  ASSERT_TRUE(blocks.place_shared(&one, 1, &placed));
  EXPECT_TRUE(placed.block->is_shared());
  Block* whole = nullptr;
  for (uint32_t i = 0; i < blocks.count() && whole == nullptr; ++i) {
    if (!blocks[i].is_shared()) whole = &blocks[i];
  }
  ASSERT_NE(whole, nullptr);
  ASSERT_TRUE(blocks.place(*whole, kGranule - 5, &placed));
  EXPECT_TRUE(blocks.find(whole->address + kGranule - 6, &placed));
  EXPECT_FALSE(blocks.find(whole->address + kGranule - 5, &placed)) << "behind its end";
  EXPECT_FALSE(blocks.place(*whole, 1, &placed)) << "it has the block to itself";
  while (blocks.count() > 0) {
    const uint64_t address = blocks[blocks.count() / 2].address;
    blocks.remove(&blocks[blocks.count() / 2]);
    ASSERT_EQ(blocks.at(address), nullptr);
  }
}

}  // namespace
