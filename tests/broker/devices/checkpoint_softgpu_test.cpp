// Checkpoint jobs on processes that really hold memory, of the software GPU: what they held is
// looked at afterwards, whatever became of the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "broker/devices/checkpoint.h"
#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/broker/devices/checkpoint_fixture.h"
#include "tests/conformance/checkpoint_target.h"
#include "tests/softgpu/temporary.h"

namespace sluice::devices {
namespace {

using conformance::kTargetBytes;
using conformance::Order;
using conformance::Target;
using testing::HasSubstr;

class CheckpointSoftgpu : public testing::Test {
 protected:
  CheckpointSoftgpu()
      : devices({{"SOFTGPU_PACING", "0"},
                 {"SOFTGPU_COUNT", "2"},
                 {"SOFTGPU_MEMORY", "256MiB"},  // room for two targets
                 {"SOFTGPU_CONTEXT", "32MiB"}}),
        checkpoints(SLUICE_CHECKPOINT, environ) {}

  static CheckpointJob job(CheckpointVerb verb, std::initializer_list<const Target*> targets) {
    CheckpointJob made;
    made.verb = verb;
    for (const Target* target : targets) made.targets.push_back({target->pid(), 0});
    return made;
  }
  CheckpointResult run(CheckpointVerb verb, std::initializer_list<const Target*> targets) {
    return checkpoint_run(checkpoints, job(verb, targets));
  }
  softgpu::device::Segment* gpu(std::size_t index) const {
    std::string error;
    return softgpu::device::directory_look(devices.path(), error).at(index);
  }
  std::uint64_t used(std::size_t index) const {
    return softgpu::device::Device(gpu(index)).used_bytes();
  }
  CheckpointPair pair(std::size_t from, std::size_t to) const {
    CheckpointPair made;
    std::copy_n(gpu(from)->uuid, sizeof made.from.bytes, made.from.bytes);
    std::copy_n(gpu(to)->uuid, sizeof made.to.bytes, made.to.bytes);
    return made;
  }
  /// It computes, and everything that it holds is what it should be.
  static void works(Target& target) {
    EXPECT_EQ(target.ask(Order::kLaunch), 0);
    EXPECT_EQ(target.ask(Order::kVerify), 0);
    EXPECT_EQ(target.ask(Order::kEvents), 0);
  }

  softgpu_test::TemporaryDevices devices;
  Checkpoints checkpoints;
};

TEST_F(CheckpointSoftgpu, ATenantGoesAndComesBack) {
  Target first, second;
  ASSERT_TRUE(first.ready() && second.ready());
  ASSERT_EQ(first.ask(Order::kLaunch), 0);
  const std::uint64_t held = used(0);
  ASSERT_GE(held, 2 * kTargetBytes);
  const CheckpointResult taken = run(CheckpointVerb::kTake, {&first, &second});
  ASSERT_TRUE(taken.ok) << taken.text;
  EXPECT_EQ(taken.bytes, held);
  EXPECT_EQ(used(0), 0u);
  long long value = -1;
  first.send(Order::kLaunch);
  EXPECT_FALSE(first.answer(value, 100)) << "its calls wait";
  const CheckpointResult back = run(CheckpointVerb::kReturn, {&first, &second});
  ASSERT_TRUE(back.ok) << back.text;
  EXPECT_EQ(back.bytes, held);
  EXPECT_EQ(used(0), held);
  EXPECT_TRUE(first.answer(value));
  works(first);
  works(second);
}

TEST_F(CheckpointSoftgpu, AMoveToAnotherGpu) {
  Target first, second;
  ASSERT_TRUE(first.ready() && second.ready());
  const std::uint64_t held = used(0);
  ASSERT_EQ(used(1), 0u);
  ASSERT_TRUE(run(CheckpointVerb::kTake, {&first, &second}).ok);
  CheckpointJob back = job(CheckpointVerb::kReturn, {&first, &second});
  back.pairs = {pair(0, 1), pair(1, 0)};
  const CheckpointResult moved = checkpoint_run(checkpoints, back);
  ASSERT_TRUE(moved.ok) << moved.text;
  EXPECT_EQ(moved.bytes, held);
  EXPECT_EQ(used(0), 0u);
  EXPECT_EQ(used(1), held);
  works(first);
  works(second);
}

TEST_F(CheckpointSoftgpu, PairsThatDoNotFitLoseNothing) {
  Target target;
  ASSERT_TRUE(target.ready());
  ASSERT_TRUE(run(CheckpointVerb::kTake, {&target}).ok);
  CheckpointJob back = job(CheckpointVerb::kReturn, {&target});
  back.pairs = {pair(1, 0)};
  const CheckpointResult refused = checkpoint_run(checkpoints, back);
  EXPECT_FALSE(refused.ok);
  EXPECT_EQ(refused.step, CheckpointStep::kRestore);
  EXPECT_THAT(refused.text, HasSubstr("refused the GPUs"));
  EXPECT_EQ(checkpoint_states(refused), "checkpointed");
  EXPECT_TRUE(run(CheckpointVerb::kReturn, {&target}).ok);
  works(target);
}

TEST_F(CheckpointSoftgpu, ManagedMemoryIsRefusedAndTheOthersGoOn) {
  Target first, second;
  ASSERT_TRUE(first.ready() && second.ready());
  ASSERT_EQ(second.ask(Order::kManaged), 0);
  const CheckpointResult result = run(CheckpointVerb::kTake, {&first, &second});
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.pid, second.pid());
  EXPECT_EQ(result.code, "CUDA_ERROR_NOT_SUPPORTED");
  EXPECT_EQ(checkpoint_states(result), "running,running");
  works(first);
  works(second);
}

TEST_F(CheckpointSoftgpu, AnEndlessKernelCannotBeLocked) {
  Target first, second;
  ASSERT_TRUE(first.ready() && second.ready());
  ASSERT_EQ(second.ask(Order::kEndless), 0);
  CheckpointJob take = job(CheckpointVerb::kTake, {&first, &second});
  take.lock_ms = 2'000;
  const CheckpointResult result = checkpoint_run(checkpoints, take);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.pid, second.pid());
  EXPECT_EQ(result.code, "CUDA_ERROR_NOT_READY");
  EXPECT_THAT(result.text, HasSubstr("did not end within 2000 ms"));
  EXPECT_EQ(checkpoint_states(result), "running,running");
  works(first);
  EXPECT_EQ(second.ask(Order::kRelease), 0);
  works(second);
}

