// Lines of the log, as they land in the file.
#include "broker/daemon/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Log, FileThatCannotBeOpened) {
  Log log;
  EXPECT_EQ(log.file_open("/nonexistent/directory/log"), ENOENT);
}

}  // namespace
}  // namespace sluice::daemon
