// Rows of family `checkpoint`: the states of a process under lock, checkpoint, restore and unlock,
// what survives, what is given back, and what is refused.
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/conformance/checkpoint_target.h"
#include "tests/conformance/harness.h"

namespace conformance {
namespace {

CUprocessState state_of(int pid) {
  CUprocessState state = CU_PROCESS_STATE_FAILED;
  EXPECT_EQ(cuCheckpointProcessGetState(pid, &state), CUDA_SUCCESS);
  return state;
}

CUresult lock(int pid, unsigned timeout_ms = 20000) {
  CUcheckpointLockArgs args{};
  args.timeoutMs = timeout_ms;
  return cuCheckpointProcessLock(pid, &args);
}

CUresult checkpoint(int pid) { return cuCheckpointProcessCheckpoint(pid, nullptr); }
CUresult restore(int pid) { return cuCheckpointProcessRestore(pid, nullptr); }
CUresult unlock(int pid) { return cuCheckpointProcessUnlock(pid, nullptr); }

CUresult restore_pairs(int pid, std::vector<CUcheckpointGpuPair> pairs) {
  CUcheckpointRestoreArgs args{};
  args.gpuPairs = pairs.data();
  args.gpuPairsCount = static_cast<unsigned>(pairs.size());
  return cuCheckpointProcessRestore(pid, &args);
}

CUuuid uuid_of(int ordinal) {
  CUuuid uuid{};
  CUdevice device = 0;
  EXPECT_EQ(cuDeviceGet(&device, ordinal), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGetUuid(&uuid, device), CUDA_SUCCESS);
  return uuid;
}

/// A target in state CHECKPOINTED, seen by a controller that has a context of its own.
#define TARGET_CHECKPOINTED    \
  Target target;               \
  ASSERT_TRUE(target.ready()); \
  const Context context;       \
  MUST(lock(target.pid()));    \
  MUST(checkpoint(target.pid()))

#define TARGET_RUNNING         \
  Target target;               \
  ASSERT_TRUE(target.ready()); \
  MUST(cuInit(0))

ROW(checkpoint, runs_at_first) {
  TARGET_RUNNING;
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_RUNNING);
}

ROW(checkpoint, lock_and_unlock_change_the_state) {
  TARGET_RUNNING;
  ANSWERS(CUDA_SUCCESS, lock(target.pid()));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_LOCKED);
  ANSWERS(CUDA_SUCCESS, unlock(target.pid()));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_RUNNING);
}

ROW(checkpoint, lock_needs_running) {
  TARGET_RUNNING;
  MUST(lock(target.pid()));
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, lock(target.pid(), 100));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_LOCKED);
}

ROW(checkpoint, unlock_needs_locked) {
  TARGET_RUNNING;
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, unlock(target.pid()));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_RUNNING);
}

ROW(checkpoint, checkpoint_needs_locked) {
  TARGET_RUNNING;
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, checkpoint(target.pid()));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_RUNNING);
}

ROW(checkpoint, restore_needs_checkpointed) {
  TARGET_RUNNING;
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, restore(target.pid()));
  MUST(lock(target.pid()));
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, restore(target.pid()));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_LOCKED);
}

ROW(checkpoint, checkpointed_refuses_all_but_restore) {
  TARGET_CHECKPOINTED;
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_CHECKPOINTED);
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, unlock(target.pid()));
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, lock(target.pid(), 100));
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, checkpoint(target.pid()));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_CHECKPOINTED);
}

ROW(checkpoint, restore_leaves_locked) {
  TARGET_CHECKPOINTED;
  ANSWERS(CUDA_SUCCESS, restore(target.pid()));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_LOCKED);
  long long value = -1;
  target.send(Order::kLaunch);
  EXPECT_FALSE(target.answer(value, 300)) << "calls still block";
  MUST(unlock(target.pid()));
  EXPECT_TRUE(target.answer(value));
  EXPECT_EQ(value, CUDA_SUCCESS);
}

ROW(checkpoint, calls_block_while_locked) {
  TARGET_RUNNING;
  MUST(lock(target.pid()));
  long long value = -1;
  target.send(Order::kLaunch);
  EXPECT_FALSE(target.answer(value, 300));
  MUST(unlock(target.pid()));
  ASSERT_TRUE(target.answer(value));
  EXPECT_EQ(value, CUDA_SUCCESS);
  EXPECT_EQ(target.ask(Order::kVerify), 0);
}

