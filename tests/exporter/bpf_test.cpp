// The kernel observers against real processes. Needs the rights to load BPF programs; skipped with
// the reason where they are missing.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "exporter/bpf/watch.h"

namespace sluice::exporter {
namespace {

constexpr protocol::TenantId kTenant = 7;
constexpr std::uint64_t kPings = 50;
constexpr unsigned kNapUs = 200;

/// A child that answers bytes on a pipe, sleeping in between, and ends as the last byte says.
class Child {
 public:
  Child() {
    int to[2], from[2];
    EXPECT_EQ(pipe(to), 0);
    EXPECT_EQ(pipe(from), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(to[1]);
      close(from[0]);
      answer(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(to_);
    close(from_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  std::uint32_t pid() const { return static_cast<std::uint32_t>(pid_); }
  /// The child sleeps for kNapUs before it answers: it leaves the CPU at least once.
  void ping(char c = 'p') const {
    EXPECT_EQ(write(to_, &c, 1), 1);
    EXPECT_EQ(read(from_, &c, 1), 1);
  }
  void end(char how) {
    EXPECT_EQ(write(to_, &how, 1), 1);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] static void answer(int in, int out) {
    for (char c; read(in, &c, 1) == 1;) {
      if (c == 's') _exit(0);
      if (c == 'f') _exit(3);
      if (c == 'k') raise(SIGKILL);
      if (c == 't') std::thread([] {}).join();  // a thread that ends is no process that ends
      usleep(kNapUs);
      (void)!write(out, &c, 1);
    }
    _exit(9);
  }

  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
};

protocol::SnapshotProcess process_of(const Child& child, protocol::TenantId tenant) {
  protocol::SnapshotProcess process{};
  process.tenant = tenant;
  process.pid = child.pid();
  return process;
}

protocol::SnapshotTenant tenant_of(protocol::TenantId id) {
  protocol::SnapshotTenant tenant{};
  tenant.tenant = id;
  return tenant;
}

WatchFigures figures(Watch& watch) {
  WatchFigures out;
  watch.figures_read(out);
  return out;
}

class Observers : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    watch_ = watch_open(&reason);
    if (watch_ == nullptr) GTEST_SKIP() << reason;
    EXPECT_EQ(reason, "loaded");
  }
  std::unique_ptr<Watch> watch_;
};

TEST_F(Observers, SeeSwitchesAndSleep) {
  Child watched, stranger;
  watch_->watch_set({process_of(watched, kTenant)}, {tenant_of(kTenant)});
  for (std::uint64_t i = 0; i < kPings; ++i) {
    watched.ping();
    stranger.ping();
  }
  const WatchFigures seen = figures(*watch_);
  ASSERT_EQ(seen.tenants.size(), 1U);
  const SchedFigures& figures_of = seen.tenants.at(kTenant);
  EXPECT_GE(figures_of.switches, kPings);
  EXPECT_GE(figures_of.sleeping_ns, kPings * kNapUs * 1000 / 2);
  EXPECT_EQ(seen.exits, (std::array<std::uint64_t, 3>{}));
}

TEST_F(Observers, SeeExitsByResult) {
  Child success, failure, killed, stranger;
  watch_->watch_set({process_of(success, 1), process_of(failure, 1), process_of(killed, 2)},
                    {tenant_of(1), tenant_of(2)});
  success.end('s');
  failure.end('f');
  killed.end('k');
  stranger.end('f');
  EXPECT_EQ(figures(*watch_).exits, (std::array<std::uint64_t, 3>{1, 1, 1}));
}

TEST_F(Observers, ThreadsAreNotProcesses) {
  Child child;
  watch_->watch_set({process_of(child, kTenant)}, {tenant_of(kTenant)});
  for (int i = 0; i < 3; ++i) child.ping('t');
  EXPECT_EQ(figures(*watch_).exits, (std::array<std::uint64_t, 3>{}));
  child.end('s');
  EXPECT_EQ(figures(*watch_).exits, (std::array<std::uint64_t, 3>{1, 0, 0}));
}

// What a process did stays with its tenant after its death, until the tenant is gone too.
TEST_F(Observers, FiguresOutliveTheProcessAndNotTheTenant) {
  auto child = std::make_unique<Child>();
  const auto process = process_of(*child, kTenant);
  watch_->watch_set({process}, {tenant_of(kTenant)});
  for (std::uint64_t i = 0; i < kPings; ++i) child->ping();
  child->end('s');
  const SchedFigures before = figures(*watch_).tenants.at(kTenant);
  EXPECT_GE(before.switches, kPings);
  watch_->watch_set({process}, {tenant_of(kTenant)});  // the broker has not noticed yet
  EXPECT_EQ(figures(*watch_).tenants.at(kTenant), before);
  watch_->watch_set({}, {tenant_of(kTenant)});
  EXPECT_EQ(figures(*watch_).tenants.at(kTenant), before);
  watch_->watch_set({}, {});
  EXPECT_TRUE(figures(*watch_).tenants.empty());
}

TEST_F(Observers, ProcessThatChangesTenantIsCountedAnew) {
  Child child;
  watch_->watch_set({process_of(child, 1)}, {tenant_of(1), tenant_of(2)});
  for (std::uint64_t i = 0; i < kPings; ++i) child.ping();
  watch_->watch_set({process_of(child, 2)}, {tenant_of(1), tenant_of(2)});
  const WatchFigures seen = figures(*watch_);
  EXPECT_GE(seen.tenants.at(1).switches, kPings);
  EXPECT_LT(seen.tenants.at(2).switches, kPings);
}

TEST(Rights, WithoutThemOneClearReason) {
  if (!watch_built()) GTEST_SKIP() << "built without BPF";
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give it up";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) _exit(2);
    std::string reason;
    const bool loaded = watch_open(&reason) != nullptr;
    (void)!write(ends[1], reason.data(), reason.size());
    _exit(loaded ? 1 : 0);
  }
  close(ends[1]);
  char text[256];
  const ssize_t size = read(ends[0], text, sizeof text);
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(std::string(text, size > 0 ? static_cast<std::size_t>(size) : 0),
            "no permission to load BPF programs; run as root or grant CAP_BPF and CAP_PERFMON");
}

}  // namespace
}  // namespace sluice::exporter
