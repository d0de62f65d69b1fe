// The job log: every line is JSON whatever is put in, and lines of several writers never mix.
#include "trainer/job/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/trainer/process.h"
#include "trainer/base/failure.h"

namespace sluice::tests {
namespace {

using train::JobLog;
using train::JsonLine;

TEST(JsonLine, IsJsonWithEventAndTimeFirst) {
  const std::string text = JsonLine("step", 17)
                               .add("rank", 2)
                               .add("loss", 0.125)
                               .add("big", std::uint64_t{1} << 62)
                               .add("text", "a \"quoted\" \\ line\n")
                               .text();
  EXPECT_EQ(text.find("{\"event\":\"step\",\"t_ns\":17,"), 0u);
  EXPECT_EQ(text.back(), '\n');
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["rank"], 2);
  EXPECT_EQ(json["loss"], 0.125);
  EXPECT_EQ(json["big"], std::int64_t{1} << 62);
  EXPECT_EQ(json["text"], "a \"quoted\" \\ line\n");
}

TEST(JsonLine, WhatIsNoNumberIsNull) {
  const auto json =
      nlohmann::json::parse(JsonLine("x").add("nan", std::nan("")).add("inf", HUGE_VAL).text());
  EXPECT_TRUE(json["nan"].is_null());
  EXPECT_TRUE(json["inf"].is_null());
}

TEST(JobLog, FreshForgetsAppendKeeps) {
  const ScratchDirectory scratch;
  const std::string path = scratch.file("log");
  JobLog(path, JobLog::Open::kFresh).write(JsonLine("old"));
  JobLog(path, JobLog::Open::kFresh).write(JsonLine("one"));
  JobLog(path, JobLog::Open::kAppend).write(JsonLine("two"));
  const auto lines = log_lines(path);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["event"], "one");
  EXPECT_EQ(lines[1]["event"], "two");
}

TEST(JobLog, LinesOfSeveralProcessesStayWhole) {
  const ScratchDirectory scratch;
  const std::string path = scratch.file("log");
  constexpr int kWriters = 4;
  constexpr int kLines = 300;
  for (int writer = 0; writer < kWriters; ++writer) {
    if (fork() != 0) continue;
    JobLog log(path, JobLog::Open::kAppend);
    for (int i = 0; i < kLines; ++i) log.write(JsonLine("step").add("rank", writer).add("step", i));
    _exit(0);
  }
  for (int writer = 0; writer < kWriters; ++writer) wait(nullptr);
  std::vector<int> next(kWriters);
  for (const auto& line : log_lines(path)) {
    const int rank = line["rank"];
    EXPECT_EQ(line["step"], next[static_cast<std::size_t>(rank)]++);
  }
  EXPECT_EQ(next, std::vector<int>(kWriters, kLines));
}

TEST(JobLog, SaysWhenItCannotBeOpened) {
  EXPECT_THROW(JobLog("/nonexistent/log", JobLog::Open::kFresh), train::Failure);
  JobLog("", JobLog::Open::kFresh).write(JsonLine("nowhere"));
}

}  // namespace
}  // namespace sluice::tests