TEST_F(CheckpointSoftgpu, ARestoreWithoutRoomIsFinal) {
  Target target;
  ASSERT_TRUE(target.ready());
  ASSERT_TRUE(run(CheckpointVerb::kTake, {&target}).ok);
  {
    Target other, another;
    ASSERT_TRUE(other.ready() && another.ready());
    const CheckpointResult result = run(CheckpointVerb::kReturn, {&target});
    EXPECT_EQ(result.code, "CUDA_ERROR_OUT_OF_MEMORY");
    EXPECT_EQ(checkpoint_states(result), "checkpointed");
    works(other);
  }
  const CheckpointResult late = run(CheckpointVerb::kReturn, {&target});
  EXPECT_EQ(late.code, "CUDA_ERROR_OPERATING_SYSTEM");
  EXPECT_THAT(late.text, HasSubstr("it can only be ended"));
  target.kill();
  EXPECT_EQ(used(0), 0u);
}

TEST_F(CheckpointSoftgpu, AStoppedTargetRunsIntoTheDeadline) {
  Target first, second;
  ASSERT_TRUE(first.ready() && second.ready());
  kill(second.pid(), SIGSTOP);
  CheckpointJob take = job(CheckpointVerb::kTake, {&first, &second});
  take.deadline_ms = 4'000;
  take.afterwards_ms = 4'000;
  const CheckpointResult result = checkpoint_run(checkpoints, take);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.pid, second.pid());
  EXPECT_THAT(result.text, HasSubstr("no answer within 4000 ms"));
  EXPECT_EQ(checkpoint_states(result), "running,unknown");
  works(first);
  kill(second.pid(), SIGCONT);
  EXPECT_EQ(checkpoint_states(run(CheckpointVerb::kLook, {&first, &second})), "running,running");
  works(second);
}

// Killed after its first word, after its second, and so on, until a helper comes through.
TEST_F(CheckpointSoftgpu, AKilledHelperLosesNothing) {
  Target first, second;
  ASSERT_TRUE(first.ready() && second.ready());
  bool through = false;
  for (int words = 0; words < 40 && !through; ++words) {
    const CheckpointId id = checkpoints.start(job(CheckpointVerb::kTake, {&first, &second}));
    std::vector<CheckpointDone> done;
    for (int i = 0; i < words && done.empty(); ++i) checkpoint_turn(checkpoints, &done);
    if (done.empty()) kill(checkpoints.helper_pid(id), SIGKILL);
    if (done.empty()) done = checkpoint_wait(checkpoints, 1);
    ASSERT_EQ(done.size(), 1u);
    through = done[0].result.ok;
    const CheckpointResult now = run(CheckpointVerb::kLook, {&first, &second});
    ASSERT_TRUE(
        checkpoint_all(now, through ? CheckpointState::kCheckpointed : CheckpointState::kRunning))
        << words << ": " << checkpoint_states(now) << " after " << done[0].result.text;
    if (!through) works(first);
  }
  EXPECT_TRUE(through);
  ASSERT_TRUE(run(CheckpointVerb::kReturn, {&first, &second}).ok);
  works(first);
  works(second);
}

// The first of two dies while the job is anywhere between its start and its end.
TEST_F(CheckpointSoftgpu, ATargetThatDiesIsNoFailure) {
  for (const int words : {0, 1, 3, 6}) {
    Target first, second;
    ASSERT_TRUE(first.ready() && second.ready());
    checkpoints.start(job(CheckpointVerb::kTake, {&first, &second}));
    std::vector<CheckpointDone> done;
    for (int i = 0; i < words && done.empty(); ++i) checkpoint_turn(checkpoints, &done);
    CheckpointJob back = job(CheckpointVerb::kReturn, {&first, &second});
    first.kill();
    if (done.empty()) done = checkpoint_wait(checkpoints, 1);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_TRUE(done[0].result.ok) << done[0].result.text;
    EXPECT_EQ(done[0].result.processes[1].state, CheckpointState::kCheckpointed);
    EXPECT_EQ(used(0), 0u);
    const CheckpointResult result = checkpoint_run(checkpoints, back);
    EXPECT_TRUE(result.ok) << result.text;
    EXPECT_EQ(checkpoint_states(result), "gone,running");
    works(second);
  }
}

TEST_F(CheckpointSoftgpu, AProcessWithoutCudaIsRefused) {
  Target target;
  ASSERT_TRUE(target.ready());
  const conformance::Sleeper sleeper;
  CheckpointJob take = job(CheckpointVerb::kTake, {&target});
  take.targets.push_back({sleeper.pid(), 0});
  const CheckpointResult result = checkpoint_run(checkpoints, take);
  EXPECT_EQ(result.pid, sleeper.pid());
  EXPECT_EQ(result.step, CheckpointStep::kState);
  EXPECT_THAT(result.text, HasSubstr("it has no context"));
  EXPECT_EQ(checkpoint_states(result), "running,unknown");
  works(target);
}

}  // namespace
}  // namespace sluice::devices
