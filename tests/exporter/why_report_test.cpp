// What `sluice why` is asked and what it prints, word for word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "exporter/why/options.h"
#include "exporter/why/report.h"
#include "exporter/why/shares.h"

namespace sluice::exporter {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string fault_of(const std::vector<std::string>& arguments) {
  std::string error;
  EXPECT_FALSE(why_options_parse(arguments, &error)) << "taken";
  return error;
}

TEST(WhyOptionsTest, DefaultsAndEverything) {
  std::string error;
  const auto none = why_options_parse({}, &error);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->tenant, "");
  EXPECT_EQ(none->seconds_ns, 10'000'000'000u);
  EXPECT_TRUE(none->bpf);
  const auto all =
      why_options_parse({"train", "--for=500ms", "--json", "--no-bpf", "--socket", "/s"}, &error);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->tenant, "train");
  EXPECT_EQ(all->seconds_ns, 500'000'000u);
  EXPECT_TRUE(all->json);
  EXPECT_FALSE(all->bpf);
  EXPECT_EQ(all->socket, "/s");
  EXPECT_TRUE(why_options_parse({"-h"}, &error)->help);
}

TEST(WhyOptionsTest, MistakesSayWhatToDo) {
  EXPECT_THAT(fault_of({"--for"}), HasSubstr("--for needs a value"));
  EXPECT_THAT(fault_of({"--for", "soon"}), HasSubstr("write it like 500ms, 10s or 1m"));
  EXPECT_THAT(fault_of({"--for", "0s"}), HasSubstr("'0s' is no time"));
  EXPECT_THAT(fault_of({"--socket"}), HasSubstr("--socket needs a value"));
  EXPECT_THAT(fault_of({"--often"}), HasSubstr("unknown argument '--often'"));
  EXPECT_THAT(fault_of({"--jsno"}), HasSubstr("unknown argument '--jsno' (did you mean --json?)"));
  EXPECT_THAT(fault_of({"a", "b"}), HasSubstr("unknown argument 'b'"));
  EXPECT_THAT(fault_of({""}), HasSubstr("unknown argument ''"));
}

WhyRow row(std::uint64_t busy, std::uint64_t disk, std::uint64_t cpu) {
  WhyRow out;
  out.tenant = 3;
  out.name = "train";
  out.gpu = "GPU-1";
  out.figures.busy_ns = busy * 1'000'000;
  out.figures.idle_ns[static_cast<std::size_t>(Cause::kDisk)] = disk * 1'000'000;
  out.figures.idle_ns[static_cast<std::size_t>(Cause::kCpu)] = cpu * 1'000'000;
  return out;
}

TEST(WhyReportTest, BarsLongestFirstAndAdviceForTheLongest) {
  WhyReport report;
  report.rows = {row(500, 400, 100)};
  const std::string text = why_text(report);
  EXPECT_EQ(text.substr(0, text.find("  disk:")),
            "train (job 3) on GPU-1, 1.0 s\n"
            "  busy       50.0 %  ####################\n"
            "  disk       40.0 %  ################\n"
            "  cpu        10.0 %  ####\n");
  EXPECT_THAT(text, HasSubstr("  disk: files are slow"));
}

TEST(WhyReportTest, AJobThatPaysBackIsNotAdvisedALargerShare) {
  WhyReport report;
  report.rows = {row(0, 0, 0)};
  report.rows[0].figures.idle_ns[static_cast<std::size_t>(Cause::kGate)] = 1'000'000'000;
  EXPECT_THAT(why_text(report), HasSubstr("  gate: the GPU was another job's"));
  report.rows[0].owed_ns = 2'400'000'000;
  EXPECT_THAT(why_text(report), HasSubstr("  gate: it pays back 2.4 s of GPU time that its user's "
                                          "jobs took beyond their share"));
  EXPECT_THAT(why_text(report), Not(HasSubstr("ask for a larger")));
  EXPECT_THAT(why_json(report), HasSubstr("\"owed_ns\": 2400000000"));
}

WhyReport waits_at_the_gate(const WhyShares& shares) {
  WhyReport report;
  report.rows = {row(0, 0, 0)};
  report.rows[0].figures.idle_ns[static_cast<std::size_t>(Cause::kGate)] = 1'000'000'000;
  report.rows[0].shares = shares;
  return report;
}

