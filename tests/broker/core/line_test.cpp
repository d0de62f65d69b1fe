// The line of a GPU against looking at everybody: random shares come, go and change, and the heap's
// first is the least that a search finds. (That the core keeps its lines right is an invariant, and
// so checked after every step of every other test.)
#include "broker/core/line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/broker/core/harness.h"

namespace sluice::core {
namespace {

TEST(ShareHeap, FirstIsTheLeastAndAmongEqualsTheEldest) {
  std::mt19937 random(5);
  std::vector<Share> shares(200);
  ShareHeap<double, heap_place> heap;
  std::vector<std::pair<double, Share*>> naive;  // in the order in which they came
  std::uint64_t came = 0;
  for (int round = 0; round < 20'000; ++round) {
    Share& share = shares[random() % shares.size()];
    const double key = static_cast<double>(random() % 32);  // few keys: many equals
    const auto known =
        std::ranges::find(naive, &share, [](const auto& entry) { return entry.second; });
    if (known == naive.end()) {
      share.heap.since = ++came;
      heap.insert(share, key);
      naive.emplace_back(key, &share);
    } else if (random() % 2 == 0) {
      heap.remove(share);
      naive.erase(known);
    } else {
      heap.remove(share);
      heap.insert(share, key);
      known->first = key;
    }
    ASSERT_EQ(heap.size(), naive.size());
    ASSERT_TRUE(heap.ordered());
    if (naive.empty()) continue;
    const auto least = std::ranges::min_element(
        naive, [](const auto& a, const auto& b) { return a.first < b.first; });
    ASSERT_EQ(heap.first(), least->second);
    ASSERT_EQ(heap.first_key(), least->first);
  }
}

TEST(Line, LimitsThatChangeWhileItWaitsAreCounted) {
  Harness h;
  const TenantId holder = h.admit(TenantClass::kBatch, 50);
  const TenantId waiting = h.admit(TenantClass::kBatch, 50);
  TenantAsked fixed_ask = h.ask();
  fixed_ask.sm_mode_given = true;
  fixed_ask.sm_mode = SmMode::kFixed;
  fixed_ask.sm_percent = 20;
  const TenantId fixed = h.admit(fixed_ask);
  h.want(holder);
  h.want(waiting);
  h.want(fixed);
  const Gpu& gpu = *h.state().gpus[0];
  EXPECT_EQ(line_weight_others(gpu), 70);
  h.step(LimitsChanged{waiting, 10, 256 * kMiB, 256 * kMiB});
  h.step(LimitsChanged{fixed, 5, 256 * kMiB, 256 * kMiB});
  EXPECT_EQ(line_weight_others(gpu), 15);
  h.end(waiting);
  EXPECT_EQ(line_weight_others(gpu), 5);
  h.end(fixed);
  EXPECT_EQ(line_weight_others(gpu), 0);
  EXPECT_EQ(line_first(gpu), nullptr);
}

}  // namespace
}  // namespace sluice::core