ROW(checkpoint, calls_block_while_checkpointed) {
  TARGET_CHECKPOINTED;
  long long value = -1;
  target.send(Order::kLaunch);
  EXPECT_FALSE(target.answer(value, 300));
  MUST(restore(target.pid()));
  MUST(unlock(target.pid()));
  ASSERT_TRUE(target.answer(value));
  EXPECT_EQ(value, CUDA_SUCCESS);
  EXPECT_EQ(target.ask(Order::kVerify), 0);
}

ROW(checkpoint, lock_completes_submitted_work) {
  TARGET_RUNNING;
  ASSERT_EQ(target.ask(Order::kSlow), CUDA_SUCCESS);
  MUST(lock(target.pid()));
  EXPECT_EQ(target.ask(Order::kPinned), 0) << "what the kernel stores is there";
}

ROW(checkpoint, lock_gives_up_in_time) {
  TARGET_RUNNING;
  ASSERT_EQ(target.ask(Order::kEndless), CUDA_SUCCESS);
  ANSWERS(CUDA_ERROR_NOT_READY, lock(target.pid(), 200));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_RUNNING);
  EXPECT_EQ(target.ask(Order::kLaunch), CUDA_SUCCESS) << "and calls go through again";
  EXPECT_EQ(target.ask(Order::kRelease), 0);
  EXPECT_EQ(target.ask(Order::kVerify), 0);
}

ROW(checkpoint, lock_waits_without_a_limit) {
  TARGET_RUNNING;
  ASSERT_EQ(target.ask(Order::kSlow), CUDA_SUCCESS);
  ANSWERS(CUDA_SUCCESS, cuCheckpointProcessLock(target.pid(), nullptr));
  EXPECT_EQ(target.ask(Order::kPinned), 0);
}

ROW(checkpoint, checkpoint_gives_the_memory_back) {
  Target target;
  ASSERT_TRUE(target.ready());
  const Context context;
  MUST(lock(target.pid()));
  const std::size_t before = memory_free();
  MUST(checkpoint(target.pid()));
  const std::size_t after = memory_free();
  EXPECT_GE(after, before + kTargetBytes);
  observe("freed_bytes", static_cast<long long>(after - before));
}

ROW(checkpoint, restore_takes_the_memory_again) {
  TARGET_CHECKPOINTED;
  const std::size_t before = memory_free();
  MUST(restore(target.pid()));
  EXPECT_LE(memory_free() + kTargetBytes, before);
}

ROW(checkpoint, freed_memory_is_for_others) {
  TARGET_CHECKPOINTED;
  std::vector<CUdeviceptr> taken;
  for (std::size_t bytes = memory_free() / 2; bytes >= kTargetBytes / 2;
       bytes = memory_free() / 2) {
    CUdeviceptr p = 0;
    if (cuMemAlloc(&p, bytes) != CUDA_SUCCESS) break;
    taken.push_back(p);
  }
  for (const CUdeviceptr p : taken) MUST(cuMemFree(p));
  ANSWERS(CUDA_SUCCESS, restore(target.pid()));
  MUST(unlock(target.pid()));
  EXPECT_EQ(target.ask(Order::kVerify), 0);
}

ROW(checkpoint, addresses_and_contents_survive) {
  Target target;
  ASSERT_TRUE(target.ready());
  MUST(cuInit(0));
  ASSERT_EQ(target.ask(Order::kLaunch), CUDA_SUCCESS);
  const long long address = target.ask(Order::kAddress);
  MUST(lock(target.pid()));
  MUST(checkpoint(target.pid()));
  MUST(restore(target.pid()));
  MUST(unlock(target.pid()));
  EXPECT_EQ(target.ask(Order::kAddress), address);
  EXPECT_EQ(target.ask(Order::kVerify), 0);
}

ROW(checkpoint, streams_and_modules_survive) {
  TARGET_CHECKPOINTED;
  MUST(restore(target.pid()));
  MUST(unlock(target.pid()));
  EXPECT_EQ(target.ask(Order::kLaunch), CUDA_SUCCESS);
  EXPECT_EQ(target.ask(Order::kVerify), 0);
}

ROW(checkpoint, events_survive) {
  TARGET_CHECKPOINTED;
  MUST(restore(target.pid()));
  MUST(unlock(target.pid()));
  EXPECT_EQ(target.ask(Order::kEvents), 0);
}

ROW(checkpoint, pinned_memory_survives) {
  TARGET_RUNNING;
  ASSERT_EQ(target.ask(Order::kSlow), CUDA_SUCCESS);
  MUST(lock(target.pid()));
  MUST(checkpoint(target.pid()));
  EXPECT_EQ(target.ask(Order::kPinned), 0) << "the host reads it all the time";
  MUST(restore(target.pid()));
  MUST(unlock(target.pid()));
  EXPECT_EQ(target.ask(Order::kEndless), CUDA_SUCCESS) << "and so does the device again";
  EXPECT_EQ(target.ask(Order::kRelease), 0);
  EXPECT_EQ(target.ask(Order::kVerify), 0);
}

