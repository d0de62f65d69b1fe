// Suspend, resume, move, drain; a GPU that is lost; what users and groups may have together.
#include <gmock/gmock.h>

#include "broker/core/memory.h"
#include "memory_harness.h"

namespace sluice::core {
namespace {

using protocol::CommandVerb;
using protocol::kHoldIn;
using protocol::kHoldOut;
using protocol::TenantState;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

TEST(Suspend, SwapsOutAndStaysUntilItIsResumed) {
  MemoryHarness h;
  const TenantId tenant = h.holder(2 * kGiB);
  h.want(tenant);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  EXPECT_THAT(h.all<CommandAnswered>(), IsEmpty());
  EXPECT_FALSE(h.open(tenant));
  h.drain(tenant);
  h.ack(tenant);
  h.pass(kMs);
  h.moved(tenant);
  const CommandAnswered done = h.one<CommandAnswered>();
  EXPECT_EQ(done.code, RefusalCode::kNone);
  EXPECT_EQ(done.bytes, 2 * kGiB - 32 * kMiB);
  EXPECT_EQ(done.taken_ns, kMs);
  EXPECT_EQ(state_view(h.state(), h.now).tenants[0].state, TenantState::kSuspended);
  h.want(tenant);
  h.pass(10 * kSecond);
  EXPECT_TRUE(h.held(tenant, kHoldOut)) << "wanting does not bring it back";
  h.step(h.command(CommandVerb::kResume, tenant));
  h.look();
  EXPECT_TRUE(h.held(tenant, kHoldIn));
  h.moved(tenant);
  EXPECT_EQ(h.one<CommandAnswered>().bytes, 2 * kGiB - 32 * kMiB);
  EXPECT_TRUE(h.open(tenant));
}

TEST(Resume, AWaitIsNoPartOfTheMove) {
  MemoryHarness h;
  const TenantId tenant = h.holder(2 * kGiB);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.out(tenant);
  CommandAsked drain = h.command(CommandVerb::kDrain, 0);
  drain.gpu = uuid_of(1);
  drain.root = true;
  h.step(drain);
  h.step(h.command(CommandVerb::kResume, tenant));
  h.pass(600 * kSecond);
  EXPECT_TRUE(h.held(tenant, kHoldOut));
  drain.verb = CommandVerb::kUndrain;
  h.step(drain);
  h.look();
  EXPECT_TRUE(h.held(tenant, kHoldIn));
  EXPECT_EQ(state_view(h.state(), h.now).stops[0], "its memory is on its way back to its GPU");
  h.pass(3 * kMs);
  h.moved(tenant);
  const CommandAnswered done = h.one<CommandAnswered>();
  EXPECT_EQ(done.taken_ns, 3 * kMs);
  EXPECT_EQ(done.bytes, 2 * kGiB - 32 * kMiB);
}

// As a shell between two programs has none.
TEST(Resume, OfAJobWithoutProcessesAfterARestartIsAnswered) {
  MemoryHarness h;
  TenantRestored known;
  known.tenant = 5;
  known.uid = 1000;
  known.memory_max = known.memory_min = kGiB;
  known.gpus = {uuid_of(1)};
  known.swap = known.suspended = known.swapped = true;
  h.step(known);
  h.step(h.command(CommandVerb::kResume, 5));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNone);
  EXPECT_EQ(promised(h, 0), kGiB) << "what it was promised is its own again";
}

TEST(Suspend, GoesThroughTheCheckpointWhereMemoryCannotBeSwapped) {
  MemoryHarness h;
  const TenantId tenant = h.holder(2 * kGiB, false);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  EXPECT_THAT(h.all<CheckpointWanted>(), IsEmpty()) << "the hold is acknowledged first";
  h.ack(tenant);
  EXPECT_EQ(h.one<CheckpointWanted>().step, CheckpointStep::kOut);
  EXPECT_EQ(h.host_bytes(), 2 * kGiB);
  h.step(frozen(tenant));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNone);
  EXPECT_TRUE(h.one<StayNoted>().frozen);
  EXPECT_TRUE(h.one<StayNoted>().out);
  EXPECT_EQ(promised(h, 0), 0U) << "what it was promised is free";
  h.step(h.command(CommandVerb::kResume, tenant));
  h.look();
  EXPECT_EQ(promised(h, 0), 2 * kGiB);
  EXPECT_EQ(h.residence(tenant), Residence::kRestoring);
  h.step(thawed(tenant));
  EXPECT_EQ(h.one<CommandAnswered>().request, 900 + tenant);
  EXPECT_EQ(h.residence(tenant), Residence::kIn);
}

