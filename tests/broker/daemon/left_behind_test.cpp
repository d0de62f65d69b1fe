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

TEST(LeftBehind, WhatIsListedForTheEndedIsExplainedByNoClaim) {
  EXPECT_EQ(left_behind({100, 1000, 1 << 30, 0, 900}, {{900, 0}}), Bytes{900});
  EXPECT_EQ(left_behind({100, 1000, 1 << 30, 0, 500}, {{900, 0}}), Bytes{500});
  EXPECT_EQ(left_behind({5000, 1000, 0, 0, 900}, {{900, 0}}), Bytes{900})
      << "whatever was unlisted before";
}

TEST(Released, TheClaimsOfATenantExplainNoMoreThanItsRoom) {
  const ReleasedClaims claims{{1, {7, 1ULL << 38}}, {2, {7, 100}}, {3, {8, 50}}, {4, {9, 1}}};
  const ReleasedClaims bound = released_bound(claims, {{7, 24}, {8, 80}});
  EXPECT_EQ(bound.at(1).bytes + bound.at(2).bytes, 24U) << "of all its processes together";
  EXPECT_EQ(bound.at(3).bytes, 50U);
  EXPECT_EQ(bound.at(4).bytes, 0U) << "a tenant without room";
}

TEST(Released, AClaimThatComesAndGoesCountsAsTheGreater) {
  const ReleasedClaims most =
      released_most({{1, {7, 10}}, {2, {7, 5}}}, {{1, {7, 4}}, {2, {7, 6}}, {3, {7, 1}}});
  EXPECT_EQ(most, (ReleasedClaims{{1, {7, 10}}, {2, {7, 6}}, {3, {7, 1}}}));
}

TEST(Unlisted, ClaimsOfTheLivingExplainWhatTheyAreGrownBy) {
  const DeviceReading reference{100, 0, 0, {{1, {7, 30}}, {2, {8, 20}}, {3, {9, 40}}}};
  const DeviceReading now{600, 0, 0, {{1, {7, 90}}, {2, {8, 5}}, {3, {9, 400}}}};
  const Unlisted device = unlisted_since(reference, now, {{1, {}}, {2, {}}}, 0);
  EXPECT_EQ(device.reference, 100U);
  EXPECT_EQ(device.now, 600U);
  EXPECT_EQ(device.explained, 60U) << "the third has ended since";
  EXPECT_EQ(device.given_back, 15U);
}

// Nine more processes have 72 MiB beyond what is listed for them.
TEST(Unlisted, WhatTheDriverHasForEachProcessComesAndGoesWithIt) {
  const DeviceReading reference{500 * kMiB, 0, 3, {}};
  const DeviceReading now{572 * kMiB, 0, 12, {}};
  const Bytes clean = left_behind(unlisted_since(reference, now, {}, 8 * kMiB), {{40 << 10, 0}});
  EXPECT_EQ(clean, Bytes{0});
  EXPECT_EQ(left_behind(unlisted_since(reference, now, {}, 8 * kMiB), {{40960 * kMiB, 0}}),
            Bytes{0});
  EXPECT_EQ(left_behind(unlisted_since(reference, now, {}, 0), {{40960 * kMiB, 0}}),
            Bytes{72 * kMiB});
  const DeviceReading fewer{476 * kMiB + 900 * kMiB, 0, 0, {}};
  EXPECT_EQ(left_behind(unlisted_since(reference, fewer, {}, 8 * kMiB), {{900 * kMiB, 0}}),
            Bytes{900 * kMiB})
      << "what the others had is no return";
}

TEST(Unlisted, WhatIsListedForTheEndedOfProgramsOutsideIsInTheReference) {
  const DeviceReading reference{700, 600, 1, {}};
  EXPECT_EQ(unlisted_since(reference, {1600, 1500, 1, {}}, {}, 0).listed_for_ended, 900U);
  EXPECT_EQ(unlisted_since(reference, {100, 0, 1, {}}, {}, 0).listed_for_ended, 0U);
}

TEST(LeftBehind, TheFirstToEndHasStayedLongest) {
  EXPECT_EQ(left_behind({0, 900, 0, 0}, {{900, 0}, {900, 0}}), (Bytes{900, 0}));
  EXPECT_EQ(left_behind({1800, 900, 0, 0}, {{0, 900}, {0, 900}}), (Bytes{900, 0}));
  EXPECT_EQ(left_behind({0, 1500, 0, 0}, {{900, 0}, {900, 0}}), (Bytes{900, 600}));
}

}  // namespace
}  // namespace sluice::daemon
