// Processes that have a page mapped.
#include "broker/daemon/keepers.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>

#include "broker/devices/fd.h"

namespace sluice::daemon {
namespace {

class Keepers : public testing::Test {
 protected:
  void SetUp() override {
    fd_ = devices::Fd(memfd_create("keepers-test", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(fd_.get(), 4096), 0);
    page_ = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd_.get(), 0);
    struct stat status {};
    ASSERT_EQ(fstat(fd_.get(), &status), 0);
    name_ = {status.st_dev, status.st_ino};
  }
  void TearDown() override { munmap(page_, 4096); }

  devices::Fd fd_;
  void* page_ = nullptr;
  PageName name_;
};

bool has(const std::vector<pid_t>& pids, pid_t pid) {
  return std::ranges::find(pids, pid) != pids.end();
}

[[noreturn]] void park() {
  for (;;) pause();
}

int parked(void*) { park(); }

TEST(MapsLine, IsOfThePageByDeviceAndInode) {
  const PageName page{makedev(0, 1), 4711};
  EXPECT_TRUE(maps_line_names("7f00-7f01 r--s 00000000 00:01 4711   /memfd:x (deleted)", page));
  EXPECT_FALSE(maps_line_names("7f00-7f01 r--s 00000000 00:02 4711   /memfd:x (deleted)", page));
  EXPECT_FALSE(maps_line_names("7f00-7f01 r--s 00000000 00:01 47110  /memfd:x (deleted)", page));
  EXPECT_FALSE(maps_line_names("7f00-7f01 rw-p 00000000 00:00 0      [heap]", page));
  EXPECT_FALSE(maps_line_names("", page));
  EXPECT_FALSE(maps_line_names("7f00-7f01 rw-p 00000000 00:00 0      [heap]", PageName{}))
      << "the name of no page";
}

TEST_F(Keepers, AreNamedAndEnded) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "what shares memory with this process shares the sanitizer's state of a thread";
#endif
  std::array<char, 65536> stack{};
  const pid_t sharer = clone(parked, stack.data() + stack.size(), CLONE_VM | SIGCHLD, nullptr);
  const pid_t heir = fork();
  if (heir == 0) park();
  const pid_t other = fork();
  if (other == 0) {
    munmap(page_, 4096);
    park();
  }
  const auto ready = [&] {
    const auto found = keepers_find(getuid(), name_, KeeperFate::kNamed);
    return has(found, sharer) && has(found, heir) && !has(found, other);
  };
  for (int i = 0; i < 200 && !ready(); ++i) usleep(10'000);
  EXPECT_TRUE(ready());
  EXPECT_TRUE(keepers_find(getuid() + 1, name_, KeeperFate::kEnded).empty())
      << "of that user alone";

  munmap(page_, 4096);  // of this process and of the sharer
  const auto ended = keepers_find(getuid(), name_, KeeperFate::kEnded);
  EXPECT_EQ(ended, std::vector<pid_t>{heir});
  int status = 0;
  EXPECT_EQ(waitpid(heir, &status, 0), heir);
  EXPECT_TRUE(WIFSIGNALED(status));
  for (const pid_t pid : {sharer, other}) {
    EXPECT_EQ(waitpid(pid, &status, WNOHANG), 0);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
  }
  page_ = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd_.get(), 0);
}

TEST_F(Keepers, SoMuchIsReadForOneLook) {
  const pid_t heir = fork();
  if (heir == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    park();
  }
  EXPECT_TRUE(has(keepers_find(getuid(), name_, KeeperFate::kNamed), heir));
  EXPECT_TRUE(keepers_find(getuid(), name_, KeeperFate::kNamed, 1).empty());
  kill(heir, SIGKILL);
  waitpid(heir, nullptr, 0);
}

/// Work that the test does piece by piece.
struct ByHand : SlowWork {
  std::deque<Work> held;
  using SlowWork::run;
  void run(Work work, std::weak_ptr<const void>) override { held.push_back(std::move(work)); }
  void do_one() {
    const Work work = std::move(held.front());
    held.pop_front();
    if (const Loop::Handler done = work()) done();
  }
};

TEST(KeeperLooks, OneAtATimeAndUsersTakeTurns) {
  ByHand slow;
  KeeperLooks looks(slow);
  std::string order;
  const auto want = [&](uid_t uid, ino_t inode, const char* name) {
    looks.want(uid, {makedev(0, 1), inode}, KeeperFate::kNamed,
               [&order, name](const std::vector<pid_t>&) { order += name; });
  };
  constexpr uid_t kMany = 4'000'000'001;
  constexpr uid_t kOther = 4'000'000'002;
  want(kMany, 1, "a ");
  want(kMany, 2, "b ");
  want(kMany, 3, "c ");
  want(kOther, 4, "other ");
  want(kMany, 3, "c-again ");
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(slow.held.size(), 1u) << "the other threads are for others";
    slow.do_one();
  }
  EXPECT_EQ(order, "a other b c c-again ") << "looks for one page are one";
  EXPECT_TRUE(slow.held.empty());
}

}  // namespace
}  // namespace sluice::daemon