TEST(Suspend, WhatEndedProcessesLeftStaysInTheBooksOfItsGpu) {
  MemoryHarness h;
  const TenantId tenant = h.holder(3 * kGiB, false);
  h.step(MemorySeen{tenant, 0, 3 * kGiB, 0, 0, 2 * kGiB});
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.ack(tenant);
  EXPECT_EQ(h.host_bytes(), kGiB) << "the checkpoint has nothing of ended processes";
  h.step(frozen(tenant));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNone);
  EXPECT_EQ(h.host_bytes(), kGiB);
  EXPECT_EQ(promised(h, 0), 0U);
  const Tenant& suspended = *h.state().tenants.at(tenant);
  EXPECT_EQ(share_on_gpu(suspended.shares[0]), 2 * kGiB);
  EXPECT_EQ(share_return(suspended.shares[0]), kGiB);
  EXPECT_EQ(gpu_left(*h.state().gpus[0]), 2 * kGiB);
  h.step(h.ask(TenantClass::kBatch, 3 * kGiB));
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty()) << "2 of 4 GiB are left";
  h.step(MemorySeen{tenant, 0, kGiB, 0, 0, 0});
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1)) << "it has been returned";
}

TEST(Move, WhatEndedProcessesLeftIsNotMoved) {
  MemoryHarness h(policy_swapping(), 2);
  const TenantId tenant = h.holder(2 * kGiB, false);
  const std::uint32_t at = h.state().tenants.at(tenant)->shares[0].gpu;
  CommandAsked move = h.command(CommandVerb::kMove, tenant);
  move.gpu = h.state().gpus[1 - at]->uuid;
  h.step(MemorySeen{tenant, 0, 2 * kGiB, 0, 0, kGiB});
  h.step(move);
  const CommandAnswered answer = h.one<CommandAnswered>();
  EXPECT_EQ(answer.code, RefusalCode::kCannotMove);
  EXPECT_THAT(answer.text, HasSubstr("left 1 GiB on its GPU"));
  h.step(MemorySeen{tenant, 0, kGiB, 0, 0, 0});
  h.step(move);
  h.ack(tenant);
  EXPECT_EQ(h.one<CheckpointWanted>().step, CheckpointStep::kOut);
  // A process ends in the checkpoint and leaves something behind.
  h.step(MemorySeen{tenant, 0, kGiB, 0, 0, kGiB / 2});
  h.step(frozen(tenant));
  EXPECT_THAT(h.all<TenantMoved>(), IsEmpty());
  EXPECT_EQ(h.state().tenants.at(tenant)->shares[0].gpu, at);
}

TEST(Suspend, WhatTheDriverRefusesIsAnsweredWithItsReason) {
  MemoryHarness h;
  const TenantId tenant = h.holder(2 * kGiB, false);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.ack(tenant);
  h.step(frozen(tenant, false));
  const CommandAnswered answer = h.one<CommandAnswered>();
  EXPECT_EQ(answer.code, RefusalCode::kCannotMove);
  EXPECT_THAT(answer.text, HasSubstr("the driver's checkpoint failed: managed memory"));
  EXPECT_FALSE(h.held(tenant));
  EXPECT_EQ(h.host_bytes(), 0U);
  h.want(tenant);
  EXPECT_TRUE(h.open(tenant));
}

TEST(Suspend, ARestoreThatFailsIsToldAndTriedAgain) {
  MemoryHarness h;
  const TenantId tenant = h.holder(2 * kGiB, false);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.ack(tenant);
  h.step(frozen(tenant));
  h.step(h.command(CommandVerb::kResume, tenant));
  h.look();
  h.step(thawed(tenant, false));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kCannotMove);
  EXPECT_EQ(h.residence(tenant), Residence::kOut);
  for (int i = 0; i < 10 && h.residence(tenant) == Residence::kOut; ++i) {
    h.pass(20 * kMs);
    h.look();
  }
  EXPECT_EQ(h.residence(tenant), Residence::kRestoring);
  h.step(thawed(tenant));
  EXPECT_EQ(h.residence(tenant), Residence::kIn);
}

