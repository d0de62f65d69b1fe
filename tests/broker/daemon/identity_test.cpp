// Who is at the other end.
#include "broker/daemon/identity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
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
  EXPECT_EQ(peer.groups.capacity(), peer.groups.size()) << "each connection keeps them";
  ASSERT_TRUE(peer.pidfd);
  EXPECT_FALSE(pidfd_ended(peer.pidfd.get()));
}

// The kernels before 6.5. A process of its own loses SO_PEERPIDFD for good, and may have a process
// exchanged for another one of the same number just as that is to be opened.

constexpr uid_t kStranger = 61234;
constexpr unsigned kNotTrapped = O_NONBLOCK;  // PIDFD_NONBLOCK: the handler's own call
std::function<void()>* g_before_open = nullptr;

#if defined(__x86_64__)
constexpr auto kResult = REG_RAX;
void result_set(ucontext_t* context, long value) { context->uc_mcontext.gregs[kResult] = value; }
long first_argument(const ucontext_t* context) { return context->uc_mcontext.gregs[REG_RDI]; }
#else
void result_set(ucontext_t* context, long value) {
  context->uc_mcontext.regs[0] = static_cast<unsigned long long>(value);
}
long first_argument(const ucontext_t* context) {
  return static_cast<long>(context->uc_mcontext.regs[0]);
}
#endif

void pidfd_open_trapped(int, siginfo_t*, void* context) {
  auto* state = static_cast<ucontext_t*>(context);
  const long pid = first_argument(state);
  if (g_before_open != nullptr) (*g_before_open)();
  const long fd = syscall(SYS_pidfd_open, pid, kNotTrapped);
  result_set(state, fd < 0 ? -errno : fd);
}

bool kernel_made_old(unsigned error) {
  struct sigaction action {};
  action.sa_sigaction = pidfd_open_trapped;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  constexpr unsigned kNumber = offsetof(seccomp_data, nr);
  constexpr unsigned kSecond = offsetof(seccomp_data, args[1]);
  constexpr unsigned kThird = offsetof(seccomp_data, args[2]);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kThird),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 77 /* SO_PEERPIDFD */, 0, 5),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSecond),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kNotTrapped, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof *program, program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// A process that connects to `listener` and waits for its end. Its descriptors are ours as well if
/// `shared`: then its socket outlives it.
pid_t client_start(int listener, bool shared, devices::Fd* accepted) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) return -1;
  const long pid =
      syscall(SYS_clone, (shared ? CLONE_FILES : 0) | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) _exit(1);
    for (;;) pause();
  }
  *accepted = devices::Fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  return static_cast<pid_t>(pid);
}

void process_end(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

/// Another process of that number; false where this is not allowed.
bool number_take(pid_t pid, uid_t uid) {
  struct {
    std::uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size;
  } wish{};
  static_assert(sizeof wish == 80);  // what linux 5.5 knows
  wish.exit_signal = SIGCHLD;
  wish.set_tid = reinterpret_cast<std::uint64_t>(&pid);
  wish.set_tid_size = 1;
  int told[2];
  if (pipe2(told, O_CLOEXEC) != 0) return false;
  const devices::Fd read_end(told[0]);
  devices::Fd write_end(told[1]);
  const long made = syscall(SYS_clone3, &wish, sizeof wish);
  if (made == 0) {
    // The raw call: the C library's would tell threads that this process has not got.
    if (uid != getuid() && syscall(SYS_setresuid, uid, uid, uid) != 0) _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of user takes it back
    if (write(told[1], "1", 1) != 1) _exit(1);
    for (;;) pause();
  }
  write_end.reset();
  char byte;
  return made == pid && read(read_end.get(), &byte, 1) == 1;
}

constexpr int kNotAllowed = 77;

class OldKernel : public testing::Test {
 protected:
  /// In a process without SO_PEERPIDFD: 0 or -errno of `looks`, or kNotAllowed.
  static int result_of(const std::function<int(int listener)>& looks,
                       unsigned error = ENOPROTOOPT) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      const devices::Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      // An address of the kernel's choice.
      if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) !=
              0 ||
          listen(listener.get(), 1) != 0 || !kernel_made_old(error)) {
        _exit(1);
      }
      _exit(-looks(listener.get()));
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -1000;
  }
};

TEST_F(OldKernel, StillHoldsOnToWhoConnected) {
  const auto looks = [](int listener) {
    devices::Fd socket;
    const pid_t pid = client_start(listener, false, &socket);
    Peer peer;
    int seen = -1;
    socklen_t length = sizeof seen;
    if (getsockopt(socket.get(), SOL_SOCKET, 77, &seen, &length) == 0) return -EPROTO;
    const int result = peer_identify(socket.get(), &peer);
    const bool right =
        result == 0 && peer.pid == pid && peer.uid == getuid() && !pidfd_ended(peer.pidfd.get());
    process_end(pid);
    if (result != 0) return result;
    return right && pidfd_ended(peer.pidfd.get()) ? 0 : -EBADE;
  };
  // What is not Linux itself need not know how Linux says it.
  for (const int error : {ENOPROTOOPT, EINVAL, EOPNOTSUPP, ENOSYS})
    EXPECT_EQ(result_of(looks, static_cast<unsigned>(error)), 0) << error;
}

