// Lines of the log, as they land in the file.
#include "broker/daemon/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
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

/// A log whose clock the test turns.
class LimitedLogTest : public LogTest {
 protected:
  struct Clocked : Log {
    std::int64_t now_ns = 1'000'000'000;
    std::int64_t clock_ns() const override { return now_ns; }
  };
  LimitedLogTest() { EXPECT_EQ(clocked_.file_open(path_), 0); }
  std::int64_t count(const std::string& what) {
    const std::string written = text();
    std::int64_t found = 0;
    for (std::size_t at = 0; (at = written.find(what, at)) != written.npos; ++at) ++found;
    return found;
  }
  void flood(uid_t uid, int lines) {
    for (int i = 0; i < lines; ++i) clocked_.line_of(uid, Level::kInfo, "refused", {{"n", i}});
  }
  static constexpr std::int64_t kSecond_ns = 1'000'000'000;
  Clocked clocked_;
};

TEST_F(LimitedLogTest, AFloodIsAFewLinesASecondAndACount) {
  flood(1000, 100'000);
  EXPECT_EQ(count("event=refused"), Log::kBurst);
  for (int second = 0; second < 10; ++second) {
    clocked_.now_ns += kSecond_ns;
    flood(1000, 10'000);
  }
  EXPECT_EQ(count("event=refused"), Log::kBurst + 10 * Log::kPerSecond);
  EXPECT_THAT(text(), HasSubstr("event=lines_left_out of=refused uid=1000 count=99950\n"));
  EXPECT_THAT(text(), HasSubstr("count=" + std::to_string(10'000 - Log::kPerSecond) + "\n"));
}

TEST_F(LimitedLogTest, OneUserAndOneEventTakeNothingFromAnother) {
  flood(1000, 1000);
  clocked_.line_of(1001, Level::kInfo, "refused", {{"n", "other"}});
  clocked_.line_of(1000, Level::kInfo, "admitted", {});
  EXPECT_EQ(count("n=other"), 1);
  EXPECT_EQ(count("event=admitted"), 1);
}

// Names of a kilobyte and events of every kind: the log grows by no more than the user's allowance.
TEST_F(LimitedLogTest, AUsersLinesAreFewBytesASecondWhateverItDoes) {
  constexpr const char* kEvents[] = {"admitted", "registered", "process_ended", "ended",
                                     "refused",  "queued",     "released",      "send_failed"};
  const std::string name(1000, '"');
  constexpr int kSeconds = 10;
  for (int i = 0; i < kSeconds * 100; ++i) {
    clocked_.now_ns += kSecond_ns / 100;
    for (const char* event : kEvents)
      clocked_.line_of(1000, Level::kInfo, event, {{"name", name}, {"command", name}});
    if (i % 100 == 0) clocked_.tend();
  }
  constexpr std::size_t kLine = 2048;
  EXPECT_LE(text().size(), Log::kUserBytesBurst + kSeconds * Log::kUserBytesPerSecond + kLine);
  EXPECT_GE(text().size(), Log::kUserBytesBurst);
  EXPECT_THAT(text(), HasSubstr("\\\"...\" command="));
  clocked_.line_of(1001, Level::kInfo, "refused", {{"n", "other"}});
  EXPECT_THAT(text(), HasSubstr("n=other")) << "another user has its own";
}

TEST_F(LimitedLogTest, TheCountIsToldThoughNoLineFollows) {
  flood(1000, 1000);
  clocked_.tend();
  EXPECT_EQ(count("lines_left_out"), 0) << "that would be one line more";
  clocked_.now_ns += kSecond_ns;
  clocked_.tend();
  clocked_.tend();
  EXPECT_EQ(count("lines_left_out"), 1);
  EXPECT_EQ(count("count=" + std::to_string(1000 - Log::kBurst)), 1);
}

TEST_F(LimitedLogTest, ManyUsersTogetherHaveALimitToo) {
  for (uid_t uid = 1; uid <= 5000; ++uid) flood(uid, 10);
  EXPECT_LE(count("event=refused"), Log::kAllBurst);
  std::int64_t before = count("\n");
  clocked_.now_ns += kSecond_ns;
  clocked_.tend();
  for (uid_t uid = 1; uid <= 5000; ++uid) flood(uid, 10);
  EXPECT_LE(count("\n") - before, 2 * Log::kAllPerSecond) << "each with its count at most";
}

TEST_F(LimitedLogTest, ClientsCannotSilenceTheBroker) {
  for (uid_t uid = 1; uid <= 900; ++uid) flood(uid, 10);
  ASSERT_EQ(count("event=refused"), Log::kAllBurst) << "the allowance of all users is spent";
  clocked_.message_of(2000, Level::kError, "job_lost", "its GPU is gone", {{"tenant", 7}});
  EXPECT_EQ(count("event=job_lost"), 1);
  for (int i = 0; i < 1000; ++i)
    clocked_.message_of(2000, Level::kWarning, "runaway", "it does not drain", {{"tenant", 7}});
  EXPECT_EQ(count("event=runaway"), Log::kBurst) << "each user and event keeps its own limit";
  clocked_.now_ns += kSecond_ns;
  flood(3000, 50);
  flood(3001, 50);
  const std::int64_t told = count("lines_left_out");
  clocked_.tend();
  EXPECT_GE(count("lines_left_out"), told) << "tending takes nothing that is not there";
}

TEST_F(LimitedLogTest, DebugLeavesNothingOut) {
  clocked_.level_set("debug");
  for (int i = 0; i < 1000; ++i) clocked_.line_of(1, Level::kDebug, "x", {});
  EXPECT_EQ(count("event=x"), 1000);
}

TEST_F(LogTest, ALineIsNoLongerThanAPipeTakesAtOnce) {
  log_.line(Level::kInfo, "x", {{"long", std::string(100'000, 'a')}});
  EXPECT_EQ(text().size(), 4096u);
  EXPECT_THAT(text(), EndsWith("a\n"));
}

TEST(Log, ASocketThatNobodyReadsHoldsNobodyUp) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const int error_stream = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  Log log;
  alarm(20);  // the end of a log that waits
  for (int i = 0; i < 2000; ++i) log.line(Level::kInfo, "x", {{"long", std::string(4000, 'a')}});
  alarm(0);
  dup2(error_stream, STDERR_FILENO);
  for (const int fd : {ends[0], ends[1], error_stream}) close(fd);
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