// The driver's state FAILED: that process can only be ended, the others go on without it.
CheckpointDone lost(CheckpointDone done, ProcessId process) {
  done.text = "it is in state FAILED";
  done.lost = {process};
  return done;
}

TEST(Lost, AProcessThatFailsOnTheWayBackKeepsNobodyElseOut) {
  MemoryHarness h;
  const TenantId tenant = h.holder(2 * kGiB, false);
  const ProcessId first = h.process(tenant), second = 7777;
  h.step(ProcessJoined{tenant, second});
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.ack(tenant);
  h.ack(tenant, 0, second);
  h.step(frozen(tenant));
  h.step(h.command(CommandVerb::kResume, tenant));
  h.look();
  h.step(lost(thawed(tenant), second));
  EXPECT_FALSE(h.held(tenant)) << "there is nothing left to wait for";
  EXPECT_EQ(h.residence(tenant), Residence::kIn);
  const CommandAnswered answer = h.one<CommandAnswered>();
  EXPECT_EQ(answer.code, RefusalCode::kCannotMove);
  EXPECT_THAT(answer.text, HasSubstr("lost a part of it: it is in state FAILED"));
  EXPECT_THAT(h.all<MoveFailed>(), SizeIs(1));
  EXPECT_EQ(state_view(h.state(), h.now).tenants[0].stays, protocol::StayReason::kLost);
  h.step(GateWanted{first, 0, h.epoch(tenant)});
  EXPECT_TRUE(h.open(tenant)) << "who is left goes on";
  h.step(h.command(CommandVerb::kSuspend, tenant));
  EXPECT_THAT(h.one<CommandAnswered>().text, HasSubstr("has lost a process of"));
  EXPECT_TRUE(h.open(tenant)) << "and is not stopped for what cannot be";
  h.step(ProcessGone{second});
  EXPECT_EQ(state_view(h.state(), h.now).tenants[0].stays, protocol::StayReason::kNotSwappable);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.drain(tenant);
  EXPECT_TRUE(h.held(tenant)) << "its end mends it";
}

TEST(Lost, AProcessThatFailsOnTheWayOutMakesItsTenantNobodysVictim) {
  MemoryHarness h;
  const TenantId victim = h.holder(3 * kGiB), asker = h.holder(kGiB);
  h.state().tenants.at(victim)->processes.front().lost = true;
  h.room_want(asker, 2 * kGiB);
  h.pass(kSecond);
  EXPECT_FALSE(h.held(victim));
  h.state().tenants.at(victim)->processes.front().lost = false;
  h.room_want(asker, 2 * kGiB);
  h.pass(kSecond);
  EXPECT_TRUE(h.held(victim)) << "without that it is";
}

// What could not be put back is returned as from any other checkpoint; until then all are held.
TEST(Suspend, WhatWasTakenOfItAndCouldNotBePutBackIsReturned) {
  MemoryHarness h;
  const TenantId tenant = h.holder(2 * kGiB, false);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.ack(tenant);
  CheckpointDone broken = frozen(tenant, false);
  broken.undone = false;
  h.step(broken);
  EXPECT_THAT(h.one<CommandAnswered>().text, HasSubstr("the driver's checkpoint failed"));
  EXPECT_TRUE(h.held(tenant)) << "a process that is still in it must not be waited for by others";
  EXPECT_TRUE(h.one<StayNoted>().frozen) << "a broker after this one returns it as well";
  h.pass(kSecond);
  EXPECT_EQ(h.residence(tenant), Residence::kRestoring);
  h.step(thawed(tenant));
  EXPECT_FALSE(h.held(tenant));
  EXPECT_FALSE(h.state().tenants.at(tenant)->suspended) << "the command has failed";
}

TEST(Suspend, IsRefusedToStrangersForWholeGpusAndTwice) {
  MemoryHarness h(policy_swapping(), 2);
  const TenantId tenant = h.holder(2 * kGiB);
  CommandAsked event = h.command(CommandVerb::kSuspend, tenant);
  event.uid = 1001;
  h.step(event);
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNotAllowed);
  EXPECT_THAT(h.one<CommandAnswered>().text, HasSubstr("belongs to user 1000"));
  h.step(h.command(CommandVerb::kSuspend, 99));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kUnknownTenant);
  const TenantId whole = h.admit(h.ask(TenantClass::kExclusive));
  h.step(h.command(CommandVerb::kSuspend, whole));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kCannotMove);
  event.root = true;
  h.step(event);
  EXPECT_THAT(h.all<CommandAnswered>(), IsEmpty());
  h.step(h.command(CommandVerb::kResume, tenant));
  EXPECT_THAT(h.one<CommandAnswered>().text, HasSubstr("another command"));
  h.end(tenant);
  EXPECT_EQ(h.state().commands.size(), 0U);
}

