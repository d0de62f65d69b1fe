// Who is at the other end.
#include "broker/daemon/identity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <sstream>

namespace sluice::daemon {
namespace {

TEST(Peer, IsTheKernelsWord) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const devices::Fd here(pair[0]);
  const devices::Fd there(pair[1]);
  Peer peer;
  ASSERT_EQ(peer_identify(here.get(), &peer), 0);
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.uid, getuid());
  ASSERT_FALSE(peer.groups.empty());
  EXPECT_EQ(peer.groups.front(), getgid());
  ASSERT_TRUE(peer.pidfd);
  EXPECT_FALSE(pidfd_ended(peer.pidfd.get()));
}

TEST(Process, IsNamedByItsNumberAndItsStart) {
  const std::uint64_t start = process_start_ticks(getpid());
  ASSERT_NE(start, 0u);
  devices::Fd fd;
  EXPECT_TRUE(process_open(getpid(), start, &fd));
  ASSERT_TRUE(fd);
  EXPECT_FALSE(pidfd_ended(fd.get()));
  fd.reset();
  EXPECT_FALSE(process_open(getpid(), start + 1, &fd)) << "the number has passed to another";
  EXPECT_FALSE(process_open(getpid(), 0, &fd)) << "nothing is known of its start";
  EXPECT_FALSE(process_open(0, start, &fd));
  EXPECT_FALSE(fd);
}

TEST(Process, ADeadOneIsNotOpenedThoughItsNumberIsTaken) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  devices::Fd fd;
  EXPECT_FALSE(process_open(child, process_start_ticks(child), &fd)) << "a zombie has ended";
  waitpid(child, nullptr, 0);
  EXPECT_EQ(process_start_ticks(child), 0u);
}

TEST(Pidfd, TellsTheEndAndKills) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const devices::Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(pidfd);
  EXPECT_FALSE(pidfd_ended(pidfd.get()));
  EXPECT_EQ(pidfd_kill(pidfd.get()), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_TRUE(pidfd_ended(pidfd.get()));
  EXPECT_EQ(pidfd_kill(pidfd.get()), -ESRCH);
}

TEST(UserName, NamesOrNumbers) {
  EXPECT_EQ(user_name(0), "root");
  EXPECT_EQ(user_name(3999999999u), "3999999999");
}

TEST(Cgroup, IsTheUnifiedOneElseSystemds) {
  auto parsed = [](const char* text) {
    std::istringstream lines(text);
    return cgroup_parse(lines);
  };
  EXPECT_EQ(parsed("0::/user.slice/user-7.slice\n"), "/user.slice/user-7.slice");
  EXPECT_EQ(parsed("3:cpu:/x\n1:name=systemd:/user.slice\n0::/\n"), "/user.slice");
  EXPECT_EQ(parsed("1:name=systemd:/old\n0::/new\n"), "/new");
  EXPECT_EQ(parsed("0::/\n"), "/");
  EXPECT_EQ(parsed("3:cpu:/0::/x\n"), "") << "a name may hold anything";
  EXPECT_EQ(parsed(""), "");
}

TEST(Cgroup, OfAProcessThatIsGoneIsNotKnown) {
  EXPECT_NE(process_cgroup(getpid()), "");
  EXPECT_EQ(process_cgroup(-1), "");
}

TEST(UserGroups, AreThoseOfTheAccount) {
  EXPECT_EQ(std::ranges::count(user_groups(0), gid_t{0}), 1);
  EXPECT_TRUE(user_groups(4'000'000'000U).empty()) << "no account, no groups";
}

}  // namespace
}  // namespace sluice::daemon
