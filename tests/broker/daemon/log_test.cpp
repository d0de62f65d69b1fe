// Lines of the log, as they land in the file.
#include "broker/daemon/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

namespace sluice::daemon {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

class LogTest : public testing::Test {
 protected:
  LogTest() : path_(testing::TempDir() + "sluice_log_" + std::to_string(getpid())) {
    EXPECT_EQ(log_.file_open(path_), 0);
  }
  ~LogTest() override { std::remove(path_.c_str()); }
  std::string text() {
    std::ifstream file(path_);
    return std::string((std::istreambuf_iterator<char>(file)), {});
  }
  std::string path_;
  Log log_;
};

TEST_F(LogTest, FieldsAreQuotedWhereNeeded) {
  log_.line(Level::kInfo, "admitted",
            {{"tenant", 7u}, {"name", "my job"}, {"gpu", "GPU-1"}, {"empty", ""}});
  EXPECT_THAT(
      text(),
      HasSubstr("level=info event=admitted tenant=7 name=\"my job\" gpu=GPU-1 empty=\"\"\n"));
}

TEST_F(LogTest, ValuesCannotForgeLines) {
  log_.line(Level::kInfo, "x", {{"name", "a\nlevel=error event=\"y\\"}});
  EXPECT_THAT(text(), HasSubstr("name=\"a?level=error event=\\\"y\\\\\"\n"));
}

TEST_F(LogTest, SentencesBeginWithTheProgram) {
  log_.message(Level::kWarning, "runaway", "job x has not drained", {{"tenant", 3}});
  EXPECT_THAT(
      text(),
      EndsWith("level=warning event=runaway tenant=3 msg=\"sluice: job x has not drained\"\n"));
}

TEST_F(LogTest, Levels) {
  log_.line(Level::kDebug, "hidden", {});
  EXPECT_EQ(text(), "");
  log_.level_set("debug");
  log_.line(Level::kDebug, "shown", {});
  EXPECT_THAT(text(), HasSubstr("event=shown"));
  log_.level_set("nonsense");
  EXPECT_TRUE(log_.enabled(Level::kDebug));
  log_.level_set("error");
  EXPECT_FALSE(log_.enabled(Level::kWarning));
}

TEST_F(LogTest, WhatAnybodyCanCauseIsLimited) {
  for (int i = 0; i < 100'000; ++i) log_.line_limited(Level::kInfo, "refused", {{"n", i}});
  const std::string written = text();
  EXPECT_THAT(written, HasSubstr("event=refused n=0\n"));
  EXPECT_LT(std::count(written.begin(), written.end(), '\n'), 5000);
  log_.line(Level::kInfo, "admitted", {});
  EXPECT_THAT(text(), EndsWith("event=admitted\n")) << "the others are not held back";
}

TEST(Log, AReaderThatDoesNotReadHoldsNobodyUp) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string page(4096, 'x');
  while (write(ends[1], page.data(), page.size()) > 0) continue;
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);
  const int error_stream = dup(STDERR_FILENO);
  Log log;
  dup2(ends[1], STDERR_FILENO);
  alarm(20);  // the end of a log that waits
  log.line(Level::kInfo, "x", {});
  alarm(0);
  dup2(error_stream, STDERR_FILENO);
  for (const int fd : {ends[0], ends[1], error_stream}) close(fd);
}

TEST(Log, FileThatCannotBeOpened) {
  Log log;
  EXPECT_EQ(log.file_open("/nonexistent/directory/log"), ENOENT);
}

}  // namespace
}  // namespace sluice::daemon