TEST(Suspend, TheHostMemoryOfTheUserIsChecked) {
  Policy policy = policy_swapping();
  policy.swap_host_bytes_per_user = kGiB;
  MemoryHarness h(policy);
  const TenantId tenant = h.holder(2 * kGiB);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kHostMemoryLimit);
  EXPECT_THAT(h.one<CommandAnswered>().text, HasSubstr("beyond the 1 GiB of host memory"));
  EXPECT_FALSE(h.held(tenant));
}

TEST(Suspend, ADryRunChangesNothing) {
  MemoryHarness h(policy_swapping(), 2);
  const TenantId tenant = h.holder(2 * kGiB);
  for (CommandVerb verb : {CommandVerb::kSuspend, CommandVerb::kMove, CommandVerb::kDrain}) {
    CommandAsked event = h.command(verb, tenant);
    event.dry_run = event.root = true;
    event.gpu = uuid_of(h.state().tenants.at(tenant)->shares[0].gpu == 0 ? 2 : 1);
    h.step(event);
    EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNone);
    EXPECT_THAT(h.one<CommandAnswered>().text, HasSubstr("nothing was changed"));
    EXPECT_EQ(h.residence(tenant), Residence::kIn);
    EXPECT_FALSE(h.state().gpus[0]->closed_to_new || h.state().gpus[1]->closed_to_new);
  }
}

TEST(Move, GoesThroughTheCheckpointToTheOtherGpu) {
  MemoryHarness h(policy_swapping(), 2);
  const TenantId tenant = h.holder(2 * kGiB);
  const std::uint32_t from = h.state().tenants.at(tenant)->shares[0].gpu;
  CommandAsked event = h.command(CommandVerb::kMove, tenant);
  event.gpu = uuid_of(from == 0 ? 2 : 1);
  h.step(event);
  h.ack(tenant);
  EXPECT_EQ(h.one<CheckpointWanted>().step, CheckpointStep::kOut);
  h.step(frozen(tenant));
  EXPECT_EQ(h.one<TenantMoved>().to, event.gpu);
  EXPECT_EQ(promised(h, from), 0U);
  EXPECT_GT(promised(h, 1 - from), 0U);
  h.look();
  EXPECT_EQ(h.residence(tenant), Residence::kRestoring);
  h.step(thawed(tenant));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNone);
  h.want(tenant);
  EXPECT_TRUE(h.open(tenant));
  EXPECT_EQ(h.state().gpus[1 - from]->holder->id, tenant);
}

TEST(Move, ASuspendedTenantChangesItsGpuAndStaysSuspended) {
  MemoryHarness h(policy_swapping(), 2);
  const TenantId tenant = h.holder(2 * kGiB);
  const std::uint32_t from = h.state().tenants.at(tenant)->shares[0].gpu;
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.out(tenant);
  CommandAsked event = h.command(CommandVerb::kMove, tenant);
  event.gpu = uuid_of(from == 0 ? 2 : 1);
  h.step(event);
  EXPECT_EQ(h.residence(tenant), Residence::kCheckpointing) << "what is left of it goes too";
  h.step(frozen(tenant));
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNone);
  EXPECT_EQ(h.all<StayNoted>().back().frozen_on[0], uuid_of(static_cast<std::uint8_t>(from + 1)));
  EXPECT_EQ(h.residence(tenant), Residence::kOut);
  EXPECT_EQ(promised(h, 1 - from), 0U);
  h.step(h.command(CommandVerb::kResume, tenant));
  h.look();
  EXPECT_GT(promised(h, 1 - from), 0U);
  EXPECT_EQ(h.residence(tenant), Residence::kRestoring);
  EXPECT_EQ(h.state().tenants.at(tenant)->restore_to[0].to, event.gpu);
  h.step(thawed(tenant));
  EXPECT_EQ(h.residence(tenant), Residence::kSwappingIn);
  h.moved(tenant);
  EXPECT_EQ(h.residence(tenant), Residence::kIn);
}

