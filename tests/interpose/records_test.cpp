// The record of allocations against a map that is plainly right.
#include "interpose/records.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

namespace sluice::interpose {
namespace {

TEST(RecordsTest, BehavesLikeAMapUnderRandomUse) {
  auto records = std::make_unique<Records>();
  std::map<uint64_t, uint64_t> truth;
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t key = 0x7f0000000000 + 512 * (random() % 3000);
    if (random() % 2 == 0) {
      const Record record{key, 1 + random() % 1000, nullptr, RecordKind::kPointer, 0};
      ASSERT_TRUE(records->insert(record));
      truth[key] = record.bytes;
    } else {
      Record out;
      const auto found = truth.find(key);
      ASSERT_EQ(records->remove(RecordKind::kPointer, key, &out), found != truth.end());
      if (found != truth.end()) {
        EXPECT_EQ(out.bytes, found->second);
        truth.erase(found);
      }
    }
  }
  EXPECT_EQ(records->count(), truth.size());
  uint64_t sum[kDevicesMax] = {}, expected = 0;
  for (const auto& [key, bytes] : truth) expected += bytes;
  records->sum(RecordKind::kPointer, sum);
  EXPECT_EQ(sum[0], expected);
}

TEST(RecordsTest, WhatWasOfOneContextIsAnothers) {
  auto records = std::make_unique<Records>();
  int from = 0, to = 0;
  uint64_t kept[kDevicesMax] = {}, moved[kDevicesMax] = {};
  for (uint64_t key = 1; key <= 1000; ++key) {
    const void* context = key % 2 == 0 ? &from : &to;
    ASSERT_TRUE(records->insert(Record{key, 10, context, RecordKind::kPointer, 0}));
    ASSERT_TRUE(records->insert(Record{key, 1, context, RecordKind::kLoaded, 0}));
  }
  // Those of kLoaded come to lie upon the others.
  records->move_context(&from, &to, [](const Record& r, const void*) { return r.key - 1; });
  records->remove_context(&from, kept);
  EXPECT_EQ(kept[0], 0u);
  EXPECT_EQ(records->count(), 1500u);
  records->remove_context(&to, moved);
  EXPECT_EQ(moved[0], 11'000u);
  EXPECT_EQ(records->count(), 0u);
}

TEST(RecordsTest, KindsShareNoKeys) {
  auto records = std::make_unique<Records>();
  ASSERT_TRUE(records->insert({42, 1, nullptr, RecordKind::kPointer, 0}));
  ASSERT_TRUE(records->insert({42, 2, nullptr, RecordKind::kArray, 0}));
  Record out;
  ASSERT_TRUE(records->remove(RecordKind::kArray, 42, &out));
  EXPECT_EQ(out.bytes, 2u);
  EXPECT_TRUE(records->find(RecordKind::kPointer, 42, &out));
}

// The module of a handle that was given out has ended, and a context got its address.
TEST(RecordsTest, HandlesTakeNothingOfAContextThatHasTheirOwnersAddress) {
  auto records = std::make_unique<Records>();
  const int owner = 0;
  uint64_t key = 0, bytes[kDevicesMax] = {};
  for (const RecordKind kind : {RecordKind::kFunction, RecordKind::kKernel, RecordKind::kVariable,
                                RecordKind::kModule, RecordKind::kManaged}) {
    ASSERT_TRUE(records->insert({++key, kind == RecordKind::kModule ? 0u : 7u, &owner, kind, 2}));
  }
  ASSERT_TRUE(records->insert({++key, 5, &owner, RecordKind::kPointer, 2}));
  records->remove_context(&owner, bytes);
  EXPECT_EQ(bytes[2], 5u);
  EXPECT_EQ(records->count(), 0u);
}

TEST(RecordsTest, AContextsEndTakesItsRecordsAlongByDevice) {
  auto records = std::make_unique<Records>();
  const int a = 0, b = 0;
  for (uint64_t i = 1; i <= 5000; ++i) {
    const bool first = i % 2 == 0;
    ASSERT_TRUE(
        records->insert({i * 512, i, first ? &a : &b, RecordKind::kPointer, first ? 0 : 3}));
  }
  uint64_t bytes[kDevicesMax] = {};
  records->remove_context(&a, bytes);
  EXPECT_EQ(bytes[0], 2500u * 2501u);
  EXPECT_EQ(bytes[3], 0u);
  EXPECT_EQ(records->count(), 2500u);
  records->remove_context(&b, bytes);
  EXPECT_EQ(records->count(), 0u);
}

}  // namespace
}  // namespace sluice::interpose
