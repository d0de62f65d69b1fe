// What suspended and idle jobs leave to others, and how they come back.
#include <gmock/gmock.h>

#include "memory_harness.h"

namespace sluice::core {
namespace {

using protocol::CommandVerb;
using protocol::kHoldIn;
using protocol::TenantState;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

// What a suspended job was promised is for others; it comes back through the queue.
TEST(Vacate, ASuspendedJobFreesWhatWasPromisedUntilItIsResumed) {
  MemoryHarness h;
  const TenantId tenant = h.holder(3 * kGiB);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.out(tenant);
  ASSERT_EQ(h.residence(tenant), Residence::kOut);
  EXPECT_EQ(promised(h, 0), 0U);
  const TenantId other = h.holder(4 * kGiB - 32 * kMiB, false);
  EXPECT_EQ(promised(h, 0), 4 * kGiB - 32 * kMiB) << "all but the context that stays";
  CommandAsked dry = h.command(CommandVerb::kResume, tenant);
  dry.dry_run = true;
  h.step(dry);
  EXPECT_THAT(h.one<CommandAnswered>().text, HasSubstr("but not now: of 4 GiB on GPU 0"));
  h.step(h.command(CommandVerb::kResume, tenant));
  EXPECT_EQ(h.residence(tenant), Residence::kOut);
  View view = state_view(h.state(), h.now);
  EXPECT_THAT(view.stops[0], StartsWith("it waits in the queue to get its GPU back: of 4 GiB"));
  EXPECT_THAT(view.waits, SizeIs(1));
  EXPECT_EQ(view.tenants[0].state, TenantState::kSuspended);
  h.end(other);
  h.look();
  EXPECT_TRUE(h.held(tenant, kHoldIn));
  h.moved(tenant);
  EXPECT_EQ(h.one<CommandAnswered>().code, RefusalCode::kNone);
  EXPECT_EQ(h.residence(tenant), Residence::kIn);
  EXPECT_EQ(promised(h, 0), 32 * kMiB);
}

// What is full is waited for; new requests wait behind it.
TEST(Vacate, AResumedJobGoesBeforeNewRequests) {
  MemoryHarness h;
  const TenantId tenant = h.holder(kGiB, false);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.ack(tenant);
  h.step(frozen(tenant));
  const TenantId whole = h.holder(4 * kGiB, false);
  TenantAsked asked = h.ask(TenantClass::kBatch, 4 * kGiB);
  asked.uid = 2000;
  h.step(asked);
  h.step(h.command(CommandVerb::kResume, tenant));
  EXPECT_EQ(state_view(h.state(), h.now).tenants.back().queue_position, 2U);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  EXPECT_THAT(h.all<CommandAnswered>().front().text, HasSubstr("it is suspended again"));
  EXPECT_EQ(state_view(h.state(), h.now).tenants.back().queue_position, 1U);
  h.step(h.command(CommandVerb::kResume, tenant));
  h.end(whole);
  EXPECT_THAT(h.all<TenantAdmitted>(), IsEmpty());
  h.look();
  EXPECT_EQ(h.residence(tenant), Residence::kRestoring);
}

TEST(Vacate, AJobThatWaitsToComeBackMayEndOrLoseItsGpu) {
  for (const bool lost : {false, true}) {
    MemoryHarness h;
    const TenantId tenant = h.holder(kGiB);
    h.step(h.command(CommandVerb::kSuspend, tenant));
    h.out(tenant);
    const TenantId other = h.holder(4 * kGiB - 32 * kMiB, false);
    h.step(h.command(CommandVerb::kResume, tenant));
    if (lost) {
      h.step(GpuLost{h.state().gpus[0]->uuid});
      EXPECT_THAT(h.all<TenantLost>(), SizeIs(2));
    }
    h.end(tenant);
    h.end(other);
    EXPECT_THAT(state_view(h.state(), h.now).tenants, IsEmpty());
  }
}

// Idle jobs leave their GPUs until they want them.
TEST(Rest, AnIdleJobGoesOutAndComesBackWhenItWants) {
  MemoryHarness h;
  const TenantId tenant = h.holder(3 * kGiB);
  h.step(TenantIdle{tenant});
  h.ack(tenant);
  EXPECT_TRUE(h.one<StayNoted>().rests) << "a broker that comes after knows it";
  h.moved(tenant);
  EXPECT_EQ(promised(h, 0), 0U);
  EXPECT_THAT(state_view(h.state(), h.now).stops[0], StartsWith("it used no GPU for long"));
  const TenantId other = h.holder(3 * kGiB, false);
  h.pass(10 * kSecond);
  EXPECT_EQ(h.residence(tenant), Residence::kOut);
  h.want(tenant);
  h.pass(kSecond);
  EXPECT_EQ(h.residence(tenant), Residence::kOut) << "there is no room";
  h.end(other);
  h.look();
  EXPECT_TRUE(h.held(tenant, kHoldIn));
  h.moved(tenant);
  EXPECT_TRUE(h.open(tenant));
  EXPECT_EQ(promised(h, 0), 32 * kMiB);
}

TEST(Rest, WhoWantsMeanwhileStays) {
  MemoryHarness h;
  const TenantId tenant = h.holder(kGiB);
  h.want(tenant);
  h.step(TenantIdle{tenant});
  EXPECT_FALSE(h.held(tenant)) << "it waits for its GPU or has it";
  h.idle(tenant);
  h.pass(kSecond);
  h.step(TenantIdle{tenant});
  EXPECT_FALSE(h.open(tenant)) << "it is on its way out";
  h.want(tenant);
  h.drain(tenant);
  EXPECT_FALSE(h.held(tenant));
  EXPECT_TRUE(h.open(tenant));
}

TEST(Rest, NobodyRestsWhoCouldNotSayThatItWants) {
  MemoryHarness h;
  const TenantId fixed = h.holder(kGiB, false);
  h.step(TenantIdle{fixed});
  EXPECT_FALSE(h.held(fixed)) << "its calls would not return from the driver's checkpoint";
  EXPECT_EQ(promised(h, 0), kGiB);
}

// It was away when the window beside inference was announced, or when a reload brought another.
TEST(Vacate, WhoComesBackHasTheWindowOfNow) {
  Policy policy = policy_swapping();
  for (ClassPolicy& one : policy.classes) one.window_ns = 20 * kMs;
  for (const bool inference : {false, true}) {
    MemoryHarness h(policy);
    const TenantId tenant = h.holder(64 * kMiB);
    for (int i = 0; i < 2; ++i) h.holder(64 * kMiB);
    h.step(h.command(CommandVerb::kSuspend, tenant));
    h.out(tenant);
    if (inference) h.seen(h.admit(TenantClass::kInference), 32 * kMiB, 0, 0);
    Policy other = policy;
    for (ClassPolicy& one : other.classes) one.window_ns = 5 * kMs;
    if (!inference) h.step(PolicyChanged{other});
    h.step(h.command(CommandVerb::kResume, tenant));
    h.look();
    h.moved(tenant);
    ASSERT_EQ(h.residence(tenant), Residence::kIn);
    h.want(tenant);
    EXPECT_EQ(h.lease(tenant).window_ns, inference ? policy.inference_window_ns : 5 * kMs);
  }
}

// What it asks for to come back is what its limits are now.
TEST(Vacate, ALoweredQuotaIsWhatIsWaitedFor) {
  MemoryHarness h;
  const TenantId tenant = h.holder(3 * kGiB, false);
  h.step(h.command(CommandVerb::kSuspend, tenant));
  h.ack(tenant);
  h.step(frozen(tenant));
  h.holder(2 * kGiB, false);
  h.step(h.command(CommandVerb::kResume, tenant));
  h.look();
  ASSERT_EQ(h.residence(tenant), Residence::kOut);
  EXPECT_EQ(h.state().queue.size(), 1U);
  const auto asked = [&] { return h.state().queue.front()->ask; };
  EXPECT_EQ(asked().sm_percent, 100U);
  h.step(LimitsChanged{tenant, 30, 3 * kGiB, 3 * kGiB});
  EXPECT_EQ(asked().sm_percent, 30U);
}

// As at admission: a swappable quota has to find room beside what cannot be moved.
TEST(Vacate, AQuotaIsRaisedBesideWhatASuspendedJobHasLeft) {
  MemoryHarness h;
  const TenantId suspended = h.holder(2 * kGiB);
  const TenantId other = h.holder(kGiB);
  h.seen(suspended, 2 * kGiB, kGiB, 0);
  h.step(h.command(CommandVerb::kSuspend, suspended));
  h.out(suspended);
  ASSERT_EQ(h.residence(suspended), Residence::kOut);
  h.look();
  h.step(LimitsChanged{other, 100, 4 * kGiB, 32 * kMiB});
  EXPECT_EQ(h.one<LimitsSet>().memory_max, 3 * kGiB);
}

}  // namespace
}  // namespace sluice::core
