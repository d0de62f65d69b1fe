// Command lines of `sluice`; what people see for mistakes is tested on the program itself.
#include "broker/cli/options.h"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

TEST(RunOptions, Defaults) {
  RunOptions run;
  ASSERT_EQ(options_parse({"prog"}, &run), Parsed::kGo);
  EXPECT_FALSE(run.tenant_class) << "the profile has the choice";
  EXPECT_EQ(run.memory_max_bytes, 0u);
  EXPECT_EQ(run.gpu_count, 1u);
  EXPECT_EQ(run.soft, 0u);
  EXPECT_EQ(run.command, std::vector<std::string>{"prog"});
}

TEST(RunOptions, All) {
  RunOptions run;
  ASSERT_EQ(options_parse({"--class",
                           "debug",
                           "--memory=2GiB",
                           "--memory-min",
                           "1GiB",
                           "--sm",
                           "25",
                           "--sm-mode",
                           "equal",
                           "--gpu",
                           "0",
                           "--gpu=GPU-ab",
                           "--name",
                           "n",
                           "--profile",
                           "p",
                           "--timeout",
                           "10m",
                           "--soft",
                           "2",
                           "--socket",
                           "/s",
                           "--dry-run",
                           "--swap",
                           "--",
                           "python3",
                           "x",
                           "--memory",
                           "3",
                           "--",
                           "y"},
                          &run),
            Parsed::kGo);
  EXPECT_EQ(run.tenant_class, protocol::TenantClass::kDebug);
  EXPECT_EQ(run.memory_max_bytes, 2ull << 30);
  EXPECT_EQ(run.memory_min_bytes, 1ull << 30);
  EXPECT_EQ(run.sm_percent, 25u);
  EXPECT_EQ(run.sm_mode, protocol::SmMode::kEqual);
  EXPECT_EQ(run.gpus, (std::vector<std::string>{"0", "GPU-ab"}));
  EXPECT_EQ(run.gpu_count, 2u);
  EXPECT_EQ(run.timeout_ns, 600'000'000'000);
  EXPECT_EQ(run.soft, 2u);
  EXPECT_TRUE(run.dry_run);
  EXPECT_TRUE(run.swap);
  EXPECT_EQ(run.command, (std::vector<std::string>{"python3", "x", "--memory", "3", "--", "y"}));
}

TEST(RunOptions, CommandBeginsAtTheFirstWord) {
  RunOptions run;
  ASSERT_EQ(options_parse({"--sm", "5", "prog", "--sm", "x", "-h"}, &run), Parsed::kGo);
  EXPECT_EQ(run.sm_percent, 5u);
  EXPECT_EQ(run.command, (std::vector<std::string>{"prog", "--sm", "x", "-h"}));
}

TEST(RunOptions, AShareIsWrittenAsInTheVariableAndThePolicy) {
  RunOptions run;
  for (const char* text : {"50", "50%"}) {
    run.sm_percent = 0;
    ASSERT_EQ(options_parse({"--sm", text, "prog"}, &run), Parsed::kGo) << text;
    EXPECT_EQ(run.sm_percent, 50u) << text;
  }
  for (const char* text : {"", "%", "0%", "101%", "50%%", "50 %", "-5", "4294967297"}) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(options_parse({std::string("--sm=") + text, "prog"}, &run), Parsed::kWrong) << text;
    const std::string said = testing::internal::GetCapturedStderr();
    if (*text != '\0') {
      EXPECT_EQ(said, std::string("sluice: --sm takes a whole percentage from 1 to 100, such as 25 "
                                  "or 25%, not '") +
                          text + "'; see sluice run --help\n");
    }
  }
}

TEST(RunOptions, AShareIsGuaranteedOrAWeight) {
  RunOptions run;
  ASSERT_EQ(options_parse({"--weight", "30", "prog"}, &run), Parsed::kGo);
  EXPECT_EQ(run.sm_percent, 30u);
  EXPECT_TRUE(run.weight);
  run = {};
  ASSERT_EQ(options_parse({"--sm", "30", "prog"}, &run), Parsed::kGo);
  EXPECT_FALSE(run.weight);
  testing::internal::CaptureStderr();
  EXPECT_EQ(options_parse({"--sm", "30", "--weight", "20", "prog"}, &run), Parsed::kWrong);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: --sm asks for a guarantee and --weight for none; leave one out; see sluice "
            "run --help\n");
}

TEST(RunOptions, AnOptionIsGivenOnceAndWithAValue) {
  const std::pair<std::vector<std::string>, const char*> rows[] = {
      {{"--memory", "1G", "--memory=2G", "prog"}, "--memory is given 2 times; give it once"},
      {{"--name", "a", "--name", "b", "--name", "c", "prog"},
       "--name is given 3 times; give it once"},
      {{"--memory"}, "--memory takes a value"},
      {{"--class"}, "--class takes a value"},
  };
  for (const auto& [arguments, text] : rows) {
    RunOptions run;
    testing::internal::CaptureStderr();
    EXPECT_EQ(options_parse(arguments, &run), Parsed::kWrong) << text;
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              std::string("sluice: ") + text + "; see sluice run --help\n");
  }
}

