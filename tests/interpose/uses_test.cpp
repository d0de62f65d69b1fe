// What holds memory besides handles and mappings, against a list that is plainly right.
#include "interpose/uses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace sluice::interpose {
namespace {

Part row(uint64_t object, uint64_t begin, uint64_t end) {
  Part part{};
  part.object = object;
  part.kind = PartKind::kTiles;
  part.begin[0] = begin;
  part.end[0] = end;
  part.end[1] = part.end[2] = 1;
  return part;
}

constexpr uint64_t kLast = ~uint64_t{0};

struct Known {
  uint64_t handle;
  Part part;
};

// Parts are mapped over each other at random and given up; what is let go is what was mapped just
// so, or lies within.
TEST(UsesTest, FollowsPartsAsTheyWereMapped) {
  Uses uses;
  std::vector<Known> truth;
  std::mt19937 random(11);
  uint64_t ticket = 0, moment = 0;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t begin = random() % 16;
    const Part part = row(1 + random() % 3, begin, begin + 1 + random() % 8);
    std::vector<uint64_t> expected, ended;
    const auto let_go = [&](const auto& is_over) {
      std::erase_if(truth, [&](const Known& one) {
        if (is_over(one.part)) expected.push_back(one.handle);
        return is_over(one.part);
      });
    };
    if (const auto what = random() % 8; what < 5) {
      ++ticket;
      ASSERT_TRUE(uses.begin(ticket, ticket, nullptr, part, false));
      if (what == 0) {
        Use cancelled;
        ASSERT_TRUE(uses.cancel(ticket, &cancelled));
        EXPECT_EQ(cancelled.handle, ticket);
        EXPECT_FALSE(uses.settle(ticket, ++moment));
        continue;
      }
      let_go([&](const Part& one) { return one == part; });
      EXPECT_EQ(uses.settle(ticket, ++moment), !expected.empty());
      truth.push_back({ticket, part});
    } else {
      let_go([&](const Part& one) {
        return one.object == part.object && one.begin[0] >= part.begin[0] &&
               one.end[0] <= part.end[0];
      });
      EXPECT_EQ(uses.leave(part, ++moment), expected.size());
    }
    uses.end_if([&](const Use& use) { return use.ending == moment; },
                [&](const Use& use) { ended.push_back(use.handle); });
    std::sort(expected.begin(), expected.end());
    std::sort(ended.begin(), ended.end());
    ASSERT_EQ(ended, expected) << i;
  }
  EXPECT_FALSE(truth.empty());
  for (uint64_t object = 1; object <= 3; ++object) uses.leave(row(object, 0, 100), kLast);
  size_t left = 0;
  uses.end_if([](const Use& use) { return use.ending == kLast; }, [&](const Use&) { ++left; });
  EXPECT_EQ(left, truth.size());
  EXPECT_TRUE(uses.empty());
}

}  // namespace
}  // namespace sluice::interpose
