#include "trainer/lab/process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "trainer/lab/runner.h"

namespace sluice::lab {
namespace {

TEST(Child, ReportsExitStatusAndSignals) {
  std::string error;
  auto ok = Child::start({{"/bin/sh", "-c", "exit 3"}, {}, {}, ""}, &error);
  ASSERT_TRUE(ok) << error;
  EXPECT_EQ(ok->wait(5000), 3);
  auto killed = Child::start({{"/bin/sh", "-c", "kill -9 $$"}, {}, {}, ""}, &error);
  ASSERT_TRUE(killed) << error;
  EXPECT_EQ(killed->wait(5000), 137);
}

TEST(Child, SaysWhatCannotBeStarted) {
  std::string error;
  EXPECT_FALSE(Child::start({{"/nonexistent/program"}, {}, {}, ""}, &error));
  EXPECT_NE(error.find("/nonexistent/program: No such file"), std::string::npos) << error;
}

TEST(Child, EndKillsWhatIgnoresTerm) {
  std::string error;
  auto stubborn = Child::start(
      {{"/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"}, {}, {}, ""}, &error);
  ASSERT_TRUE(stubborn) << error;
  sleep_ms(100);
  EXPECT_FALSE(stubborn->end(200));
  EXPECT_EQ(stubborn->poll(), 137);
}

TEST(Child, EndTakesTheWholeGroup) {
  std::string error;
  const std::string file = testing::TempDir() + "/grandchild-" + std::to_string(::getpid());
  auto parent = Child::start(
      {{"/bin/sh", "-c", "sleep 600 & echo $! > " + file + "; wait"}, {}, {}, ""}, &error);
  ASSERT_TRUE(parent) << error;
  pid_t grandchild = 0;
  for (int i = 0; i < 200 && grandchild == 0; ++i) {
    sleep_ms(10);
    std::ifstream(file) >> grandchild;
  }
  ASSERT_GT(grandchild, 0);
  parent->end(1000);
  bool gone = false;
  for (int i = 0; i < 200 && !gone; ++i) {
    std::ifstream stat("/proc/" + std::to_string(grandchild) + "/stat");
    std::string pid, name, state;
    gone = !(stat >> pid >> name >> state) || state == "Z";
    sleep_ms(10);
  }
  EXPECT_TRUE(gone);
}

TEST(Child, EnvironmentIsSetAndUnset) {
  setenv("SLUICE_LAB_TEST_GONE", "1", 1);
  std::string error;
  const auto text = command_output({{"/bin/sh", "-c", "echo $A-$SLUICE_LAB_TEST_GONE"},
                                    {{"A", "b"}},
                                    {"SLUICE_LAB_TEST_GONE"},
                                    ""},
                                   5000, &error);
  EXPECT_EQ(text, "b-\n") << error;
}

TEST(CommandOutput, FailsWithTheStatusAndTheText) {
  std::string error;
  EXPECT_FALSE(
      command_output({{"/bin/sh", "-c", "echo broken; exit 9"}, {}, {}, ""}, 5000, &error));
  EXPECT_NE(error.find("status 9"), std::string::npos) << error;
  EXPECT_NE(error.find("broken"), std::string::npos) << error;
}

// The broker has its socket in a directory of its own, which goes with it.
TEST(Scene, WhoseBrokerDoesNotStartLeavesNoDirectory) {
  namespace fs = std::filesystem;
  const fs::path place = testing::TempDir() + "/scene-" + std::to_string(::getpid());
  fs::create_directories(place);
  std::ofstream(place / "sluiced") << "#!/bin/sh\necho \"$2\" >" << place.string() << "/socket\n";
  fs::permissions(place / "sluiced", fs::perms::owner_all);
  Machine machine;
  machine.software = false;
  machine.paths.bin = place.string();
  const bool stop = false;
  const ScenePlan plan{"quota", "", Control::kSluice, {}};
  const SceneResult scene =
      scene_run(machine, Settings{}, plan, (place / "raw").string(), stop, [](auto&&...) {});
  EXPECT_NE(scene.problem.find("sluiced did not come up"), std::string::npos) << scene.problem;
  std::string socket;
  std::getline(std::ifstream(place / "socket") >> std::ws, socket);
  ASSERT_FALSE(socket.empty());
  EXPECT_FALSE(fs::exists(fs::path(socket).parent_path())) << socket;
  fs::remove_all(place);
}

}  // namespace
}  // namespace sluice::lab
