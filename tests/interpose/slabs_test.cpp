// The table that grows and never moves.
#include "interpose/slabs.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace {

using sluice::interpose::Slabs;

struct Item {
  uint64_t value;
};

TEST(SlabsTest, RecordsStayWhereTheyAre) {
  static constinit Slabs<Item, 4> items;
  std::vector<Item*> places;
  for (uint64_t i = 0; i < 1000; ++i) {
    Item* place = items.next();
    ASSERT_NE(place, nullptr);
    ASSERT_EQ(place->value, 0u);
    ASSERT_EQ(items.next(), place) << "not published yet";
    place->value = i + 1;
    items.publish();
    places.push_back(place);
  }
  ASSERT_EQ(items.count(), 1000u);
  EXPECT_EQ(std::set<Item*>(places.begin(), places.end()).size(), 1000u);
  for (uint32_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(&items[i], places[i]);
    ASSERT_EQ(items[i].value, i + 1u);
  }
}

TEST(SlabsTest, AClearedTableBeginsAnewInTheSamePlaces) {
  static constinit Slabs<Item, 8> items;
  for (int i = 0; i < 20; ++i) {
    items.next()->value = 7;
    items.publish();
  }
  Item* first = &items[0];
  items.clear();
  EXPECT_EQ(items.count(), 0u);
  for (int i = 0; i < 20; ++i) {
    Item* place = items.next();
    if (i == 0) {
      EXPECT_EQ(place, first);
    }
    EXPECT_EQ(place->value, 0u);
    items.publish();
  }
}

}  // namespace