/// The tenant is moved to the other of two GPUs.
void move_over(MemoryHarness& h, TenantId tenant, std::uint8_t to) {
  CommandAsked event = h.command(CommandVerb::kMove, tenant);
  event.gpu = uuid_of(to);
  h.step(event);
  h.ack(tenant);
  h.step(frozen(tenant));
  h.look();
  h.step(thawed(tenant));
  ASSERT_EQ(h.residence(tenant), Residence::kIn);
}

// A job that overran on one GPU, went to another one and ended there left the first one's jobs with
// 35 of their 90 %.
TEST(Move, ADebtStaysOnTheGpuWhereItArose) {
  MemoryHarness h(policy_swapping(), 2);
  h.pinned = {uuid_of(1)};
  h.uid = 2000;
  const TenantId victim = h.holder(kGiB);
  h.uid = 1000;
  const TenantId first = h.holder(64 * kMiB, false);
  const auto debt = [&](TenantId t) { return h.state().tenants.at(t)->shares[0].debt_ns; };
  h.want(first);
  h.want(victim);
  h.pass(kSecond);
  h.drain(first);
  h.step(UsageSeen{first, 0, kSecond});
  const double owed = debt(first);
  EXPECT_GT(owed, 0.2e9);
  move_over(h, first, 2);
  EXPECT_NEAR(debt(first), owed, 1e6) << "it is no less on the other one";
  h.end(first);
  const TenantId next = h.holder(64 * kMiB, false);
  EXPECT_NEAR(debt(next), owed, 1e6);
  h.pinned = {uuid_of(2)};
  h.uid = 1001;
  EXPECT_EQ(debt(h.holder(64 * kMiB, false)), 0) << "another user owes nothing";
  h.uid = 1000;
  const TenantId around = h.holder(64 * kMiB, false);
  move_over(h, around, 1);
  EXPECT_NEAR(debt(around), owed, 1e6) << "nor is coming by another one a new beginning";
  move_over(h, next, 2);
  move_over(h, next, 1);
  EXPECT_NEAR(debt(next), owed, 1e6) << "it is owed once";
}

TEST(Move, IsRefusedWhereItDoesNotFit) {
  MemoryHarness h(policy_swapping(), 2);
  const TenantId tenant = h.holder(2 * kGiB, false);
  const TenantId other = h.holder(3 * kGiB, false);
  const std::uint32_t there = h.state().tenants.at(other)->shares[0].gpu;
  CommandAsked event = h.command(CommandVerb::kMove, tenant);
  event.gpu = uuid_of(static_cast<std::uint8_t>(there + 1));
  h.step(event);
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNoRoom);
  EXPECT_THAT(h.one<CommandAnswered>().text, HasSubstr("3 GiB of 4 GiB"));
  event.gpu = uuid_of(77);
  h.step(event);
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNoSuchGpu);
  const TenantId gang = h.holder(64 * kMiB, false, 2);
  event = h.command(CommandVerb::kMove, gang);
  event.gpu = uuid_of(1);
  h.step(event);
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kCannotMove);
}

TEST(Move, IsRefusedOntoAGpuThatIsUsedWhole) {
  MemoryHarness h(policy_swapping(), 2);
  h.step(GpuAdded{uuid_of(3), 8 * kGiB, 32 * kMiB});
  h.pinned = {uuid_of(1)};
  const TenantId tenant = h.holder(2 * kGiB);
  const std::uint32_t own = h.state().tenants.at(tenant)->shares[0].gpu;
  TenantAsked whole = h.ask(TenantClass::kExclusive);
  whole.gpu_count = 2;
  whole.pinned = {uuid_of(own == 0 ? 2 : 1), uuid_of(3)};  // it has 4 GiB of the 8
  h.step(whole);
  CommandAsked event = h.command(CommandVerb::kMove, tenant);
  event.gpu = uuid_of(3);
  h.step(event);
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNoRoom);
  EXPECT_THAT(h.one<CommandAnswered>().text, HasSubstr("used whole"));
}

TEST(Drain, NobodyIsAdmittedAndWhoRunsStays) {
  MemoryHarness h;
  const TenantId tenant = h.holder(kGiB);
  CommandAsked event = h.command(CommandVerb::kDrain, 0);
  event.gpu = uuid_of(1);
  h.step(event);
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNotAllowed);
  event.root = true;
  h.step(event);
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNone);
  h.want(tenant);
  EXPECT_TRUE(h.open(tenant));
  h.step(h.ask(TenantClass::kBatch, kGiB));
  EXPECT_EQ(h.one<TenantQueued>().reason, QueueReason::kDrain);
  EXPECT_EQ(state_view(h.state(), h.now).gpus[0].draining, 1);
  event.verb = CommandVerb::kUndrain;
  h.step(event);
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1));
}

