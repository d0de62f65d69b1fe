// Who holds a device open is found whenever it was opened, in looks of a bounded size.
#include "exporter/bypass/held.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "exporter/idle/proc.h"
#include "tests/exporter/holder.h"

namespace sluice::exporter {
namespace {

using testing::Contains;
using testing::Not;

constexpr std::size_t kHeldAll = 1 << 20;

ProcessName name_of(const Holder& holder) { return {holder.pid(), start_ticks_of(holder.pid())}; }

TEST(HeldScanTest, FindsWhoOpenedADeviceBeforeAnybodyLooked) {
  const Holder holder(true), other(false);
  HeldScan scan;
  std::vector<ProcessName> found;
  EXPECT_LT(scan.look({kHeldMajor}, kHeldAll, found), kHeldAll);
  EXPECT_THAT(found, Contains(name_of(holder)).Times(1));
  EXPECT_THAT(found, Not(Contains(name_of(other))));
  found.clear();
  EXPECT_LT(scan.look({kHeldMajor + 1, kHeldMajor}, kHeldAll, found), kHeldAll);
  EXPECT_THAT(found, Contains(name_of(holder))) << "each pass tells it again";
}

TEST(HeldScanTest, OtherDevicesAndNoneAreNobodys) {
  const Holder holder(true);
  HeldScan scan;
  std::vector<ProcessName> found;
  scan.look({kHeldMajor + 1}, kHeldAll, found);
  EXPECT_THAT(found, Not(Contains(name_of(holder))));
  EXPECT_EQ(scan.look({}, kHeldAll, found), 0U);
}

// A process with many descriptors holds nobody up, and hides nothing behind them.
TEST(HeldScanTest, LooksAreBoundedAndGoOnWhereTheyStopped) {
  constexpr std::size_t kEach = 16;
  constexpr int kOthers = 500;
  const Holder holder(true, kOthers);
  HeldScan scan;
  std::vector<ProcessName> found;
  std::size_t looks = 0, looked = kEach;
  for (; looked == kEach; ++looks) looked = scan.look({kHeldMajor}, kEach, found);
  EXPECT_LT(looked, kEach);
  EXPECT_GE(looks, kOthers / kEach) << "it took more than a look to get through one process";
  EXPECT_THAT(found, Contains(name_of(holder)).Times(1));
}

TEST(HeldScanTest, WithoutProcIsEmpty) {
  HeldScan scan("/nowhere/at/all");
  std::vector<ProcessName> found;
  EXPECT_EQ(scan.look({kHeldMajor}, kHeldAll, found), 0U);
  EXPECT_TRUE(found.empty());
}

}  // namespace
}  // namespace sluice::exporter
