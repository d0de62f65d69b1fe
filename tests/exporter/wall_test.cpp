// /snapshot.json and the hour behind it, without a server.
#include "exporter/wall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "exporter/collector.h"
#include "tests/exporter/crafted.h"

namespace sluice::exporter {
namespace {

using nlohmann::json;
using test::Crafted;
using test::example;
using testing::HasSubstr;
using testing::Not;
constexpr std::uint64_t kSecond = 1'000'000'000;

Snapshot parsed_of(const Crafted& crafted) {
  const auto bytes = crafted.bytes();
  auto result = snapshot_parse(bytes.data(), bytes.size());
  EXPECT_TRUE(std::holds_alternative<Snapshot>(result)) << std::get<SnapshotError>(result).text;
  return std::get<Snapshot>(std::move(result));
}

std::string json_of(const Snapshot* snapshot, WallView view = {}) {
  static const std::deque<HourPoint> kNoHour;
  view.snapshot = snapshot;
  if (view.hour == nullptr) view.hour = &kNoHour;
  if (view.tenants_max == 0) view.tenants_max = 200;
  return wall_json(view);
}

TEST(WallJson, TellsWhoIsOnWhichGpuAndWhoWaits) {
  const Snapshot snapshot = parsed_of(example());
  WallView view;
  view.recent.gpu_time["GPU-" + std::string("a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf")] = 0.625;
  IdleFigures& idle = view.idle.table[{2, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"}];
  idle.busy_ns = 1'500'000'000;
  idle.idle_ns[static_cast<std::size_t>(Cause::kDisk)] = 250'000'000;
  const json out = json::parse(json_of(&snapshot, view));
  EXPECT_EQ(out["format"], 1);
  EXPECT_EQ(out["idle_observer"]["kind"], "none");
  EXPECT_EQ(out["gpus"][1]["slices"][0]["busy_s"], 1.5);
  EXPECT_EQ(out["gpus"][1]["slices"][0]["idle_s"]["disk"], 0.25);
  EXPECT_EQ(out["gpus"][1]["slices"][0]["idle_s"].size(), kCauses);
  EXPECT_FALSE(out["gpus"][1]["slices"][1].contains("idle_s")) << "not observed";
  EXPECT_EQ(out["up"], true);
  EXPECT_EQ(out["broker_uptime_s"], 90.5);
  ASSERT_EQ(out["gpus"].size(), 2U);
  const json& shared = out["gpus"][1];
  EXPECT_EQ(shared["uuid"], "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
  EXPECT_EQ(shared["name"], "Sluice Software GPU");
  EXPECT_EQ(shared["busy"], 0.625);
  EXPECT_EQ(shared["allocated"], 0.75);
  EXPECT_EQ(shared["guaranteed_share"], 0.5);
  EXPECT_EQ(shared["memory_held_bytes"], (1ULL << 30) + 1);
  EXPECT_FALSE(out["gpus"][0].contains("busy")) << "nobody knows it";
  EXPECT_EQ(out["gpus"][0]["lost"], true);
  ASSERT_EQ(shared["slices"].size(), 2U);
  EXPECT_EQ(shared["slices"][0]["tenant"], 2);
  EXPECT_EQ(shared["slices"][0]["target_share"], 0.25);
  EXPECT_EQ(shared["slices"][0]["guaranteed"], false);
  EXPECT_EQ(shared["slices"][1]["guaranteed"], true);
  EXPECT_EQ(shared["slices"][0]["waiting"], true);
  EXPECT_EQ(shared["slices"][1]["memory_swapped_bytes"], 90'000'000);
  ASSERT_EQ(out["tenants"].size(), 2U);
  EXPECT_EQ(out["tenants"][0]["user"], "1000");
  EXPECT_EQ(out["tenants"][0]["runaway"], true);
  EXPECT_FALSE(out["tenants"][0].contains("training"));
  EXPECT_EQ(out["tenants"][1]["state"], "suspended");
  EXPECT_EQ(out["tenants"][1]["training"]["straggler"], 1.25);
  EXPECT_FALSE(out["tenants"][1].contains("off_cpu")) << "nobody watches";
  ASSERT_EQ(out["queue"].size(), 1U);
  EXPECT_EQ(out["queue"][0]["user"], "cleo");
  EXPECT_EQ(out["queue"][0]["reason"], "drain");
  EXPECT_EQ(out["queue"][0]["waited_s"], 12.5);
  EXPECT_FALSE(out["queue"][0].contains("why"));
}

TEST(WallJson, NeverCommandsOrProcessNumbers) {
  const Snapshot snapshot = parsed_of(example());
  const std::string text = json_of(&snapshot);
  EXPECT_THAT(text, Not(HasSubstr("secret-command")));
  EXPECT_THAT(text, Not(HasSubstr("4001")));
}

// The sentence that says who has most of a GPU names a job, and that name is its command's.
TEST(WallJson, NeverNamesOfJobs) {
  const std::pair<const char*, const char*> rows[] = {
      {"job 3 (secret) of user anna has most of it: 768 MiB, idle for 42m",
       "job 3 of user anna has most of it: 768 MiB, idle for 42m"},
      {"job 3 (a) of user b) of user anna has most of it: 768 MiB",
       "job 3 of user anna has most of it: 768 MiB"},
      {"and this job asks for 1 GiB; job 3 (secr", "and this job asks for 1 GiB; job 3"},
      {"the quotas on GPU 0 add up to 4 GiB of 4 GiB, and this job asks for 1 GiB; job 3 (secret) "
       "of "
       "user anna has all of it: 4 GiB",
       "the quotas on GPU 0 add up to 4 GiB of 4 GiB, and this job asks for 1 GiB; job 3 of user "
       "anna has all of it: 4 GiB"},
      {"it is put aside for job 4, which has its GPU as a whole",
       "it is put aside for job 4, which has its GPU as a whole"},
      {"; 4 jobs have it, the largest part 25 %: job 3 (secret) of user anna, idle for 42m; 3 more "
       "GPUs have no room for it",
       "; 4 jobs have it, the largest part 25 %: job 3 of user anna, idle for 42m; 3 more GPUs "
       "have "
       "no room for it"},
      {"GPU 0 is drained by user anna (new job)", "GPU 0 is drained by user anna (new job)"},
  };
  for (const auto& [why, shown] : rows) {
    Crafted crafted = example();
    std::strcpy(crafted.tenants[0].why, why);
    std::strcpy(crafted.tenants[2].why, why);
    const Snapshot snapshot = parsed_of(crafted);
    const json out = json::parse(json_of(&snapshot));
    EXPECT_EQ(out["queue"][0]["why"], shown);
    EXPECT_EQ(out["tenants"][1]["why"], shown);
  }
}

// What `sluice status` calls [0] is [0] here, and the first.
TEST(WallJson, GpusAreNumberedAsTheBrokerNumbersThem) {
  Crafted crafted = example();
  for (std::uint8_t first = 0; first < 2; ++first) {
    crafted.gpus[0].index = first;
    crafted.gpus[1].index = 1 - first;
    const Snapshot snapshot = parsed_of(crafted);
    const json out = json::parse(json_of(&snapshot));
    for (const auto& gpu : crafted.gpus) {
      EXPECT_EQ(out["gpus"][gpu.index]["index"], gpu.index);
      EXPECT_EQ(out["gpus"][gpu.index]["uuid"], uuid_text(gpu.uuid));
    }
  }
}

TEST(WallJson, HostileNamesStayNames) {
  Crafted crafted = example();
  const std::string name = "\"},\n</script><img src=x onerror=alert(1)>\xff";
  snprintf(crafted.tenants[0].user, sizeof crafted.tenants[0].user, "%s", name.c_str());
  snprintf(crafted.gpus[0].name, sizeof crafted.gpus[0].name, "%s", name.c_str());
  const Snapshot snapshot = parsed_of(crafted);
  const json out = json::parse(json_of(&snapshot));
  const std::string shown = name.substr(0, name.size() - 1) + "?";
  EXPECT_EQ(out["tenants"][1]["user"], shown.substr(0, sizeof crafted.tenants[0].user - 1));
  EXPECT_EQ(out["gpus"][1]["name"], shown);
}

TEST(WallJson, WithoutTheBrokerItSaysWhy) {
  WallView view;
  view.error = "no answer from the broker";
  const json out = json::parse(json_of(nullptr, view));
  EXPECT_EQ(out["up"], false);
  EXPECT_EQ(out["error"], "no answer from the broker");
  EXPECT_TRUE(out["gpus"].empty());
}

TEST(WallJson, TheQueueIsInItsOrderAndBothListsEndAtTheCap) {
  Crafted crafted = example();
  for (std::uint32_t i = 0; i < 5; ++i) {
    auto& queued = crafted.tenant_add(0, "late", protocol::TenantClass::kBatch);
    queued.state = protocol::TenantState::kQueued;
    queued.queue_position = 6 - i;
    std::strcpy(queued.why, "the quotas on GPU 0 add up to 4 GiB of 4 GiB");
  }
  crafted.tenants[2].queue_position = 1;
  const Snapshot snapshot = parsed_of(crafted);
  WallView view;
  view.tenants_max = 1;
  json out = json::parse(json_of(&snapshot, view));
  EXPECT_EQ(out["tenants"].size(), 1U);
  EXPECT_EQ(out["tenants_in_all"], 2);
  EXPECT_EQ(out["gpus"][1]["slices"].size(), 1U) << "of tenants that have a row";
  EXPECT_EQ(out["queue"].size(), 1U);
  EXPECT_EQ(out["queue_in_all"], 6);
  out = json::parse(json_of(&snapshot));
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(out["queue"][i]["position"], i + 1);
  EXPECT_EQ(out["queue"][1]["why"], "the quotas on GPU 0 add up to 4 GiB of 4 GiB");
}

TEST(WallJson, OffCpuTimeOnlyWhereItIsWatched) {
  const Snapshot snapshot = parsed_of(example());
  WallView view;
  view.watch.enabled = true;
  view.watch.tenants[3] = {7, 5 * kSecond, kSecond / 4};
  const json out = json::parse(json_of(&snapshot, view));
  EXPECT_FALSE(out["tenants"][0].contains("off_cpu"));
  EXPECT_EQ(out["tenants"][1]["off_cpu"]["sleeping_s"], 5);
  EXPECT_EQ(out["tenants"][1]["off_cpu"]["runnable_s"], 0.25);
}

/// A GPU that works half of the time, looked at once a second.
class HourTest : public testing::Test {
 protected:
  void look_at(std::uint64_t s, std::uint64_t busy_ns) {
    crafted_.header.taken_ns = s * kSecond;
    crafted_.gpus[0].busy_ns = busy_ns;
    hour_.look(parsed_of(crafted_));
  }
  void look_through(std::uint64_t from_s, std::uint64_t to_s) {
    for (std::uint64_t s = from_s; s <= to_s; ++s) look_at(s, s * kSecond / 2);
  }
  static constexpr const char* kGpu = "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf";
  Crafted crafted_ = example();
  Hour hour_;
};

TEST_F(HourTest, APointEveryTenSeconds) {
  look_through(200, 231);
  ASSERT_EQ(hour_.points().size(), 3U);
  EXPECT_EQ(hour_.points()[1].end_ns, 220 * kSecond);
  EXPECT_DOUBLE_EQ(hour_.points()[1].gpus.at(kGpu).busy, 0.5);
  EXPECT_NEAR(hour_.points()[1].gpus.at(kGpu).held, 0.25, 1e-6);
  EXPECT_EQ(hour_.points()[1].queued, 1U);
  EXPECT_EQ(hour_.points()[1].running, 2U);
}

// A whole GPU is not metered: its curve is what the driver said meanwhile.
TEST_F(HourTest, OfWholeGpusTheDriversFigure) {
  crafted_.gpus[0].exclusive = 1;
  const Snapshot first = parsed_of(crafted_);
  crafted_.header.taken_ns += kHourStep_ns;
  const Snapshot second = parsed_of(crafted_);
  DeviceFigures devices;
  devices.up = true;
  devices.gpus[kGpu].busy_ratio = 0.25;
  Hour hour;
  hour.look(first, devices);
  devices.gpus[kGpu].busy_ratio = 0.75;
  hour.look(second, devices);
  ASSERT_EQ(hour.points().size(), 1U);
  EXPECT_DOUBLE_EQ(hour.points()[0].gpus.at(kGpu).busy, 0.75) << "of this step, not the last";
}

TEST_F(HourTest, NoMoreThanAnHour) {
  look_through(200, 200 + 3600 + 500);
  EXPECT_EQ(hour_.points().size(), kHourSteps);
  EXPECT_EQ(hour_.points().back().end_ns, 4300 * kSecond);
}

TEST_F(HourTest, SilenceAndAnotherBrokerMakeNoPoint) {
  look_through(200, 210);
  look_at(300, 290 * kSecond);  // silence: whatever happened, nobody saw when
  EXPECT_EQ(hour_.points().size(), 1U);
  look_at(305, 290 * kSecond);
  look_at(310, 291 * kSecond);
  ASSERT_EQ(hour_.points().size(), 2U);
  EXPECT_DOUBLE_EQ(hour_.points().back().gpus.at(kGpu).busy, 0.1);
  crafted_.header.started_ns += kSecond;
  look_at(320, 0);
  EXPECT_EQ(hour_.points().size(), 2U);
  look_at(330, 5 * kSecond);
  ASSERT_EQ(hour_.points().size(), 3U);
  EXPECT_DOUBLE_EQ(hour_.points().back().gpus.at(kGpu).busy, 0.5);
}

TEST_F(HourTest, AGpuThatComesLaterHasNothingBefore) {
  const protocol::SnapshotGpu second = crafted_.gpus[1];
  const auto vgpus = crafted_.tenant_gpus;
  crafted_.gpus.pop_back();
  std::erase_if(crafted_.tenant_gpus, [&](const auto& vgpu) { return vgpu.gpu == second.uuid; });
  look_through(200, 210);
  crafted_.gpus.push_back(second);
  crafted_.tenant_gpus = vgpus;
  look_through(211, 231);
  WallView view;
  view.hour = &hour_.points();
  view.now_ns = 235 * kSecond;
  const Snapshot snapshot = parsed_of(crafted_);
  const json out = json::parse(json_of(&snapshot, view))["hour"];
  EXPECT_EQ(out["ago_s"], json::parse("[25, 15, 5]"));
  EXPECT_EQ(out["queued"], json::parse("[1, 1, 1]"));
  EXPECT_EQ(out["gpus"][kGpu]["busy"], json::parse("[0.5, 0.5, 0.5]"));
  EXPECT_EQ(out["gpus"]["GPU-20212223-2425-2627-2829-2a2b2c2d2e2f"]["busy"],
            json::parse("[null, null, 0.0]"));
}

class CountingSource : public SnapshotSource {
 public:
  explicit CountingSource(int* asked) : asked_(asked) {}
  SnapshotResult snapshot_take() override {
    ++*asked_;
    return parsed_of(example());
  }

 private:
  int* asked_;
};

TEST(Collector, AnyNumberOfWallsAskTheBrokerOnceASecond) {
  int asked = 0;
  std::uint64_t now_ns = 1000 * kSecond;
  CollectorParts parts;
  parts.source = std::make_unique<CountingSource>(&asked);
  parts.clock_ns = [&] { return now_ns; };
  parts.say = [](const std::string&) {};
  const Collector collector(std::move(parts));
  const std::string first = collector.wall();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(collector.wall(), first);
  EXPECT_EQ(asked, 1);
  now_ns += kSecond;
  EXPECT_TRUE(json::parse(collector.wall())["up"]);
  EXPECT_EQ(asked, 2);
  collector.Collect();
  EXPECT_EQ(asked, 3) << "a scrape is always answered anew";
}

}  // namespace
}  // namespace sluice::exporter