TEST(Checkpoint, MemoryIsClaimedBeforeItIsRestored) {
  MemoryHarness h;
  const TenantId frozen_one = h.holder(2 * kGiB, false);
  h.step(h.command(CommandVerb::kSuspend, frozen_one));
  h.ack(frozen_one);
  h.step(frozen(frozen_one));
  const TenantId other = h.holder(kGiB / 2, true, 1, 2 * kGiB);
  h.step(h.command(CommandVerb::kResume, frozen_one));
  h.look();
  ASSERT_EQ(h.residence(frozen_one), Residence::kRestoring);
  const Bytes wanted = 2 * kGiB;  // of the 3.5 that nobody has; two are claimed by what comes back
  h.step(MemoryWanted{h.process(other), 0, h.room(other), wanted});
  EXPECT_EQ(h.room(other) & protocol::kRoomNone, protocol::kRoomNone);
  h.step(thawed(frozen_one, false));
  const std::uint32_t before = h.room(other);
  h.step(MemoryWanted{h.process(other), 0, before, wanted});
  h.pass(10 * kMs);
  EXPECT_NE(h.room(other), before);
}

TEST(Lost, ItsTenantsAreToldAndWhoWaitsForItIsRefused) {
  MemoryHarness h(policy_swapping(), 2);
  const TenantId gang = h.holder(kGiB, true, 2);
  const TenantId out = h.holder(2 * kGiB, false);
  TenantAsked waits = h.ask(TenantClass::kBatch, 3 * kGiB);
  waits.pinned = {uuid_of(1)};
  waits.tenant_class = TenantClass::kExclusive;
  h.step(waits);
  h.want(gang);
  h.step(GpuLost{uuid_of(1)});
  EXPECT_THAT(h.all<TenantLost>()[0].text, HasSubstr("its GPU is gone"));
  EXPECT_EQ(h.one<TenantRefused>().code, RefusalCode::kNoSuchGpu);
  EXPECT_FALSE(h.open(gang));
  TenantAsked pinned = h.ask(TenantClass::kBatch, kGiB);
  pinned.pinned = {uuid_of(1)};
  h.step(pinned);
  EXPECT_EQ(h.one<TenantRefused>().code, RefusalCode::kNoSuchGpu);
  EXPECT_THAT(h.one<TenantRefused>().text, HasSubstr("no longer answers"));
  TenantAsked two = h.ask(TenantClass::kBatch, kGiB);
  two.gpu_count = 2;
  h.step(two);
  EXPECT_THAT(h.one<TenantRefused>().text, HasSubstr("this machine has 1 GPU and 1 GPU lost"));
  EXPECT_EQ(state_view(h.state(), h.now).gpus[0].lost, 1);
  EXPECT_EQ(state_view(h.state(), h.now).gpus[1].lost, 0);
  h.end(gang);
  h.end(out);
  EXPECT_THAT(h.state().tenants, IsEmpty());
  h.step(GpuLost{uuid_of(2)});
  h.step(h.ask(TenantClass::kBatch, kGiB));
  EXPECT_EQ(h.one<TenantRefused>().code, RefusalCode::kNoSuchGpu);
  EXPECT_THAT(h.one<TenantRefused>().text, HasSubstr("no GPU of this machine answers any more"));
  h.step(GpuAdded{uuid_of(2), 4 * kGiB, 32 * kMiB});
  EXPECT_NE(h.admit(h.ask(TenantClass::kBatch, kGiB)), 0U);
}

TEST(Drains, AreNotedOnceAndHoldAcrossBrokers) {
  MemoryHarness h(policy_swapping(), 2);
  CommandAsked drain = h.command(protocol::CommandVerb::kDrain, 0);
  drain.gpu = uuid_of(1);
  drain.root = true;
  h.step(drain);
  EXPECT_TRUE(h.one<GpuNoted>().closed);
  EXPECT_EQ(h.one<GpuNoted>().gpu, uuid_of(1));
  h.step(drain);
  EXPECT_THAT(h.all<GpuNoted>(), IsEmpty()) << "nothing has changed";
  drain.verb = protocol::CommandVerb::kUndrain;
  h.step(drain);
  EXPECT_FALSE(h.one<GpuNoted>().closed);
  h.step(GpuClosed{uuid_of(2)});
  h.step(GpuClosed{uuid_of(9)});  // it has been taken out
  EXPECT_EQ(state_view(h.state(), h.now).gpus[1].draining, 1);
  TenantAsked asked = h.ask(TenantClass::kBatch, kGiB);
  asked.pinned = {uuid_of(2)};
  h.step(asked);
  EXPECT_EQ(h.one<TenantQueued>().reason, QueueReason::kDrain);
}