ROW(checkpoint, cycles_repeat) {
  TARGET_RUNNING;
  for (int cycle = 0; cycle < 3; ++cycle) {
    ASSERT_EQ(target.ask(Order::kLaunch), CUDA_SUCCESS);
    MUST(lock(target.pid()));
    MUST(checkpoint(target.pid()));
    MUST(restore(target.pid()));
    MUST(unlock(target.pid()));
    ASSERT_EQ(target.ask(Order::kVerify), 0) << "cycle " << cycle;
  }
}

ROW(checkpoint, no_such_process_refused) {
  int dead = 0;
  {
    const Sleeper sleeper;
    dead = sleeper.pid();
  }
  MUST(cuInit(0));
  CUprocessState state = CU_PROCESS_STATE_FAILED;
  EXPECT_NE(cuCheckpointProcessGetState(dead, &state), CUDA_SUCCESS);
  EXPECT_NE(lock(dead, 100), CUDA_SUCCESS);
  EXPECT_NE(checkpoint(dead), CUDA_SUCCESS);
  EXPECT_NE(restore(dead), CUDA_SUCCESS);
  EXPECT_NE(unlock(dead), CUDA_SUCCESS);
  observe("result", cuCheckpointProcessGetState(dead, &state));
}

ROW(checkpoint, process_without_cuda_refused) {
  const Sleeper sleeper;
  MUST(cuInit(0));
  CUprocessState state = CU_PROCESS_STATE_FAILED;
  EXPECT_NE(cuCheckpointProcessGetState(sleeper.pid(), &state), CUDA_SUCCESS);
  EXPECT_NE(lock(sleeper.pid(), 100), CUDA_SUCCESS);
  observe("result", cuCheckpointProcessGetState(sleeper.pid(), &state));
}

ROW(checkpoint, state_needs_a_place) {
  TARGET_RUNNING;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(target.pid(), nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetRestoreThreadId(target.pid(), nullptr));
}

ROW(checkpoint, lock_reserved_must_be_zero) {
  TARGET_RUNNING;
  CUcheckpointLockArgs args{};
  args.reserved0 = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessLock(target.pid(), &args));
  args.reserved0 = 0;
  args.reserved1[6] = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessLock(target.pid(), &args));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_RUNNING);
}

ROW(checkpoint, restore_thread_belongs_to_the_process) {
  TARGET_RUNNING;
  int tid = 0;
  MUST(cuCheckpointProcessGetRestoreThreadId(target.pid(), &tid));
  const std::string task = "/proc/" + std::to_string(target.pid()) + "/task/" + std::to_string(tid);
  EXPECT_TRUE(std::filesystem::exists(task)) << task;
  EXPECT_NE(tid, target.pid()) << "not the first thread";
}

ROW(checkpoint, managed_memory_refused) {
  TARGET_RUNNING;
  ASSERT_EQ(target.ask(Order::kManaged), CUDA_SUCCESS);
  CUresult result = lock(target.pid());
  if (result == CUDA_SUCCESS) {
    result = checkpoint(target.pid());
    MUST(unlock(target.pid()));
  }
  EXPECT_EQ(result, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_RUNNING);
  EXPECT_EQ(target.ask(Order::kLaunch), CUDA_SUCCESS) << "the process goes on";
  EXPECT_EQ(target.ask(Order::kVerify), 0);
}

ROW(checkpoint, imported_memory_refused) {
  Target target;
  ASSERT_TRUE(target.ready());
  const Context context;
  CUdeviceptr p = 0;
  Message message;
  message.order = Order::kImport;
  MUST(cuMemAlloc(&p, 2 << 20));
  MUST(cuIpcGetMemHandle(&message.handle, p));
  target.send(message);
  long long value = -1;
  ASSERT_TRUE(target.answer(value));
  ASSERT_EQ(value, CUDA_SUCCESS);
  const CUresult locked = lock(target.pid());
  const CUresult result = locked == CUDA_SUCCESS ? checkpoint(target.pid()) : locked;
  observe("lock", locked);
  observe("checkpoint", result);
  observe("state", state_of(target.pid()));
  if (on_hardware()) GTEST_SKIP() << "driver 580 then answers ILLEGAL_STATE to the unlock";
  EXPECT_EQ(result, CUDA_ERROR_NOT_SUPPORTED);
  if (locked == CUDA_SUCCESS) MUST(unlock(target.pid()));
  EXPECT_EQ(target.ask(Order::kVerify), 0) << "the process goes on";
}