TEST(RunOptions, WhatMeansNothingToAnExclusiveJobIsRefused) {
  const std::vector<std::string> rows[] = {{"--memory", "1G"},     {"--memory-min", "1G"},
                                           {"--weight", "5"},      {"--sm", "5"},
                                           {"--sm-mode", "fixed"}, {"--swap"}};
  for (std::vector<std::string> arguments : rows) {
    const std::string option = arguments.front();
    arguments.insert(arguments.end(), {"--class", "exclusive", "prog"});
    RunOptions run;
    testing::internal::CaptureStderr();
    EXPECT_EQ(options_parse(arguments, &run), Parsed::kWrong) << option;
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "sluice: an exclusive job owns whole GPUs, so " + option +
                  " means nothing to it; leave it out; see sluice run --help\n");
  }
}

TEST(RunOptions, ASizeOfNothingIsToldSo) {
  for (const char* text : {"0", "0M", "0.0", "00G"}) {
    RunOptions run;
    testing::internal::CaptureStderr();
    EXPECT_EQ(options_parse({"--memory", text, "prog"}, &run), Parsed::kWrong);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              std::string("sluice: --memory takes a size with its unit, such as 8G or 512M, "
                          "not '") +
                  text + "'; it has to be more than 0; see sluice run --help\n");
  }
}

CommandOptions command(protocol::CommandVerb verb) {
  CommandOptions out;
  out.verb = verb;
  return out;
}

TEST(CommandOptions, EachTakesItsOwn) {
  CommandOptions move = command(protocol::CommandVerb::kMove);
  ASSERT_EQ(options_parse({"train", "--gpu", "1", "--socket", "/s"}, &move), Parsed::kGo);
  EXPECT_EQ(move.tenant, "train");
  EXPECT_EQ(move.gpu, "1");
  EXPECT_EQ(move.socket, "/s");
  CommandOptions drain = command(protocol::CommandVerb::kDrain);
  ASSERT_EQ(options_parse({"--gpu", "GPU-ab"}, &drain), Parsed::kGo);
  EXPECT_EQ(drain.gpu, "GPU-ab");
}

TEST(CommandOptions, Mistakes) {
  using protocol::CommandVerb;
  struct Row {
    CommandVerb verb;
    std::vector<std::string> arguments;
    const char* text;
  };
  for (const Row& row : {
           Row{CommandVerb::kSuspend, {}, "suspend takes a job, by its number or name"},
           Row{CommandVerb::kResume, {"a", "b"}, "resume is given a word too many, 'b'; see"},
           Row{CommandVerb::kMove,
               {"a", "7"},
               "move is given a word too many, '7'; a GPU is named with --gpu 7; see"},
           Row{CommandVerb::kResume, {"a", "--gpu", "1"}, "resume knows no option '--gpu'"},
           Row{CommandVerb::kMove, {"a"}, "move takes --gpu with an index or UUID"},
           Row{CommandVerb::kMove, {"--gpu", "1"}, "move takes a job"},
           Row{CommandVerb::kDrain, {}, "drain takes --gpu"},
           Row{CommandVerb::kUndrain,
               {"a", "--gpu", "0"},
               "undrain is given a word too many, 'a'; a GPU is named with --gpu a; see"},
       }) {
    CommandOptions options = command(row.verb);
    testing::internal::CaptureStderr();
    EXPECT_EQ(options_parse(row.arguments, &options), Parsed::kWrong);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(row.text), std::string::npos) << said;
  }
}

TEST(CommandOptions, UntilWhenAndWhy) {
  setenv("TZ", "UTC", 1);
  tzset();
  constexpr std::int64_t kNow = 1'795'737'600;  // 2026-11-27 00:00
  EXPECT_EQ(until_parse("2h", kNow), kNow + 7200);
  EXPECT_EQ(until_parse("18:00", kNow), kNow + 18 * 3600);
  EXPECT_EQ(until_parse("18:00", kNow + 20 * 3600), kNow + (24 + 18) * 3600) << "tomorrow's";
  EXPECT_EQ(until_parse("2026-11-28 08:00", kNow), kNow + 32 * 3600);
  EXPECT_EQ(until_parse("2026-11-28T08:00", kNow), kNow + 32 * 3600);
  for (const char* text : {"", "soon", "25:00", "18", "2026-11-26 08:00", "18:00 ", "1ms"})
    EXPECT_FALSE(until_parse(text, kNow)) << text;
  CommandOptions drain = command(protocol::CommandVerb::kDrain);
  ASSERT_EQ(options_parse({"--gpu", "0", "--reason", "new fans", "--until", "2h"}, &drain),
            Parsed::kGo);
  EXPECT_EQ(drain.reason, "new fans");
  EXPECT_GT(drain.until_s, 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(options_parse({"--gpu", "0", "--until", "soon"}, &drain), Parsed::kWrong);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("takes a time to come such as 18:00"),
            std::string::npos);
  CommandOptions undrain = command(protocol::CommandVerb::kUndrain);
  testing::internal::CaptureStderr();
  EXPECT_EQ(options_parse({"--gpu", "0", "--reason", "x"}, &undrain), Parsed::kWrong);
  testing::internal::GetCapturedStderr();
}

TEST(StatusOptions, JsonAndMistakes) {
  StatusOptions status;
  ASSERT_EQ(options_parse({"--json"}, &status), Parsed::kGo);
  EXPECT_TRUE(status.json);
  testing::internal::CaptureStderr();
  EXPECT_EQ(options_parse({"--jsno"}, &status), Parsed::kWrong);
  EXPECT_EQ(
      testing::internal::GetCapturedStderr(),
      "sluice: status knows no option '--jsno'; did you mean --json? see sluice status --help\n");
}

}  // namespace
}  // namespace sluice::cli