TEST_F(OldKernel, RefusesWhoHasEnded) {
  for (const bool shared : {false, true}) {
    EXPECT_EQ(result_of([shared](int listener) {
                devices::Fd socket;
                process_end(client_start(listener, shared, &socket));
                Peer peer;
                return peer_identify(socket.get(), &peer);
              }),
              -ESRCH)
        << (shared ? "its socket is another's" : "");
    EXPECT_EQ(result_of([shared](int listener) {
                devices::Fd socket;
                const pid_t pid = client_start(listener, shared, &socket);
                kill(pid, SIGKILL);
                siginfo_t info{};
                waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
                Peer peer;
                return peer_identify(socket.get(), &peer);
              }),
              -ESRCH)
        << "not waited for" << (shared ? ", and its socket is another's" : "");
  }
}

/// The client ends, and another process of that user has its number, before it is looked at or (if
/// `late`) between the two looks.
int exchanged(int listener, bool shared, bool late, uid_t uid) {
  devices::Fd socket;
  const pid_t pid = client_start(listener, shared, &socket);
  bool taken = false;
  std::function<void()> exchange = [&] {
    process_end(pid);
    usleep(30'000);  // a start is told in hundredths of a second
    taken = number_take(pid, uid);
  };
  if (late)
    g_before_open = &exchange;
  else
    exchange();
  Peer peer;
  const int result = peer_identify(socket.get(), &peer);
  if (!taken) return -kNotAllowed;
  process_end(pid);
  return result;
}

#define SLUICE_EXPECT_STRANGER(call)                                                        \
  do {                                                                                      \
    const int result_ = result_of([](int listener) { return call; });                       \
    if (result_ == -kNotAllowed) GTEST_SKIP() << "only root chooses the numbers of others"; \
    EXPECT_EQ(result_, -ESRCH) << #call;                                                    \
  } while (false)

TEST_F(OldKernel, RefusesAnotherOfTheSameNumber) {
  SLUICE_EXPECT_STRANGER(exchanged(listener, false, false, getuid()));  // the socket hung up
  SLUICE_EXPECT_STRANGER(exchanged(listener, true, true, getuid()));    // started later
  SLUICE_EXPECT_STRANGER(exchanged(listener, true, false, kStranger));  // is another user's
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

TEST(Process, ItsStartIsReadWhateverItsNameIs) {
  const auto start_of = [](const std::string& stat) {
    return devices::process_look_parse(stat).start_ticks;
  };
  const std::string rest = " S 1 2 3 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 987654321 1 2\n";
  for (const char* name : {"sh", "a b", ") S 1 (", "((", "1 2 3)"})
    EXPECT_EQ(start_of("77 (" + std::string(name) + ")" + rest), 987'654'321u) << name;
  for (std::size_t size = 0; size < rest.find("987"); ++size)
    EXPECT_EQ(start_of("77 (sh)" + rest.substr(0, size)), 0u) << size;
  EXPECT_EQ(start_of("77 sh" + rest), 0u);
}

TEST(Process, ItsProgramIsNotKnownWhereTheKernelDoesNotShowIt) {
  const std::string until = "77 (sh) S 1 2 3 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 5 1 2 99 ";
  EXPECT_EQ(devices::process_look_parse(until + "1 1 0 0 0").program, 0u) << "of another user";
  EXPECT_EQ(devices::process_look_parse(until + "0 0 0 0 0").program, 0u) << "on its way out";
  EXPECT_EQ(devices::process_look_parse(until).program, 0u);
  const std::uint64_t known = devices::process_look_parse(until + "4096 8192 70000 0 0").program;
  EXPECT_GT(known, devices::kProgramGone);
  for (const char* other : {"4097 8192 70000 0 0", "4096 8193 70000 0 0", "4096 8192 70001 0 0"})
    EXPECT_NE(devices::process_look_parse(until + other).program, known);
}

TEST(Process, EveryExecIsAnotherProgram) {
  const std::uint64_t own = process_look(getpid()).program;
  ASSERT_NE(own, 0u);
  EXPECT_EQ(process_look(getpid()).program, own);
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", "kill -STOP $$; exec sh -c 'kill -STOP $$; :'", nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const std::uint64_t first = process_look(child).program;
  EXPECT_NE(first, own);
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_NE(process_look(child).program, first) << "the shell once more";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

/// Bytes that this thread has read from files, as the kernel counts them.
std::uint64_t bytes_read_count() {
  std::ifstream io("/proc/thread-self/io");
  std::string word;
  std::uint64_t count = 0;
  io >> word >> count;
  return count;
}

TEST(Process, ALookCostsNoMoreWhereTheMapIsLarge) {
  // A file with a long path, mapped tens of thousands of times.
  char root[] = "/tmp/sluice-maps-XXXXXX";
  ASSERT_NE(mkdtemp(root), nullptr);
  std::string path = root;
  for (int i = 0; i < 14; ++i) path += "/" + std::string(250, 'x');
  std::filesystem::create_directories(path);
  const devices::Fd file(open((path + "/f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(file);
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 60'000; ++i) mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file.get(), 0);
    if (write(ready[1], "1", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  close(ready[1]);
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  const std::uint64_t before = bytes_read_count();
  const devices::ProcessLook look = process_look(child);
  const std::uint64_t between = bytes_read_count();
  process_look(getpid());
  const std::uint64_t after = bytes_read_count();
  EXPECT_NE(look.program, 0u);
  EXPECT_LT(between - before, 4096u) << "both counts are among them";
  EXPECT_LT(between - before, (after - between) + 512);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::filesystem::remove_all(root);
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

TEST(Peer, HasLeftItsProgramWhereItsSocketIsClosed) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const devices::Fd here(pair[0]);
  devices::Fd there(pair[1]);
  Peer peer;
  ASSERT_EQ(peer_identify(here.get(), &peer), 0);
  EXPECT_EQ(peer.program, process_look(getpid()).program);
  there.reset();
  ASSERT_EQ(peer_identify(here.get(), &peer), 0);
  EXPECT_EQ(peer.program, kProgramGone);
}

TEST(Account, HasANameOrANumber) {
  EXPECT_EQ(account_read(0).value().name, "root");
  EXPECT_EQ(account_read(3999999999u).value().name, "3999999999");
}

int user_root(uid_t, passwd* entry, char*, std::size_t, passwd** found) {
  static char name[] = "root";
  entry->pw_name = name;
  *found = entry;
  return 0;
}
int groups_tell(int have, gid_t* groups, int* count) {
  const int room = std::exchange(*count, have);
  for (int i = 0; i < std::min(room, have); ++i) groups[i] = static_cast<gid_t>(7 + i);
  return have <= room ? have : -1;
}

TEST(Account, ThatCannotBeReadIsNotKnown) {
  AccountCalls calls;
  calls.user = [](uid_t, passwd*, char*, std::size_t, passwd** found) {
    *found = nullptr;
    return EIO;
  };
  EXPECT_FALSE(account_read(7, calls)) << "no groups would be those of another profile";
  calls.user = [](uid_t, passwd*, char*, std::size_t, passwd** found) {
    *found = nullptr;
    return ERANGE;
  };
  EXPECT_FALSE(account_read(7, calls)) << "an entry without end";
}

TEST(Account, OfALongEntryIsRead) {
  AccountCalls calls;
  calls.user = [](uid_t uid, passwd* entry, char* text, std::size_t size, passwd** found) {
    return size < 100'000 ? ERANGE : user_root(uid, entry, text, size, found);
  };
  calls.groups = [](const char*, gid_t, gid_t* groups, int* count) {
    return groups_tell(3, groups, count);
  };
  EXPECT_EQ(account_read(7, calls).value().groups, (std::vector<gid_t>{7, 8, 9}));
}

TEST(Account, OfManyGroupsHasThemAllOrIsNotKnown) {
  AccountCalls calls;
  calls.user = user_root;
  calls.groups = [](const char*, gid_t, gid_t* groups, int* count) {
    return groups_tell(3000, groups, count);
  };
  const std::vector<gid_t> groups = account_read(7, calls).value().groups;
  ASSERT_EQ(groups.size(), 3000u);
  EXPECT_EQ(groups.back(), 3006u);
  calls.groups = [](const char*, gid_t, gid_t* out, int* count) {
    return groups_tell(1'000'000, out, count);
  };
  EXPECT_FALSE(account_read(7, calls));
  calls.groups = [](const char*, gid_t, gid_t*, int*) { return -1; };
  EXPECT_FALSE(account_read(7, calls)) << "there is no memory for them";
}

TEST(Peer, OfMoreGroupsThanAreReadSaysSo) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a process groups";
  const pid_t child = fork();
  if (child == 0) {
    const std::vector<gid_t> groups(kPeerGroupsMax + 1, 7);
    int pair[2];
    Peer peer;
    const bool made = setgroups(groups.size(), groups.data()) == 0 &&
                      socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0 &&
                      peer_identify(pair[0], &peer) == 0;
    _exit(!made ? 2 : peer.groups_known ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(AccountsKnown, NamesStayWhenGroupsAreOutdated) {
  Accounts accounts;
  EXPECT_EQ(accounts.find(7), nullptr);
  EXPECT_EQ(accounts.name(7), "7") << "nothing is asked here";
  accounts.keep(7, {"ada", {100, 101}});
  ASSERT_NE(accounts.find(7), nullptr);
  EXPECT_EQ(accounts.find(7)->groups, (std::vector<gid_t>{100, 101}));
  accounts.outdate();
  EXPECT_EQ(accounts.find(7), nullptr);
  EXPECT_EQ(accounts.name(7), "ada");
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
  const std::vector<gid_t> groups = account_read(0).value().groups;
  EXPECT_EQ(std::ranges::count(groups, gid_t{0}), 1);
  EXPECT_TRUE(account_read(4'000'000'000U).value().groups.empty()) << "no account, no groups";
}

}  // namespace
}  // namespace sluice::daemon