ROW(checkpoint, restore_without_room_is_final) {
  TARGET_CHECKPOINTED;
  std::vector<CUdeviceptr> taken;
  for (std::size_t bytes = memory_free(); bytes > kTargetBytes / 4;) {
    CUdeviceptr p = 0;
    if (cuMemAlloc(&p, bytes) == CUDA_SUCCESS)
      taken.push_back(p);
    else
      bytes /= 2;
  }
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, restore(target.pid()));
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_CHECKPOINTED);
  for (const CUdeviceptr p : taken) MUST(cuMemFree(p));
  ANSWERS(CUDA_ERROR_OPERATING_SYSTEM, restore(target.pid()));
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, unlock(target.pid()));
}

ROW(checkpoint, restore_onto_the_same_gpu) {
  TARGET_CHECKPOINTED;
  std::vector<CUcheckpointGpuPair> pairs;
  for (int i = 0; i < devices_count(); ++i) pairs.push_back({uuid_of(i), uuid_of(i)});
  ANSWERS(CUDA_SUCCESS, restore_pairs(target.pid(), pairs));
  MUST(unlock(target.pid()));
  EXPECT_EQ(target.ask(Order::kVerify), 0);
}

ROW(checkpoint, restore_pairs_must_cover) {
  TARGET_CHECKPOINTED;
  CUuuid unknown{};
  std::memset(unknown.bytes, 0x5a, sizeof unknown.bytes);
  EXPECT_NE(restore_pairs(target.pid(), {{unknown, uuid_of(0)}}), CUDA_SUCCESS);
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_CHECKPOINTED);
}

ROW(checkpoint, restore_onto_an_unknown_gpu_refused) {
  TARGET_CHECKPOINTED;
  CUuuid unknown{};
  std::memset(unknown.bytes, 0x5a, sizeof unknown.bytes);
  EXPECT_NE(restore_pairs(target.pid(), {{uuid_of(0), unknown}}), CUDA_SUCCESS);
  EXPECT_EQ(state_of(target.pid()), CU_PROCESS_STATE_CHECKPOINTED);
}

ROW(checkpoint, restore_onto_another_gpu) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  Target target;
  ASSERT_TRUE(target.ready());
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Context second(1);
  MUST(lock(target.pid()));
  MUST(checkpoint(target.pid()));
  const std::size_t before = memory_free();
  std::vector<CUcheckpointGpuPair> pairs{{uuid_of(0), uuid_of(1)}, {uuid_of(1), uuid_of(0)}};
  for (int i = 2; i < devices_count(); ++i) pairs.push_back({uuid_of(i), uuid_of(i)});
  ANSWERS(CUDA_SUCCESS, restore_pairs(target.pid(), pairs));
  EXPECT_LE(memory_free() + kTargetBytes, before) << "it is on the second GPU now";
  MUST(unlock(target.pid()));
  EXPECT_EQ(target.ask(Order::kLaunch), CUDA_SUCCESS);
  EXPECT_EQ(target.ask(Order::kVerify), 0);
  EXPECT_EQ(target.ask(Order::kEvents), 0);
}

ROW(checkpoint, death_while_checkpointed_leaves_nothing) {
  Target target;
  ASSERT_TRUE(target.ready());
  const Context context;
  MUST(lock(target.pid()));
  MUST(checkpoint(target.pid()));
  const std::size_t before = memory_free();
  target.kill();
  EXPECT_GE(memory_free(), before);
}

ROW(checkpoint, death_while_locked_frees_the_memory) {
  Target target;
  ASSERT_TRUE(target.ready());
  const Context context;
  const std::size_t before = memory_free();
  MUST(lock(target.pid()));
  target.kill();
  EXPECT_GE(memory_free_from(before + kTargetBytes), before + kTargetBytes);
}

ROW(checkpoint, others_are_not_locked) {
  Target target, other;
  ASSERT_TRUE(target.ready());
  ASSERT_TRUE(other.ready());
  MUST(cuInit(0));
  MUST(lock(target.pid()));
  EXPECT_EQ(state_of(other.pid()), CU_PROCESS_STATE_RUNNING);
  EXPECT_EQ(other.ask(Order::kLaunch), CUDA_SUCCESS);
  EXPECT_EQ(other.ask(Order::kVerify), 0);
}

}  // namespace
}  // namespace conformance
