// sluiced's command line.
#include "broker/daemon/options.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

namespace sluice::daemon {
namespace {

using testing::HasSubstr;

OptionsOutcome parse(std::vector<std::string> words, Options* out) {
  words.insert(words.begin(), "sluiced");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return options_parse(static_cast<int>(words.size()), argv.data(), out);
}

TEST(Options, All) {
  Options options;
  const int fd = dup(1);
  ASSERT_EQ(parse({"--config", "c.toml", "--socket=/x/s", "--private", "--idle-exit", "5", "--log",
                   "l", "--realtime", "--ready-fd", std::to_string(fd)},
                  &options),
            OptionsOutcome::kRun);
  EXPECT_EQ(options.config_path, "c.toml");
  EXPECT_EQ(options.socket_path, "/x/s");
  EXPECT_TRUE(options.is_private);
  EXPECT_TRUE(options.realtime);
  EXPECT_EQ(options.idle_exit_ns, 5'000'000'000);
  EXPECT_EQ(options.ready_fd, fd);
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  close(fd);
}

TEST(Options, State) {
  Options options;
  EXPECT_EQ(parse({"--state", "/var/lib/x"}, &options), OptionsOutcome::kRun);
  EXPECT_EQ(options.state_path, "/var/lib/x");
}

TEST(Options, IdleExitDefaults) {
  Options system;
  EXPECT_EQ(parse({}, &system), OptionsOutcome::kRun);
  EXPECT_EQ(system.idle_exit_ns, 0);
  Options own;
  EXPECT_EQ(parse({"--private"}, &own), OptionsOutcome::kRun);
  EXPECT_EQ(own.idle_exit_ns, 1'000'000'000);
  Options parsed;
  EXPECT_EQ(parse({"--idle-exit", "250ms"}, &parsed), OptionsOutcome::kRun);
  EXPECT_EQ(parsed.idle_exit_ns, 250'000'000);
}

TEST(Options, Mistakes) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"--nonsense"},          {"--config"},         {"extra"},
      {"--idle-exit", "soon"}, {"--idle-exit", "0"}, {"--ready-fd", "x"},
      {"--ready-fd", "9999"},  {"--state", "x"},     {"--private", "--state", "/x"}};
  for (const auto& words : mistakes) {
    Options options;
    testing::internal::CaptureStderr();
    EXPECT_EQ(parse(words, &options), OptionsOutcome::kWrong) << words.front();
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("sluice: ")) << words.front();
  }
}

TEST(Options, HelpAndVersion) {
  Options options;
  testing::internal::CaptureStdout();
  EXPECT_EQ(parse({"--help"}, &options), OptionsOutcome::kDone);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("--idle-exit"));
  testing::internal::CaptureStdout();
  EXPECT_EQ(parse({"--version"}, &options), OptionsOutcome::kDone);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("sluiced 0."));
}

}  // namespace
}  // namespace sluice::daemon
