// What `sluice why` is asked and what it prints, word for word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "exporter/why/options.h"
#include "exporter/why/report.h"

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
  EXPECT_THAT(fault_of({"a", "b"}), HasSubstr("unknown argument 'b'"));
  EXPECT_THAT(fault_of({""}), HasSubstr("unknown argument ''"));
}

WhyRow row(std::uint64_t busy, std::uint64_t disk, std::uint64_t cpu) {
  WhyRow out{3, "train", "GPU-1", {}};
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
            "train (tenant 3) on GPU-1, 1.0 s\n"
            "  busy       50.0 %  ####################\n"
            "  disk       40.0 %  ################\n"
            "  cpu        10.0 %  ####\n");
  EXPECT_THAT(text, HasSubstr("  disk: files are slow"));
}

TEST(WhyReportTest, NoAdviceForABusyGpu) {
  WhyReport report;
  report.rows = {row(950, 40, 10)};
  EXPECT_THAT(why_text(report), Not(HasSubstr("disk:")));
}

TEST(WhyReportTest, WhatIsNotKnownIsSaid) {
  WhyReport report;
  EXPECT_THAT(why_text(report), HasSubstr("no shared job is running"));
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