TEST(Sums, OfUsersAndGroupsAreWaitedForAndReturnToZero) {
  Policy policy = policy_usual();
  policy.groups["student"] = {{2, 2 * kGiB}, {3, 0}};
  MemoryHarness h(policy);
  auto asks = [&](std::uint32_t uid, Bytes memory) {
    TenantAsked asked = h.ask(TenantClass::kBatch, memory);
    asked.uid = uid;
    asked.group = "student";
    return asked;
  };
  h.step(asks(1000, 3 * kGiB));
  EXPECT_EQ(h.one<TenantRefused>().code, RefusalCode::kUserLimit);
  EXPECT_THAT(h.one<TenantRefused>().text,
              HasSubstr("profile student allows each user 2 GiB of GPU memory, asked were 3 GiB"));
  const TenantId one = h.admit(asks(1000, kGiB + 512 * kMiB));
  h.step(asks(1000, kGiB));
  EXPECT_EQ(h.one<TenantQueued>().reason, QueueReason::kUserLimit);
  EXPECT_EQ(h.one<TenantQueued>().limit, protocol::QueueLimit::kUserMemory);
  EXPECT_EQ(h.one<TenantQueued>().promised, kGiB + 512 * kMiB);
  EXPECT_EQ(h.one<TenantQueued>().capacity, 2 * kGiB);
  const TenantId other = h.admit(asks(1001, 256 * kMiB));
  const TenantId third = h.admit(asks(1002, 256 * kMiB));
  TenantAsked fourth = asks(1003, 256 * kMiB);
  fourth.no_wait = true;
  h.step(fourth);
  EXPECT_THAT(
      h.one<TenantRefused>().text,
      HasSubstr(
          "the users of profile student have 3 jobs running, as many as it allows all of them "
          "together, and it would not wait; allow waiting, or try again"));
  EXPECT_EQ(h.one<TenantRefused>().code, RefusalCode::kNoRoom) << "sluice run ends with 124";
  h.end(one);
  EXPECT_THAT(h.all<TenantAdmitted>(), SizeIs(1)) << "the one of the same user that waited";
  const TenantId last = h.all<TenantAdmitted>()[0].tenant;
  h.end(other);
  h.end(third);
  h.step(FounderGone{last});
  EXPECT_THAT(h.state().groups, IsEmpty());
  EXPECT_THAT(h.state().members, IsEmpty());
}

TEST(Clock, ThatGoesBackStandsStill) {
  MemoryHarness h;
  const TenantId tenant = h.holder(kGiB);
  h.want(tenant);
  h.now -= 10 * kSecond;
  h.drain(tenant);
  h.now += 10 * kSecond;
  EXPECT_TRUE(h.open(tenant));
}

// A window of half a drain timeout, made for a tenant that is alone, is no window beside others.
TEST(Move, TheWindowIsTheOtherGpus) {
  Policy policy = policy_swapping();
  for (ClassPolicy& one : policy.classes) one.window_ns = 20 * kMs;
  for (const bool inference : {false, true}) {
    MemoryHarness h(policy, 2);
    h.pinned = {uuid_of(1)};
    const TenantId alone = h.holder(64 * kMiB, false);
    EXPECT_EQ(h.lease(alone).window_ns, policy.drain_timeout_ns / 2);
    for (int i = 0; i < 2; ++i) {
      TenantAsked there = h.ask(inference ? TenantClass::kInference : TenantClass::kBatch);
      there.pinned = {uuid_of(2)};
      h.seen(h.admit(there), 32 * kMiB, 0, 0);
    }
    move_over(h, alone, 2);
    h.want(alone);
    EXPECT_TRUE(h.open(alone));
    EXPECT_EQ(h.lease(alone).window_ns, inference ? policy.inference_window_ns : 20 * kMs);
  }
}

}  // namespace
}  // namespace sluice::core
