// A broker that takes in the jobs of one before it: processes that come back at awkward moments.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <filesystem>

#include "engine_fixture.h"

namespace sluice::daemon {
namespace {

/// A process that waits for its end.
struct Child {
  Child() : pid(fork()) {
    if (pid != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid;
};

class EngineRestore : public EngineTest {
 protected:
  static constexpr std::int64_t kGather_ns = 500'000'000;
  EngineRestore() {
    char name[] = "/tmp/sluice-engine-XXXXXX";
    root = mkdtemp(name);
    setup.gpus[0].uuid.bytes[0] = 7;
    setup.gather_patience_ns = kGather_ns;
  }
  ~EngineRestore() override { std::filesystem::remove_all(root); }

  /// What a broker before this one knew: a job of this process with these processes. `replaced` has
  /// called exec since.
  void journal_of(std::initializer_list<pid_t> pids, pid_t replaced) {
    job.tenant = 3;
    job.key = 12345;
    std::string error;
    journal = std::make_unique<Journal>(std::make_shared<JournalFiles>(), log, root + "/state",
                                        "11111111-2222-3333-4444-555555555555");
    ASSERT_TRUE(journal->open(&error)) << error;
    JournalTenant tenant;
    tenant.id = job.tenant;
    tenant.key = job.key;
    tenant.tenant_class = protocol::TenantClass::kBatch;
    tenant.sm_percent = 100;
    tenant.memory_max_bytes = tenant.memory_min_bytes = 1 << 26;
    tenant.founder = name_of(getpid());
    tenant.gpus = {setup.gpus[0].uuid};
    tenant.name = "job";
    journal->tenant_put(tenant);
    for (const pid_t pid : pids) {
      const std::uint64_t program = process_look(pid).program;
      journal->process_put(job.tenant, {name_of(pid), program + (pid == replaced ? 1 : 0), "x"});
    }
    setup.journal = journal.get();
  }
  static ProcessName name_of(pid_t pid) {
    return {static_cast<std::uint32_t>(pid), process_look(pid).start_ticks};
  }
  static Peer peer_with_program(pid_t pid) {
    Peer peer = peer_of(0, pid);
    peer.program = process_look(pid).program;
    return peer;
  }

  std::string root;
  std::unique_ptr<Journal> journal;
  protocol::Admitted job{};
};

// The patience for the one that is silent is over when a heartbeat finds that another one of those
// that wait has called exec: that it ends and that it is answered are two things, one after the
// other.
TEST_F(EngineRestore, AnExecThatIsSeenWhenThePatienceIsOverEndsOneProcessOnce) {
  constexpr ConnectionId kBack = 11;
  constexpr ConnectionId kReplaced = 12;
  const Child replaced, silent, back;
  if (process_look(replaced.pid).program == 0) GTEST_SKIP() << "the kernel shows no program";
  journal_of({replaced.pid, silent.pid, back.pid}, replaced.pid);
  log_keep();
  Engine engine(loop, log, outbox, slow, setup);
  engine.restore();
  for (int beat = 1; beat <= 3; ++beat) engine.heartbeat();  // the fourth looks for an exec
  registers(engine, kBack, job, peer_with_program(back.pid));
  registers(engine, kReplaced, job, peer_with_program(replaced.pid));
  EXPECT_TRUE(engine.pending_on(kBack)) << "it waits for the others, or this host is too slow";
  for (const std::int64_t over_ns = clock_ns() + kGather_ns; clock_ns() < over_ns;) usleep(1000);
  engine.heartbeat();
  loop.settle();
  EXPECT_EQ(outbox.last[kBack], protocol::MessageType::kRegistered);
  EXPECT_EQ(outbox.last[kReplaced], protocol::MessageType::kRegistered);
  EXPECT_EQ(logged("process_ended"), 1);
  EXPECT_EQ(logged("registered"), 1) << "a new process of its old number";
  EXPECT_EQ(logged("registered_again"), 1);
}

TEST_F(EngineRestore, TheLastOneThatWasWaitedForMayEnd) {
  constexpr ConnectionId kBack = 11;
  const Child back;
  auto silent = std::make_unique<Child>();
  setup.gather_patience_ns = 3'600'000'000'000;
  journal_of({silent->pid, back.pid}, 0);
  Engine engine(loop, log, outbox, slow, setup);
  engine.restore();
  registers(engine, kBack, job, peer_with_program(back.pid));
  EXPECT_TRUE(engine.pending_on(kBack));
  silent.reset();
  for (int turns = 0; turns < 10 && engine.pending_on(kBack); ++turns) loop.turn(10'000);
  EXPECT_EQ(outbox.last[kBack], protocol::MessageType::kRegistered);
}

}  // namespace
}  // namespace sluice::daemon
