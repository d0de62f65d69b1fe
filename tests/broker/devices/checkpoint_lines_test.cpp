// What the broker and the helper say to each other: there and back, and nothing else.
#include "broker/devices/checkpoint_lines.h"

#include <gtest/gtest.h>

namespace sluice::devices {
namespace {

using Kind = CheckpointLine::Kind;

CheckpointLine back(const CheckpointLine& line) {
  CheckpointLine out;
  EXPECT_TRUE(checkpoint_line_parse(checkpoint_line(line), &out)) << checkpoint_line(line);
  return out;
}

TEST(CheckpointLines, RoundTrip) {
  const CheckpointLine call = back({.kind = Kind::kCall, .pid = 7, .step = CheckpointStep::kLock});
  EXPECT_EQ(call.kind, Kind::kCall);
  EXPECT_EQ(call.pid, 7);
  EXPECT_EQ(call.step, CheckpointStep::kLock);
  const CheckpointLine state =
      back({.kind = Kind::kState, .pid = 8, .state = CheckpointState::kGone});
  EXPECT_EQ(state.state, CheckpointState::kGone);
  const CheckpointLine fault =
      back({.kind = Kind::kFault, .step = CheckpointStep::kStart, .code = kCheckpointNoDriver});
  EXPECT_EQ(fault.pid, 0);
  EXPECT_EQ(fault.code, kCheckpointNoDriver);
  EXPECT_EQ(back({.kind = Kind::kBytes, .bytes = UINT64_MAX}).bytes, UINT64_MAX);
  EXPECT_EQ(back({.kind = Kind::kEnd}).kind, Kind::kEnd);
}

TEST(CheckpointLines, RefusesEverythingElse) {
  for (const char* text :
       {"", "end ", "end now", "bytes", "bytes -1", "bytes 1x", "call 1", "call x lock",
        "call 1 lock now", "call 1 jump", "call -1 lock", "state 1 asleep", "state 1 lock",
        "fault 1 lock", "fault 1 lock no code", "fault 1 lock lower", "fault 1 lock ",
        "fault 99999999999 lock X", "CALL 1 lock"}) {
    CheckpointLine line;
    EXPECT_FALSE(checkpoint_line_parse(text, &line)) << text;
  }
}

TEST(CheckpointLines, ArgumentsRoundTrip) {
  CheckpointArguments arguments{CheckpointOrder::kReturn, 250, {}, {{12, 345}, {13, 0}}};
  arguments.pairs.resize(2);
  arguments.pairs[0].to.bytes[15] = 9;
  const std::vector<std::string> words = checkpoint_arguments(arguments);
  CheckpointArguments out;
  ASSERT_TRUE(checkpoint_arguments_parse({words.begin(), words.end()}, &out));
  EXPECT_EQ(out.order, CheckpointOrder::kReturn);
  EXPECT_EQ(out.lock_ms, 250);
  EXPECT_EQ(out.targets, arguments.targets);
  ASSERT_EQ(out.pairs.size(), 2u);
  EXPECT_TRUE(out.pairs[0].to == arguments.pairs[0].to);
}

TEST(CheckpointLines, RefusesOtherArguments) {
  const std::string gpu = "GPU-00000000-0000-4000-8000-000000000001";
  const std::vector<std::vector<std::string_view>> all = {
      {},
      {"take"},
      {"steal", "1"},
      {"take", "-1"},
      {"take", "1", "12"},
      {"take", "1", "0:1"},
      {"take", "1", "-12:1"},
      {"take", "1", "12:1", gpu},
      {"take", "1", "12:"},
      {"take", "1", ":1"},
      std::vector<std::string_view>(3 + protocol::kTenantProcessesMax, "1:1")};
  CheckpointArguments out;
  for (const auto& words : all) EXPECT_FALSE(checkpoint_arguments_parse(words, &out));
  const std::string pair = gpu + "=" + gpu;
  EXPECT_FALSE(checkpoint_arguments_parse({"return", "1", "12:1", pair}, &out)) << "pairs first";
  EXPECT_TRUE(checkpoint_arguments_parse({"return", "1", pair, "12:1"}, &out));
  std::vector<std::string_view> many(2 + protocol::kTenantGpusMax + 1, pair);
  many[0] = "return";
  many[1] = "1";
  EXPECT_FALSE(checkpoint_arguments_parse(many, &out)) << "more GPUs than a tenant has";
}

}  // namespace
}  // namespace sluice::devices