TEST(WhyReportTest, AWeightBesideGuaranteesHasItsNumbers) {
  WhyShares shares;
  shares.kind = protocol::SmKind::kWeight;
  shares.percent = 30;
  shares.guaranteed = 90;
  shares.weights = 50;
  shares.watched_ns = 10'000'000'000;
  shares.own_ns = 600'000'000;
  shares.others = {{"big", 4, "ann", 7'100'000'000}, {"small", 5, "bob", 2'000'000'000}};
  EXPECT_THAT(
      why_text(waits_at_the_gate(shares)),
      HasSubstr("  gate: big (job 4) of ann had the GPU for 71 % of the time, small (job 5) of bob "
                "for 20 %; this one had it for 6 %\n"
                "  gate: the guarantees on this GPU leave 10 % of it for weights, and this job's "
                "is 30 of 50: 6 % of the GPU while all want it; ask for a guarantee (--sm, up to "
                "10), as far as your profile allows one\n"));
  const auto told =
      nlohmann::json::parse(why_json(waits_at_the_gate(shares)))["tenants"][0]["shares"];
  EXPECT_EQ(told["guaranteed_percent"], 90);
  EXPECT_EQ(told["others"][0]["held_ns"], 7'100'000'000);
  shares.guaranteed = 100;
  shares.others.clear();
  const std::string none = why_text(waits_at_the_gate(shares));
  EXPECT_THAT(none, HasSubstr("leave 0 % of it for weights"));
  EXPECT_THAT(none, HasSubstr("0 % of the GPU while all want it; on another GPU, or when jobs with "
                              "guarantees have ended, it has more\n"));
  EXPECT_THAT(none, Not(HasSubstr("exclusive")));
}

TEST(WhyReportTest, AGuaranteeHasItsNumbers) {
  WhyShares shares;
  shares.kind = protocol::SmKind::kGuaranteed;
  shares.percent = 25;
  shares.guaranteed = 60;
  shares.watched_ns = 10'000'000'000;
  EXPECT_THAT(why_text(waits_at_the_gate(shares)),
              HasSubstr("it is guaranteed 25 %, and 40 % of the GPU is guaranteed to no job: ask "
                        "for more (--sm, up to 65), as far as your profile allows it\n"));
  shares.guaranteed = 100;
  EXPECT_THAT(why_text(waits_at_the_gate(shares)),
              HasSubstr("it is guaranteed 25 %, and no more can be guaranteed on this GPU\n"));
}

// Snapshots name all jobs, whoever was asked for.
TEST(WhySharesTest, WhoHadTheGpuMeanwhile) {
  Snapshot snapshot{};
  snapshot.header.taken_ns = 1'000'000'000;
  snapshot.gpus.resize(1);
  snapshot.gpus[0].sm_guaranteed = 70;
  for (const protocol::TenantId id : {1, 2, 3}) {
    protocol::SnapshotTenant tenant{};
    tenant.tenant = id;
    tenant.state = id == 3 ? protocol::TenantState::kSuspended : protocol::TenantState::kRunning;
    tenant.name[0] = static_cast<char>('a' + id);
    tenant.user[0] = 'u';
    snapshot.tenants.push_back(tenant);
    protocol::SnapshotTenantGpu part{};
    part.tenant = id;
    part.sm_percent = static_cast<std::uint32_t>(10 * id);
    part.lease_held_ns = 5'000'000'000;
    snapshot.tenant_gpus.push_back(part);
  }
  ShareWatch watch;
  watch.look(snapshot);
  snapshot.header.taken_ns += 2'000'000'000;
  snapshot.tenant_gpus[1].lease_held_ns += 1'500'000'000;
  snapshot.tenant_gpus[0].lease_held_ns += 500'000'000;
  watch.look(snapshot);
  const std::string gpu = uuid_text(snapshot.gpus[0].uuid);
  const WhyShares shares = watch.shares(1, gpu);
  EXPECT_EQ(shares.percent, 10U);
  EXPECT_EQ(shares.guaranteed, 70U);
  EXPECT_EQ(shares.weights, 30U) << "who is suspended takes no part";
  EXPECT_EQ(shares.watched_ns, 2'000'000'000U);
  EXPECT_EQ(shares.own_ns, 500'000'000U);
  ASSERT_EQ(shares.others.size(), 1U);
  EXPECT_EQ(shares.others[0].name, "c");
  EXPECT_EQ(shares.others[0].ns, 1'500'000'000U);
  EXPECT_EQ(watch.shares(9, gpu).percent, 0U);
}

// The GPU's guarantees without a job that ended are no room beside its own.
TEST(WhySharesTest, AJobThatEndsIsToldTheGuaranteesOfItsTime) {
  Snapshot snapshot{};
  snapshot.header.taken_ns = 1'000'000'000;
  snapshot.gpus.resize(1);
  snapshot.gpus[0].sm_guaranteed = 75;
  snapshot.tenants.resize(1);
  snapshot.tenants[0].tenant = 1;
  snapshot.tenant_gpus.resize(1);
  snapshot.tenant_gpus[0].tenant = 1;
  snapshot.tenant_gpus[0].sm_percent = 50;
  ShareWatch watch;
  watch.look(snapshot);
  snapshot.header.taken_ns += 1'000'000'000;
  snapshot.gpus[0].sm_guaranteed = 25;
  snapshot.tenants.clear();
  snapshot.tenant_gpus.clear();
  watch.look(snapshot);
  EXPECT_EQ(watch.shares(1, uuid_text(snapshot.gpus[0].uuid)).guaranteed, 75U);
}

TEST(WhyReportTest, NoAdviceForABusyGpu) {
  WhyReport report;
  report.rows = {row(950, 40, 10)};
  EXPECT_THAT(why_text(report), Not(HasSubstr("disk:")));
}

TEST(WhyReportTest, WhatIsJoinedIsSaidWhereItsCauseMatters) {
  WhyReport report;
  report.rows = {row(500, 0, 100)};
  WhyRow& one = report.rows[0];
  one.watched_ns = 1'000'000'000;
  one.cgroup = {300'000'000, 400'000'000, 200'000'000};
  one.straggler_score = 1.4;
  one.least_waiting = 4711;
  one.least_wait_ns = 100'000'000;
  one.others_wait_ns = 600'000'000;
  const std::string quiet = why_text(report);
  EXPECT_THAT(
      quiet,
      HasSubstr("memory of the host: some task of its cgroup waited for it for 0.2 s of 1.0 s"));
  EXPECT_THAT(quiet, Not(HasSubstr("cpu.max")));
  EXPECT_THAT(quiet, Not(HasSubstr("rank")));
  one.figures.idle_ns[static_cast<std::size_t>(Cause::kRunqueue)] = 200'000'000;
  one.figures.idle_ns[static_cast<std::size_t>(Cause::kNetwork)] = 200'000'000;
  const std::string text = why_text(report);
  EXPECT_THAT(
      text,
      HasSubstr("runqueue: the CPU limit of its cgroup (cpu.max) held it back for 0.3 s of 1.0 s"));
  EXPECT_THAT(text, HasSubstr("runqueue: some task of its cgroup waited for a CPU for 0.4 s"));
  EXPECT_THAT(text,
              HasSubstr("network: its slowest rank computes 1.40 times as long as the median"));
  EXPECT_THAT(text, HasSubstr("network: the others wait for process 4711, which itself waited 0.1 "
                              "s for them, and they 0.6 s each"));
  const auto told = nlohmann::json::parse(why_json(report))["tenants"][0];
  EXPECT_EQ(told["cgroup_throttled_ns"], 300'000'000);
  EXPECT_EQ(told["least_waiting_process"], 4711);
  one.cgroup = {};
  one.least_wait_ns = 500'000'000;  // even ranks: nobody is waited for
  EXPECT_THAT(why_text(report), Not(HasSubstr("4711")));
  EXPECT_THAT(why_text(report), Not(HasSubstr("pressure")));
}

// Nothing is metered there: how busy it is the driver says, if it does, and why nobody does.
TEST(WhyReportTest, OfWholeGpusCausesAreNotKnownAndItIsSaidWhy) {
  WhyReport report;
  report.whole = {{4, "owner", "GPU-2", 1, 2'000'000'000, 1.5, 2},
                  {5, "other", "GPU-3", -1, 1, 0, 0}};
  const std::string text = why_text(report);
  EXPECT_EQ(text,
            "owner (job 4) on GPU 1 (GPU-2), which it owns as a whole, 2.0 s\n"
            "  busy       75.0 %  ##############################\n"
            "  idle       25.0 %  ##########\n"
            "  busy is what the driver says; causes are not known, because on a whole GPU nothing "
            "is metered: run it in another class to find out\n"
            "other (job 5) on GPU-3, which it owns as a whole, 0.0 s\n"
            "  how busy it is is not known, for the driver does not say; causes are not known, "
            "because on a whole GPU nothing is metered: run it in another class to find out\n");
  const auto told = nlohmann::json::parse(why_json(report));
  EXPECT_TRUE(told["tenants"].empty());
  EXPECT_EQ(told["whole_gpus"][0]["busy_ratio"], 0.75);
  EXPECT_EQ(told["whole_gpus"][0]["tenant"], 4);
  EXPECT_TRUE(told["whole_gpus"][1]["busy_ratio"].is_null());
}

class CgroupFiles : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  const std::string root_ = testing::TempDir() + "sluice-cgroup-" + std::to_string(getpid());
};

TEST_F(CgroupFiles, VersionTwoWithLimitsOnTwoLevels) {
  put("/proc/5/cgroup", "0::/user.slice/job\n");
  put("/sys/fs/cgroup/user.slice/cpu.stat", "usage_usec 1\nnr_throttled 2\nthrottled_usec 500\n");
  put("/sys/fs/cgroup/user.slice/job/cpu.stat", "usage_usec 1\nthrottled_usec 250\n");
  put("/sys/fs/cgroup/user.slice/job/cpu.pressure",
      "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 total=9\n");
  const CgroupLook look = cgroup_look(5, root_);
  EXPECT_EQ(look.throttled_ns, 750'000U);
  EXPECT_EQ(look.cpu_wait_ns, 77'000U);
  EXPECT_EQ(look.memory_wait_ns, std::nullopt);
  put("/sys/fs/cgroup/user.slice/job/cpu.stat", "throttled_usec 1250\n");
  const CgroupLook since = cgroup_since(look, cgroup_look(5, root_));
  EXPECT_EQ(since.throttled_ns, 1'000'000U);
  EXPECT_EQ(since.cpu_wait_ns, 0U);
  EXPECT_EQ(since.memory_wait_ns, std::nullopt);
  EXPECT_EQ(cgroup_since(cgroup_look(5, root_), look).throttled_ns, std::nullopt)
      << "another group";
}

TEST_F(CgroupFiles, VersionOneAndNone) {
  put("/proc/6/cgroup", "4:memory:/a\n3:cpu,cpuacct:/b\n1:name=systemd:/c\n0::/\n");
  put("/sys/fs/cgroup/cpu,cpuacct/b/cpu.stat",
      "nr_periods 9\nnr_throttled 3\nthrottled_time 12345\n");
  EXPECT_EQ(cgroup_look(6, root_).throttled_ns, 12345U);
  EXPECT_EQ(cgroup_look(6, root_).cpu_wait_ns, std::nullopt);
  EXPECT_EQ(cgroup_look(7, root_).throttled_ns, std::nullopt);
}

TEST(WhyReportTest, WhatIsNotKnownIsSaid) {
  WhyReport report;
  EXPECT_THAT(why_text(report), HasSubstr("no job is running"));
  report.unseen = 2;
  EXPECT_EQ(why_text(report),
            "2 jobs are another user's and cannot be looked at; ask as that user, or as root\n");
  EXPECT_EQ(nlohmann::json::parse(why_json(report))["unseen_tenants"], 2);
  report.rows = {row(0, 0, 0)};
  EXPECT_THAT(why_text(report), HasSubstr("nothing is known yet"));
  report.rows = {row(750, 0, 0)};
  report.rows[0].figures.unseen_ns = 250'000'000;
  report.coarse = true;
  report.reason = "no permission";
  report.lost = 7;
  const std::string text = why_text(report);
  EXPECT_THAT(text, HasSubstr("another  25.0 % of the time had more gaps than could be read"));
  EXPECT_THAT(text, HasSubstr("sampled from /proc: no permission"));
  EXPECT_THAT(text, HasSubstr("7 periods of threads were lost"));
}

TEST(WhyReportTest, JsonHasEveryCauseAndHostileNamesAreQuoted) {
  WhyReport report;
  report.rows = {row(5, 3, 1)};
  report.rows[0].name = "a\"b\n";
  const auto told = nlohmann::json::parse(why_json(report));
  EXPECT_EQ(told["source"], "bpf");
  const auto& one = told["tenants"][0];
  EXPECT_EQ(one["name"], "a\"b\n");
  EXPECT_EQ(one["accounted_ns"], 9'000'000);
  EXPECT_EQ(one["idle_ns"].size(), kCauses);
  EXPECT_EQ(one["idle_ns"]["disk"], 3'000'000);
  EXPECT_EQ(one["idle_ns"]["no-work"], 0);
}

}  // namespace
}  // namespace sluice::exporter
