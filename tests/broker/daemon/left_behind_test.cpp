// What ended processes left on a device, from figures of the device alone.
#include "broker/daemon/left_behind.h"

#include <gtest/gtest.h>

namespace sluice::daemon {
namespace {

constexpr std::uint64_t kMiB = 1ULL << 20;
using Bytes = std::vector<std::uint64_t>;

TEST(LeftBehind, NothingWhereTheDeviceHasItBack) {
  EXPECT_EQ(left_behind({100, 100, 0, 0}, {{900, 0}}), Bytes{0});
  EXPECT_EQ(left_behind({100, 50, 0, 0}, {{900, 0}}), Bytes{0});
}

TEST(LeftBehind, WhatAnAddressSpaceKeepsStaysWhole) {
  EXPECT_EQ(left_behind({100, 1000, 0, 0}, {{900, 0}}), Bytes{900});
  EXPECT_EQ(left_behind({100, 5000, 0, 0}, {{900, 0}}), Bytes{900}) << "no more than it had";
}

TEST(LeftBehind, WhatADescriptorKeepsOfMuchStaysToo) {
  EXPECT_EQ(left_behind({0, 200 * kMiB, 0, 0}, {{1000 * kMiB, 0}}), Bytes{200 * kMiB});
}

TEST(LeftBehind, WhatTheDriverHasForProcessesIsNobodys) {
  EXPECT_EQ(left_behind({0, kLeftLeast, 0, 0}, {{1000 * kMiB, 0}}), Bytes{0});
  EXPECT_EQ(left_behind({0, 450, 0, 0}, {{900, 0}}), Bytes{0}) << "a half of little";
  EXPECT_EQ(left_behind({0, 451, 0, 0}, {{900, 0}}), Bytes{451});
}

TEST(LeftBehind, WhatWasLetGoOfBeforeIsInTheReference) {
  EXPECT_EQ(left_behind({700, 700, 0, 0}, {{100, 600}}), Bytes{600}) << "a descriptor has it";
  EXPECT_EQ(left_behind({700, 100, 0, 0}, {{100, 600}}), Bytes{0}) << "it has come back";
}

TEST(LeftBehind, WhatOthersLetGoOfMeanwhileIsTheirs) {
  EXPECT_EQ(left_behind({100, 1000, 900, 0}, {{900, 0}}), Bytes{0});
  EXPECT_EQ(left_behind({700, 1600, 900, 0}, {{100, 600}}), Bytes{600});
}

// One of two closes its descriptor, the other one is charged for less, and the first one dies.
TEST(LeftBehind, WhatCameBackPaysForOneOnly) {
  EXPECT_EQ(left_behind({1200, 600, 0, 600}, {{100, 600}}), Bytes{600});
  EXPECT_EQ(left_behind({1200, 0, 0, 600}, {{100, 600}}), Bytes{0});
}

TEST(LeftBehind, TheFirstToEndHasStayedLongest) {
  EXPECT_EQ(left_behind({0, 900, 0, 0}, {{900, 0}, {900, 0}}), (Bytes{900, 0}));
  EXPECT_EQ(left_behind({1800, 900, 0, 0}, {{0, 900}, {0, 900}}), (Bytes{900, 0}));
  EXPECT_EQ(left_behind({0, 1500, 0, 0}, {{900, 0}, {900, 0}}), (Bytes{900, 600}));
}

}  // namespace
}  // namespace sluice::daemon
