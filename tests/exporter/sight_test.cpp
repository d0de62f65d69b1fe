// What the kernel tells of who comes to a device. Needs the rights to load BPF programs; skipped
// with the reason where they are missing.
#include "exporter/bpf/sight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "exporter/idle/proc.h"
#include "tests/exporter/holder.h"

namespace sluice::exporter {
namespace {

using What = Sighting::What;
using testing::ElementsAre;

class SightTest : public testing::Test {
 protected:
  void watch() {
    std::string reason;
    sight_ = sight_open({"", {kHeldMajor}}, &reason);
    if (sight_ == nullptr) GTEST_SKIP() << reason;
    EXPECT_EQ(reason, "");
    EXPECT_TRUE(sight_->sees_devices());
    EXPECT_FALSE(sight_->sees_driver());
  }

  /// What was seen of this one since it was asked last.
  std::vector<What> seen_of(const Holder& holder) {
    sight_->read(seen_);
    std::vector<What> out;
    for (const Sighting& one : seen_)
      if (one.process == holder.pid()) {
        out.push_back(one.what);
        EXPECT_EQ(start_ticks_of_ns(one.started_ns), start_ticks_of(holder.pid()));
      }
    std::erase_if(seen_, [&](const Sighting& one) { return one.process == holder.pid(); });
    return out;
  }

  std::unique_ptr<Sight> sight_;
  std::vector<Sighting> seen_;
};

TEST_F(SightTest, SeesCallsOfADeviceThatWasOpenBeforeItBegan) {
  const Holder before(true), other(false);
  watch();
  if (IsSkipped()) return;
  EXPECT_THAT(seen_of(before), ElementsAre()) << "it holds it, and that is all";
  before.mark_closing();
  EXPECT_THAT(seen_of(before), ElementsAre()) << "which is a matter of its own table";
  before.call_once();
  other.call_others_often();
  EXPECT_THAT(seen_of(before), ElementsAre(What::kDeviceCalled));
  EXPECT_THAT(seen_of(other), ElementsAre());
}

TEST_F(SightTest, SeesOpensAndTellsThemFromCalls) {
  const Holder holder(true);
  watch();
  if (IsSkipped()) return;
  holder.open_again();
  EXPECT_THAT(seen_of(holder), ElementsAre(What::kDeviceOpened));
}

// The ring has room for 16,384 records. A hundred thousand calls of other descriptors take none of
// it, and as many of the device one for each second that they last.
TEST_F(SightTest, ManyCallsLeaveTheRingToOthers) {
  const Holder busy(true), late(true);
  watch();
  if (IsSkipped()) return;
  busy.call_others_often();
  EXPECT_THAT(seen_of(busy), ElementsAre());
  const auto begin = std::chrono::steady_clock::now();
  busy.call_often();
  late.call_once();
  const auto lasted = std::chrono::steady_clock::now() - begin;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(lasted).count();
  const auto told = seen_of(busy);
  EXPECT_GE(told.size(), 1U);
  EXPECT_LE(told.size(), static_cast<std::size_t>(seconds)) << "once a second";
  EXPECT_THAT(seen_of(late), ElementsAre(What::kDeviceCalled));
}

}  // namespace
}  // namespace sluice::exporter
