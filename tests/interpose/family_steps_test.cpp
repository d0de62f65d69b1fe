// The family's slots under SIGKILL at any instruction: a member is stepped through its life by
// ptrace(2) and killed at hundreds of places, in its own code as in that of its locks; another
// member then finds a right sum, every slot free and every lock to be had.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <vector>

#pragma GCC optimize("O2")  // stepped through as the shim is compiled, and as briefly
#include "interpose/family.cpp"
#include "interpose/ledger.h"

namespace sluice::interpose {
namespace {

constexpr uint64_t kLimit = 100'000;
constexpr uint64_t kSurvivors = 1000;  // bytes that the member has that looks afterwards
constexpr uint64_t kMortals = 100;
constexpr uint64_t kCorpses = 50;  // each of those that had died before
constexpr long kStepsInAll = 280'000;
constexpr GpuUuid kFirst{{1}};
constexpr GpuUuid kSecond{{2}};

bool holds(Ledger& ledger, int slot, uint64_t bytes) {
  ledger.attach(&claims(), static_cast<uint32_t>(slot));
  if (!ledger.reserve(0, bytes, kLimit)) return false;
  ledger.hold(0, bytes);
  return true;
}

bool over_at_once(uint32_t, uint64_t) { return true; }

// One part after the other; the tracer sees a stop in front of each, and one at the end.
enum Part { kTake, kHold, kGpu, kSweep, kGive, kParts };
[[noreturn]] void life() {
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
  Ledger ledger;
  raise(SIGSTOP);
  const int slot = family_slot_take();
  raise(SIGSTOP);
  if (!holds(ledger, slot, kMortals)) _exit(1);
  raise(SIGSTOP);
  if (family_gpu(kFirst) != 0 || family_gpu(kSecond) != 1) _exit(2);
  raise(SIGSTOP);
  family_sweep(over_at_once);
  raise(SIGSTOP);
  ledger.release(0, kMortals);
  family_slot_give(slot);
  raise(SIGSTOP);
  _exit(0);
}

// Lets the child run to its next stop. False: it ended.
bool goes_on(pid_t child, int request, int* signal) {
  int status = 0;
  if (ptrace(static_cast<__ptrace_request>(request), child, nullptr, nullptr) != 0) return false;
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return false;
  *signal = WSTOPSIG(status);
  return true;
}

class FamilyStepsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // One processor for both: each step is a change from one to the other.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    const pid_t probe = fork();
    if (probe == 0) _exit(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 77);
    int status = 0;
    waitpid(probe, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      GTEST_SKIP() << "ptrace(2) is not permitted here: nothing can be stepped through";
    (void)clock_common_ns(clock_now_ns());  // what its first use costs is not of a member's life
    Limits limits;
    limits.memory_bytes = kLimit;
    limits.sm_percent = 50;
    ASSERT_TRUE(family_found(limits));
    ASSERT_EQ(family_slot_take(), 0);
    ASSERT_TRUE(holds(survivor, 0, kSurvivors));
    ASSERT_EQ(family_gpu(kFirst), 0);
  }
  // Takes the first two free slots, and dies with them. The first one is charged nothing.
  void corpses() {
    const pid_t pid = fork();
    if (pid == 0) {
      Ledger ledger;
      (void)family_slot_take();
      holds(ledger, family_slot_take(), kCorpses);
      kill(getpid(), SIGKILL);
    }
    waitpid(pid, nullptr, 0);
  }
  // A member at the beginning of a part. Of two dead ones it takes the first one's slot, and sweeps
  // the other's.
  pid_t begin(int part) {
    corpses();
    const pid_t pid = fork();
    if (pid == 0) life();
    int status = 0;
    waitpid(pid, &status, 0);
    int signal = 0;
    for (int i = 0; i < part; ++i) EXPECT_TRUE(goes_on(pid, PTRACE_CONT, &signal)) << part;
    return pid;
  }
  // Steps the part through; less than `most` when it ended before.
  long step(pid_t pid, long most) {
    int signal = SIGTRAP;
    for (long done = 0; done < most; ++done) {
      if (!goes_on(pid, PTRACE_SINGLESTEP, &signal) || signal == SIGSTOP) return done;
    }
    return most;
  }
  void bury(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  long length(int part) {
    const pid_t pid = begin(part);
    const long steps = step(pid, 1'000'000);
    bury(pid);
    after(part);
    return steps;
  }
  // What another member finds.
  void after(int part) {
    const uint64_t left = claims_total(claims(), 0);
    EXPECT_GE(left, kSurvivors + (part == kGpu || part == kSweep ? kMortals : 0));
    // What it was about to hold is there twice for a moment (ledger.h).
    EXPECT_LE(left, kSurvivors + 2 * kMortals + kCorpses);
    family_sweep(over_at_once);
    EXPECT_EQ(claims_total(claims(), 0), kSurvivors);
    gpus_are_right();
    slots_are_free();
  }
  void gpus_are_right() {
    EXPECT_EQ(family_gpu(kSecond), 1);
    EXPECT_EQ(family_gpu(kFirst), 0);
    EXPECT_EQ(family_gpu_count(), 2u);
    const LeaseEntry& entry = lease().gpus[1];
    EXPECT_TRUE(entry.gpu == kSecond);
    EXPECT_EQ(entry.memory_max_bytes, kLimit);
    EXPECT_EQ(entry.sm_percent, 50u);
    EXPECT_NE(entry.window_ns.load(), 0u);
    EXPECT_EQ(family_gate(1).load() & kLeaseOpen, kLeaseOpen);
    lease().gpu_count = 1;
    memset(static_cast<void*>(&lease().gpus[1]), 0, sizeof(LeaseEntry));
  }
  void slots_are_free() {
    for (int i = 1; i < static_cast<int>(kTenantProcessesMax); ++i)
      ASSERT_EQ(family_slot_take(), i) << "a slot is held by nobody who lives";
    EXPECT_EQ(family_slot_take(), -1);
    EXPECT_EQ(claims_total(claims(), 0), kSurvivors);
    for (int i = 1; i < static_cast<int>(kTenantProcessesMax); ++i) family_slot_give(i);
    EXPECT_EQ(claims().slots[0].pid.load(), static_cast<uint32_t>(getpid()));
    EXPECT_EQ(survivor.held(0), kSurvivors);
  }
  Ledger survivor;
};

TEST_F(FamilyStepsTest, AKillAtAnyInstructionLeavesARightSumAndFreeSlots) {
  long lengths[kParts], squares = 0;
  for (int part = 0; part < kParts; ++part) {
    lengths[part] = length(part);
    ASSERT_GT(lengths[part], 50) << part;
    squares += lengths[part] * lengths[part];
  }
  // Half of each part is stepped through on the average.
  const long stride = squares / 2 / kStepsInAll + 1;
  long points = 0;
  for (int part = 0; part < kParts; ++part) {
    for (long at = 0; at <= lengths[part] && !HasFailure(); at += stride, ++points) {
      SCOPED_TRACE("part " + std::to_string(part) + ", instruction " + std::to_string(at));
      const pid_t pid = begin(part);
      step(pid, at);
      bury(pid);
      after(part);
    }
  }
  RecordProperty("points", std::to_string(points));
  printf("%ld places in lives of %ld, %ld, %ld, %ld and %ld instructions\n", points, lengths[kTake],
         lengths[kHold], lengths[kGpu], lengths[kSweep], lengths[kGive]);
  EXPECT_GE(points, 200);
}

// What a process held stays charged after its end until nothing is left of it on the device.
TEST_F(FamilyStepsTest, WhatAnEndedProcessHeldStaysChargedUntilItIsOver) {
  corpses();
  const auto stays = [](uint32_t, uint64_t) { return false; };
  family_sweep(stays);
  EXPECT_EQ(claims_total(claims(), 0), kSurvivors + kCorpses);
  EXPECT_TRUE(family_ended_is_charged(0));
  EXPECT_FALSE(family_ended_is_charged(1));
  EXPECT_TRUE(family_slot_has_ended(2));
  EXPECT_FALSE(family_slot_has_ended(0)) << "its process lives";
  Ledger next;
  ASSERT_TRUE(holds(next, family_slot_take(), kMortals)) << "the slot that held nothing";
  EXPECT_EQ(claims_total(claims(), 0), kSurvivors + kCorpses + kMortals);
  family_sweep([](uint32_t slot, uint64_t) { return slot != 2; });
  EXPECT_EQ(claims_total(claims(), 0), kSurvivors + kCorpses + kMortals) << "only of the ended one";
  family_sweep(over_at_once);
  EXPECT_EQ(claims_total(claims(), 0), kSurvivors + kMortals);
  EXPECT_FALSE(family_ended_is_charged(0));
  next.release(0, kMortals);
  family_slot_give(1);
}

// A member that is stopped while it asks the device keeps no slot from the others.
TEST_F(FamilyStepsTest, AStoppedSweepKeepsNothing) {
  corpses();
  const pid_t pid = fork();
  if (pid == 0) {
    family_sweep([](uint32_t, uint64_t) { return raise(SIGSTOP) == 0; });
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  family_sweep(over_at_once);
  EXPECT_EQ(claims_total(claims(), 0), kSurvivors);
  // The slot is another's by the time the member goes on, and stays so.
  Ledger next;
  ASSERT_TRUE(holds(next, family_slot_take(), kMortals));
  ASSERT_TRUE(holds(next, family_slot_take(), kMortals));
  kill(pid, SIGCONT);
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(claims_total(claims(), 0), kSurvivors + 2 * kMortals);
  for (const int slot : {1, 2}) family_slot_give(slot);
}

// Without another slot the one that ended first is had, whatever it is charged.
TEST_F(FamilyStepsTest, AChargedSlotIsTheLastToBeHad) {
  corpses();
  family_sweep([](uint32_t, uint64_t) { return false; });
  for (int i = 1; i < static_cast<int>(kTenantProcessesMax); ++i) {
    if (i == 2) continue;
    ASSERT_EQ(family_slot_take(), i);
  }
  EXPECT_EQ(claims_total(claims(), 0), kSurvivors + kCorpses);
  EXPECT_EQ(family_slot_take(), 2);
  EXPECT_EQ(claims_total(claims(), 0), kSurvivors);
  EXPECT_EQ(family_slot_take(), -1);
  for (int i = 1; i < static_cast<int>(kTenantProcessesMax); ++i) family_slot_give(i);
}

// Whatever a process leaves in its slot, by its own hand or another's, is nothing to the next one.
TEST_F(FamilyStepsTest, ASlotIsHandedOnEmpty) {
  ClaimsSlot& slot = claims().slots[1];
  for (const bool dies : {false, true}) {
    const pid_t pid = fork();
    if (pid == 0) {
      const int own = family_slot_take();
      Ledger ledger;
      ledger.attach(&claims(), static_cast<uint32_t>(own));
      memset(static_cast<void*>(&slot), 0x55, offsetof(ClaimsSlot, reserved));
      for (ClaimsGpu& gpu : slot.gpus) memset(static_cast<void*>(&gpu), 0x55, sizeof gpu);
      if (!dies) family_slot_give(own);
      _exit(own == 1 ? 0 : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    ASSERT_EQ(status, 0);
    family_sweep(over_at_once);
    ASSERT_EQ(family_slot_take(), 1);
    EXPECT_EQ(slot.pid.load(), static_cast<uint32_t>(getpid()));
    EXPECT_EQ(slot.own_pid.load(), static_cast<uint32_t>(getpid()));
    slot.pid.store(0);
    slot.own_pid.store(0);
    for (ClaimsGpu& gpu : slot.gpus) {
      EXPECT_NE(gpu.version.load(), 0u);
      EXPECT_EQ(gpu.version.load() & 1, 0u);
      gpu.version.store(0);
    }
    const ClaimsSlot empty{};
    EXPECT_EQ(memcmp(&slot, &empty, sizeof slot), 0);
    family_slot_give(1);
  }
}

}  // namespace
}  // namespace sluice::interpose
