// sluice-debug as a process: its three endings, exit codes and log.
#include "tests/trainer/device_fixture.h"
#include "tests/trainer/process.h"

namespace sluice::tests {
namespace {

class DebugProgramTest : public testing::Test {
 protected:
  void SetUp() override { SLUICE_NEEDS_DRIVER(); }
  std::vector<std::string> command(const std::string& outcome,
                                   const std::string& seed = "1") const {
    return {"sluice-debug", "--outcome", outcome, "--kernels", "5", "--gap-ms", "1",
            "--seed",       seed,        "--log", log_};
  }
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    for (const auto& line : log_lines(log_)) out.push_back(line["event"]);
    return out;
  }
  ScratchDirectory scratch_;
  std::string log_ = scratch_.file("log");
  const std::vector<std::string> whole_ = {"start", "first_result", "end"};
};

TEST_F(DebugProgramTest, EndsWell) {
  Child child(command("ok"), scratch_);
  EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  EXPECT_EQ(events(), whole_);
  EXPECT_EQ(log_lines(log_).back()["status"], "ok");
  EXPECT_EQ(child.out().find("first result: "), 0u) << child.out();
}

TEST_F(DebugProgramTest, TheFirstResultIsAFunctionOfTheSeed) {
  std::vector<std::string> outs;
  for (const char* seed : {"1", "1", "2"}) {
    Child child(command("ok", seed), scratch_);
    EXPECT_EQ(child.wait(kPatience), 0);
    outs.push_back(child.out());
  }
  EXPECT_EQ(outs[0], outs[1]);
  EXPECT_NE(outs[0], outs[2]);
}

TEST_F(DebugProgramTest, AWildPointerEndsItWithAnError) {
  Child child(command("fail"), scratch_);
  EXPECT_EQ(child.wait(kPatience), 1);
  EXPECT_EQ(events(), whole_);
  EXPECT_EQ(log_lines(log_).back()["status"], "failed");
  EXPECT_NE(child.err().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << child.err();
}

TEST_F(DebugProgramTest, TheLoopGoesOnUntilStopped) {
  Child child(command("loop"), scratch_);
  ASSERT_TRUE(log_await(log_, "first_result", 1, kPatience)) << child.err();
  EXPECT_EQ(child.wait(0.3), -1) << "it ended by itself";
  kill(child.pid(), SIGTERM);
  EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  EXPECT_EQ(log_lines(log_).back()["status"], "stopped");
}

TEST_F(DebugProgramTest, TheLoopGoesOnUntilKilled) {
  Child child(command("loop"), scratch_);
  ASSERT_TRUE(log_await(log_, "first_result", 1, kPatience)) << child.err();
  kill(child.pid(), SIGKILL);
  EXPECT_EQ(child.wait(kPatience), 128 + SIGKILL);
  EXPECT_EQ(events(), (std::vector<std::string>{"start", "first_result"}));
}

TEST_F(DebugProgramTest, RefusesNonsense) {
  for (const auto& bad :
       {std::vector<std::string>{"--outcome", "maybe"}, std::vector<std::string>{"--kernels", "0"},
        std::vector<std::string>{"--elements", "0"}}) {
    std::vector<std::string> words = {"sluice-debug"};
    words.insert(words.end(), bad.begin(), bad.end());
    Child child(words, scratch_);
    EXPECT_EQ(child.wait(kPatience), 2);
    EXPECT_EQ(child.err().find("sluice: sluice-debug: "), 0u) << child.err();
  }
}

}  // namespace
}  // namespace sluice::tests
