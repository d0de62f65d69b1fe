// Checkpoint jobs on the driver's double: order of the calls, every refusal, hanging and dying
// helpers at every step, cancelling, waiting. Real targets are in checkpoint_softgpu_test.cpp.
#include "broker/devices/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "broker/devices/process.h"
#include "tests/broker/devices/checkpoint_fixture.h"

namespace sluice::devices {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A deadline that passes in any case; until then a helper has come to where it hangs.
constexpr std::int64_t kHang_ms = 4'000;

/// A living process that does nothing.
class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  ~Sleeper() { end(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

class CheckpointJobs : public testing::Test {
 protected:
  CheckpointJobs() {
    std::string pattern = (std::filesystem::temp_directory_path() / "checkpoint-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    folder = pattern;
    for (const char* name : {"/there", "/go"}) mkfifo((folder + name).c_str(), 0600);
    checkpoints = made({});
  }
  ~CheckpointJobs() override {
    checkpoints.reset();
    std::filesystem::remove_all(folder);
  }
  std::unique_ptr<Checkpoints> made(std::vector<std::string> extra,
                                    const char* libraries = SLUICE_FAKE_HARDWARE,
                                    const char* program = SLUICE_CHECKPOINT) {
    extra.push_back("FAKE_CHECKPOINT=" + folder);
    extra.push_back(std::string("LD_LIBRARY_PATH=") + libraries);
    std::vector<const char*> environment;
    for (const std::string& entry : extra) environment.push_back(entry.c_str());
    environment.push_back(nullptr);
    return std::make_unique<Checkpoints>(program, environment.data());
  }
  CheckpointJob job(CheckpointVerb verb, std::size_t count = 3) {
    CheckpointJob made_job;
    made_job.verb = verb;
    for (std::size_t i = 0; i < count; ++i)
      made_job.targets.push_back({sleepers[i].pid(), process_start_ticks(sleepers[i].pid())});
    return made_job;
  }
  CheckpointResult run(CheckpointVerb verb) { return checkpoint_run(*checkpoints, job(verb)); }
  /// The script of the double: the call of this step on the sleeper goes wrong like this.
  void script(const char* step, std::size_t sleeper, const std::string& what) {
    std::ofstream(folder + "/script", std::ios::app)
        << step << " " << sleepers[sleeper].pid() << " " << what << "\n";
  }
  /// The calls since the last look, with sleepers by their index.
  std::string calls() {
    std::ifstream file(folder + "/log");
    std::string step, text;
    for (pid_t pid = 0; file >> step >> pid;) {
      std::size_t index = 0;
      while (index < kSleepers && sleepers[index].pid() != pid) ++index;
      text += (text.empty() ? "" : " ") + step + std::to_string(index);
    }
    std::ofstream(folder + "/log", std::ios::trunc);
    return text;
  }
  pid_t pid(std::size_t sleeper) const { return sleepers[sleeper].pid(); }

  /// Waits until a helper hangs or waits in a scripted call.
  void there_wait() { std::ifstream(folder + "/there").get(); }

  static constexpr std::size_t kSleepers = kCheckpointHelpersMax + 2;
  std::string folder;
  Sleeper sleepers[kSleepers];
  std::unique_ptr<Checkpoints> checkpoints;
};

TEST_F(CheckpointJobs, AllAreLockedBeforeOneIsTakenAndRestoredBeforeOneIsUnlocked) {
  const CheckpointResult taken = run(CheckpointVerb::kTake);
  EXPECT_TRUE(taken.ok) << taken.text;
  EXPECT_EQ(checkpoint_states(taken), "checkpointed,checkpointed,checkpointed");
  EXPECT_TRUE(checkpoint_all(taken, CheckpointState::kCheckpointed));
  EXPECT_GT(taken.taken_ns, 0);
  EXPECT_EQ(calls(), "lock0 lock1 lock2 checkpoint0 checkpoint1 checkpoint2");
  const CheckpointResult back = run(CheckpointVerb::kReturn);
  EXPECT_TRUE(back.ok) << back.text;
  EXPECT_EQ(checkpoint_states(back), "running,running,running");
  EXPECT_EQ(calls(), "restore0 restore1 restore2 unlock0 unlock1 unlock2");
  EXPECT_EQ(checkpoints->size(), 0u);
}

TEST_F(CheckpointJobs, WhatIsDoneAlreadyIsPassedOver) {
  ASSERT_TRUE(checkpoint_run(*checkpoints, job(CheckpointVerb::kTake, 2)).ok);
  calls();
  EXPECT_TRUE(run(CheckpointVerb::kTake).ok);
  EXPECT_EQ(calls(), "lock2 checkpoint2");
  EXPECT_EQ(checkpoint_states(run(CheckpointVerb::kLook)),
            "checkpointed,checkpointed,checkpointed");
  EXPECT_EQ(calls(), "");
  ASSERT_TRUE(checkpoint_run(*checkpoints, job(CheckpointVerb::kReturn, 1)).ok);
  calls();
  EXPECT_TRUE(run(CheckpointVerb::kReturn).ok);
  EXPECT_EQ(calls(), "restore1 restore2 unlock1 unlock2");
}

struct Refusal {
  const char* step;
  const char* what;
  CheckpointStep at;
  const char* code;
  const char* text;
  const char* states;
  const char* calls;
};

class CheckpointRefusals : public CheckpointJobs, public testing::WithParamInterface<Refusal> {};

// The second of three refuses: who was locked or taken is put back, and the answer says who, where
// and why.
TEST_P(CheckpointRefusals, PutsTheOthersBack) {
  const Refusal& refusal = GetParam();
  script(refusal.step, 1, refusal.what);
  const CheckpointResult result = run(CheckpointVerb::kTake);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.pid, pid(1));
  EXPECT_EQ(result.step, refusal.at);
  EXPECT_EQ(result.code, refusal.code);
  EXPECT_THAT(result.text, HasSubstr(refusal.text));
  EXPECT_THAT(result.text, HasSubstr("process " + std::to_string(pid(1))));
  EXPECT_EQ(checkpoint_states(result), refusal.states);
  EXPECT_TRUE(checkpoint_clear(result)) << "nobody is left locked";
  EXPECT_EQ(calls(), refusal.calls);
}

INSTANTIATE_TEST_SUITE_P(
    Each, CheckpointRefusals,
    testing::Values(
        Refusal{"state", "1", CheckpointStep::kState, "CUDA_ERROR_INVALID_VALUE", "finds no",
                "running,unknown,unknown", "lock0 unlock0"},
        Refusal{"state", "800", CheckpointStep::kState, "CUDA_ERROR_NOT_PERMITTED",
                "does not let this user", "running,unknown,unknown", "lock0 unlock0"},
        Refusal{"lock", "600", CheckpointStep::kLock, "CUDA_ERROR_NOT_READY",
                "did not end within 5000 ms", "running,running,unknown", "lock0 lock1 unlock0"},
        Refusal{"lock", "801", CheckpointStep::kLock, "CUDA_ERROR_NOT_SUPPORTED", "managed memory",
                "running,running,unknown", "lock0 lock1 unlock0"},
        Refusal{"lock", "401", CheckpointStep::kLock, "CUDA_ERROR_ILLEGAL_STATE", "another state",
                "running,running,unknown", "lock0 lock1 unlock0"},
        Refusal{"lock", "719", CheckpointStep::kLock, "CUDA_ERROR_719", "the driver failed at",
                "running,running,unknown", "lock0 lock1 unlock0"},
        Refusal{"checkpoint", "801", CheckpointStep::kCheckpoint, "CUDA_ERROR_NOT_SUPPORTED",
                "memory shared with other processes", "running,running,running",
                "lock0 lock1 lock2 checkpoint0 checkpoint1 unlock2 unlock1 restore0 unlock0"},
        Refusal{"checkpoint", "lost", CheckpointStep::kCheckpoint, "CUDA_ERROR_UNKNOWN",
                "cuCheckpointProcessCheckpoint", "running,failed,running",
                "lock0 lock1 lock2 checkpoint0 checkpoint1 unlock2 restore0 unlock0"}));

TEST_F(CheckpointJobs, AProcessInStateFailedIsReportedAsSuch) {
  script("checkpoint", 1, "lost");
  EXPECT_FALSE(run(CheckpointVerb::kTake).ok);
  const CheckpointResult again = run(CheckpointVerb::kTake);
  EXPECT_FALSE(again.ok);
  EXPECT_EQ(again.pid, pid(1));
  EXPECT_EQ(again.code, "");
  EXPECT_THAT(again.text, HasSubstr("state FAILED"));
  EXPECT_EQ(checkpoint_states(again), "running,failed,unknown");
  EXPECT_EQ(checkpoint_states(run(CheckpointVerb::kLook)), "running,failed,running");
}

TEST_F(CheckpointJobs, WhatCannotBePutBackIsTold) {
  script("checkpoint", 2, "801");
  script("restore", 0, "2");
  const CheckpointResult result = run(CheckpointVerb::kTake);
  EXPECT_EQ(result.pid, pid(2));
  EXPECT_THAT(result.text, HasSubstr("managed memory"));
  EXPECT_THAT(result.text, HasSubstr("no room on the GPU for process " + std::to_string(pid(0))));
  EXPECT_EQ(checkpoint_states(result), "checkpointed,running,running");
  EXPECT_FALSE(checkpoint_clear(result));
}

TEST_F(CheckpointJobs, AfterARestoreWithoutRoomNoOtherIsTried) {
  ASSERT_TRUE(run(CheckpointVerb::kTake).ok);
  calls();
  script("restore", 1, "2");
  const CheckpointResult result = run(CheckpointVerb::kReturn);
  EXPECT_EQ(result.step, CheckpointStep::kRestore);
  EXPECT_EQ(result.code, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_THAT(result.text, HasSubstr("it can only be ended"));
  EXPECT_EQ(checkpoint_states(result), "running,checkpointed,checkpointed");
  EXPECT_EQ(calls(), "restore0 restore1 unlock0");
}

TEST_F(CheckpointJobs, AnotherFailureOfARestoreStopsNobodyElse) {
  ASSERT_TRUE(run(CheckpointVerb::kTake).ok);
  calls();
  script("restore", 1, "304");
  const CheckpointResult result = run(CheckpointVerb::kReturn);
  EXPECT_EQ(result.pid, pid(1));
  EXPECT_THAT(result.text, HasSubstr("could not be restored"));
  EXPECT_EQ(checkpoint_states(result), "running,checkpointed,running");
  EXPECT_EQ(calls(), "restore0 restore1 restore2 unlock0 unlock2");
}

TEST_F(CheckpointJobs, ARestoredProcessThatCannotBeUnlockedStaysLocked) {
  ASSERT_TRUE(run(CheckpointVerb::kTake).ok);
  script("unlock", 0, "999");
  const CheckpointResult result = run(CheckpointVerb::kReturn);
  EXPECT_EQ(result.step, CheckpointStep::kUnlock);
  EXPECT_EQ(checkpoint_states(result), "locked,running,running");
}

TEST_F(CheckpointJobs, TheDeadAreNoFailure) {
  CheckpointJob wanted = job(CheckpointVerb::kTake, 4);
  sleepers[0].end();
  wanted.targets[3].start_ticks += 1;  // another process that got the number
  script("lock", 1, "die");
  const CheckpointResult result = checkpoint_run(*checkpoints, wanted);
  EXPECT_TRUE(result.ok) << result.text;
  EXPECT_EQ(checkpoint_states(result), "gone,gone,checkpointed,gone");
  EXPECT_TRUE(checkpoint_all(result, CheckpointState::kCheckpointed));
  EXPECT_FALSE(checkpoint_all(result, CheckpointState::kRunning));
  EXPECT_EQ(calls(), "lock1 lock2 checkpoint2");
}

TEST_F(CheckpointJobs, DeathDuringARestoreIsNoFailure) {
  ASSERT_TRUE(run(CheckpointVerb::kTake).ok);
  script("restore", 1, "die");
  const CheckpointResult result = run(CheckpointVerb::kReturn);
  EXPECT_TRUE(result.ok) << result.text;
  EXPECT_EQ(checkpoint_states(result), "running,gone,running");
}

struct Break {
  const char* step;
  bool crash;  // else it is killed
  CheckpointVerb verb;
  const char* states;
};

class CheckpointBreaks : public CheckpointJobs, public testing::WithParamInterface<Break> {};

// The helper dies in the call on the second of three. A take is put right by another one; a return
// is looked at, and can be asked for again.
TEST_P(CheckpointBreaks, LeaveAKnownState) {
  const Break& broken = GetParam();
  if (broken.verb == CheckpointVerb::kReturn) {
    ASSERT_TRUE(run(CheckpointVerb::kTake).ok);
  }
  script(broken.step, 1, broken.crash ? "crash" : "hang");
  const CheckpointId id = checkpoints->start(job(broken.verb));
  if (!broken.crash) {
    there_wait();
    kill(checkpoints->helper_pid(id), SIGKILL);
  }
  const std::vector<CheckpointDone> done = checkpoint_wait(*checkpoints, 1);
  ASSERT_EQ(done.size(), 1u);
  const CheckpointResult& result = done[0].result;
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.pid, pid(1));
  EXPECT_STREQ(checkpoint_step_name(result.step), broken.step);
  EXPECT_EQ(result.text, std::string("the helper died of signal ") + (broken.crash ? "6" : "9") +
                             " (last call: " + broken.step + " of process " +
                             std::to_string(pid(1)) + ")");
  EXPECT_EQ(checkpoint_states(result), broken.states);
  EXPECT_EQ(checkpoint_clear(result), broken.verb == CheckpointVerb::kTake);
  EXPECT_TRUE(checkpoint_run(*checkpoints, job(broken.verb)).ok) << "again";
}

INSTANTIATE_TEST_SUITE_P(
    Each, CheckpointBreaks,
    testing::Values(
        Break{"lock", false, CheckpointVerb::kTake, "running,running,running"},
        Break{"lock", true, CheckpointVerb::kTake, "running,running,running"},
        Break{"checkpoint", false, CheckpointVerb::kTake, "running,running,running"},
        Break{"checkpoint", true, CheckpointVerb::kTake, "running,running,running"},
        Break{"restore", false, CheckpointVerb::kReturn, "locked,checkpointed,checkpointed"},
        Break{"restore", true, CheckpointVerb::kReturn, "locked,checkpointed,checkpointed"},
        Break{"unlock", false, CheckpointVerb::kReturn, "running,locked,locked"},
        Break{"unlock", true, CheckpointVerb::kReturn, "running,locked,locked"}));

TEST_F(CheckpointJobs, ADeadlineEndsAHelperThatHangs) {
  script("checkpoint", 1, "hang");
  CheckpointJob wanted = job(CheckpointVerb::kTake);
  wanted.deadline_ms = kHang_ms;
  const CheckpointResult result = checkpoint_run(*checkpoints, wanted);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.pid, pid(1));
  EXPECT_EQ(result.step, CheckpointStep::kCheckpoint);
  EXPECT_THAT(result.text, HasSubstr("no answer within 4000 ms (last call: checkpoint of process"));
  EXPECT_EQ(checkpoint_states(result), "running,running,running");
}

TEST_F(CheckpointJobs, ATargetThatNeverAnswersHoldsUpNobodyElse) {
  script("state", 1, "hang always");
  ASSERT_TRUE(checkpoint_run(*checkpoints, job(CheckpointVerb::kTake, 1)).ok);
  CheckpointJob wanted = job(CheckpointVerb::kTake);
  wanted.deadline_ms = kHang_ms;
  wanted.afterwards_ms = kHang_ms;
  // Nothing was touched by this job yet, so nothing is put back: the state is what it was.
  const CheckpointResult untouched = checkpoint_run(*checkpoints, wanted);
  EXPECT_EQ(checkpoint_states(untouched), "checkpointed,unknown,unknown");
  EXPECT_THAT(untouched.text, HasSubstr("last call: state of process"));
  // Here the first was locked by the job.
  ASSERT_TRUE(checkpoint_run(*checkpoints, job(CheckpointVerb::kReturn, 1)).ok);
  const CheckpointResult result = checkpoint_run(*checkpoints, wanted);
  EXPECT_EQ(checkpoint_states(result), "running,unknown,running");
  EXPECT_THAT(result.text, HasSubstr("afterwards: no answer within 4000 ms"));
  EXPECT_TRUE(checkpoint_clear(result)) << "who does not answer was never touched";
}

struct Cancelled {
  CheckpointVerb verb;
  const char* step;
  const char* states;
  const char* calls;
};

class CheckpointCancels : public CheckpointJobs, public testing::WithParamInterface<Cancelled> {};

// The call on the second of three is under way when the job is cancelled, and ends well.
TEST_P(CheckpointCancels, EndsTheCallAndPutsBack) {
  const Cancelled& cancelled = GetParam();
  if (cancelled.verb == CheckpointVerb::kReturn) {
    ASSERT_TRUE(run(CheckpointVerb::kTake).ok);
  }
  calls();
  script(cancelled.step, 1, "wait");
  const CheckpointId id = checkpoints->start(job(cancelled.verb));
  there_wait();
  checkpoints->cancel(id);
  std::ofstream(folder + "/go").close();
  const std::vector<CheckpointDone> done = checkpoint_wait(*checkpoints, 1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_FALSE(done[0].result.ok);
  EXPECT_EQ(done[0].result.text, "cancelled");
  EXPECT_EQ(checkpoint_states(done[0].result), cancelled.states);
  EXPECT_EQ(calls(), cancelled.calls);
}

INSTANTIATE_TEST_SUITE_P(
    Each, CheckpointCancels,
    testing::Values(Cancelled{CheckpointVerb::kTake, "lock", "running,running,unknown",
                              "lock0 lock1 unlock1 unlock0"},
                    Cancelled{CheckpointVerb::kTake, "checkpoint", "running,running,running",
                              "lock0 lock1 lock2 checkpoint0 checkpoint1 "
                              "unlock2 restore1 unlock1 restore0 unlock0"},
                    Cancelled{CheckpointVerb::kReturn, "restore", "running,running,checkpointed",
                              "restore0 restore1 unlock0 unlock1"}));

TEST_F(CheckpointJobs, CancelledInACallThatNeverEnds) {
  script("lock", 1, "hang");
  CheckpointJob wanted = job(CheckpointVerb::kTake);
  wanted.deadline_ms = kHang_ms;
  const CheckpointId id = checkpoints->start(wanted);
  there_wait();
  checkpoints->cancel(id);
  const std::vector<CheckpointDone> done = checkpoint_wait(*checkpoints, 1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].result.text.rfind("cancelled; no answer within 4000 ms", 0), 0u)
      << done[0].result.text;
  EXPECT_EQ(checkpoint_states(done[0].result), "running,running,running");
}

TEST_F(CheckpointJobs, JobsForTheSameProcessFollowEachOther) {
  checkpoints->start(job(CheckpointVerb::kTake));
  checkpoints->start(job(CheckpointVerb::kReturn));
  const CheckpointId last = checkpoints->start(job(CheckpointVerb::kTake, 1));
  EXPECT_EQ(checkpoints->size(), 3u);
  EXPECT_EQ(checkpoints->helper_pid(last), 0);
  const std::vector<CheckpointDone> done = checkpoint_wait(*checkpoints, 3);
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].id, 1u);
  EXPECT_EQ(done[1].id, 2u);
  EXPECT_EQ(done[2].id, last);
  for (const CheckpointDone& one : done) EXPECT_TRUE(one.result.ok) << one.result.text;
  EXPECT_EQ(calls(),
            "lock0 lock1 lock2 checkpoint0 checkpoint1 checkpoint2 "
            "restore0 restore1 restore2 unlock0 unlock1 unlock2 lock0 checkpoint0");
}

