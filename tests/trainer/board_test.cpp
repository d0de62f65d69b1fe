// The blackboard: what a rank writes through its inherited descriptor, the launcher reads.
#include "trainer/train/board.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sluice::train {
namespace {

TEST(Board, IsSharedWithAForkedRank) {
  BoardMap launcher;
  EXPECT_EQ(launcher.line(1).accuracy, -1);
  const pid_t child = fork();
  if (child == 0) {
    BoardMap rank(dup(launcher.fd()));
    rank.line(1).steps = 42;
    rank.line(1).loss = 0.5;
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(launcher.line(1).steps, 42u);
  EXPECT_EQ(launcher.line(1).loss, 0.5);
  EXPECT_EQ(launcher.line(0).steps, 0u);
}

TEST(Board, ABadDescriptorIsAFailure) { EXPECT_THROW(BoardMap(dup(-1)), Failure); }

}  // namespace
}  // namespace sluice::train