TEST_F(CheckpointJobs, AWaitingJobIsCancelledAtOnce) {
  script("lock", 0, "hang always");
  const CheckpointId first = checkpoints->start(job(CheckpointVerb::kTake, 1));
  const CheckpointId second = checkpoints->start(job(CheckpointVerb::kTake, 1));
  checkpoints->cancel(second);
  checkpoints->cancel(second + 1);  // there is none
  std::vector<CheckpointDone> done = checkpoint_wait(*checkpoints, 1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, second);
  EXPECT_EQ(done[0].result.text, "cancelled");
  EXPECT_NE(checkpoints->helper_pid(first), 0);
}

TEST_F(CheckpointJobs, NoMoreThanSoManyHelpersAtATime) {
  std::vector<CheckpointId> ids;
  for (std::size_t i = 0; i < kSleepers; ++i) {
    script("lock", i, "hang always");
    CheckpointJob wanted;
    wanted.verb = CheckpointVerb::kTake;
    wanted.targets = {{pid(i), 0}};
    ids.push_back(checkpoints->start(wanted));
  }
  for (std::size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(checkpoints->helper_pid(ids[i]) != 0, i < kCheckpointHelpersMax) << i;
  const pid_t helper = checkpoints->helper_pid(ids[0]);
  checkpoints.reset();
  int status = 0;
  EXPECT_TRUE(waitpid(helper, &status, 0) < 0 || WIFSIGNALED(status)) << "none is left running";
}

TEST_F(CheckpointJobs, AUsersFirstWaitsForNoOtherUsers) {
  constexpr std::uint32_t kSlowUser = 1, kOther = 2;
  std::vector<CheckpointId> ids;
  for (std::size_t i = 0; i < kSleepers; ++i) {
    const bool is_last = i + 1 == kSleepers;
    if (!is_last) script("lock", i, "hang always");
    CheckpointJob wanted;
    wanted.verb = CheckpointVerb::kTake;
    wanted.uid = is_last ? kOther : kSlowUser;
    wanted.targets = {{pid(i), 0}};
    ids.push_back(checkpoints->start(wanted));
  }
  const std::vector<CheckpointDone> done = checkpoint_wait(*checkpoints, 1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, ids.back());
  EXPECT_TRUE(done[0].result.ok) << done[0].result.text;
  EXPECT_EQ(checkpoints->helper_pid(ids[kCheckpointHelpersMax]), 0)
      << "it waits for its own user's";
}

TEST_F(CheckpointJobs, ADriverWithoutTheCalls) {
  const std::string old_driver = folder + "/old";
  std::filesystem::create_directory(old_driver);
  std::filesystem::create_symlink(SLUICE_FAKE_HARDWARE "/libnvidia-ml.so.1",
                                  old_driver + "/libcuda.so.1");
  checkpoints = made({}, old_driver.c_str());
  const CheckpointResult result = run(CheckpointVerb::kTake);
  EXPECT_EQ(result.step, CheckpointStep::kStart);
  EXPECT_THAT(result.text, HasSubstr("570 or newer"));
  EXPECT_EQ(checkpoint_states(result), "unknown,unknown,unknown");
  EXPECT_THAT(run(CheckpointVerb::kLook).text, HasSubstr("570 or newer"));
}

TEST_F(CheckpointJobs, AMoveNeedsADriverThatKnowsThem) {
  ASSERT_TRUE(run(CheckpointVerb::kTake).ok);
  CheckpointJob wanted = job(CheckpointVerb::kReturn);
  wanted.pairs.resize(1);
  wanted.pairs[0].to.bytes[0] = 1;
  checkpoints = made({"FAKE_VERSION=12080"});
  const CheckpointResult refused = checkpoint_run(*checkpoints, wanted);
  EXPECT_EQ(refused.step, CheckpointStep::kStart);
  EXPECT_THAT(refused.text, HasSubstr("series 580"));
  EXPECT_EQ(checkpoint_states(run(CheckpointVerb::kLook)),
            "checkpointed,checkpointed,checkpointed");
  checkpoints = made({"FAKE_VERSION=13000"});
  EXPECT_TRUE(checkpoint_run(*checkpoints, wanted).ok);
}

TEST_F(CheckpointJobs, ADriverThatFailsCrashesOrHangsAtItsStart) {
  checkpoints = made({"FAKE_FAULT=driver"});
  CheckpointResult result = run(CheckpointVerb::kTake);
  EXPECT_EQ(result.code, "CUDA_ERROR_UNKNOWN");
  EXPECT_THAT(result.text, HasSubstr("cuInit"));
  checkpoints = made({"FAKE_FAULT=crash"});
  result = run(CheckpointVerb::kTake);
  EXPECT_EQ(result.step, CheckpointStep::kStart);
  EXPECT_THAT(result.text, HasSubstr("died of signal 6 (last call: start)"));
  checkpoints = made({"FAKE_FAULT=hang"});
  CheckpointJob wanted = job(CheckpointVerb::kTake);
  wanted.deadline_ms = 500;
  EXPECT_THAT(checkpoint_run(*checkpoints, wanted).text, HasSubstr("no answer within 500 ms"));
}

TEST_F(CheckpointJobs, AProgramThatIsMissingOrAnother) {
  checkpoints = made({}, "", "/nonexistent/sluice-checkpoint");
  EXPECT_THAT(run(CheckpointVerb::kTake).text, HasSubstr("status 127"));
  checkpoints = made({}, "", "/bin/echo");
  const CheckpointResult result = run(CheckpointVerb::kTake);
  EXPECT_FALSE(result.ok);
  EXPECT_THAT(result.text, HasSubstr("said something unexpected"));
}

}  // namespace
}  // namespace sluice::devices
