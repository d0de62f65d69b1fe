// Charging: measured time replaces lease time, within bounds that a liar cannot leave.
#include "broker/core/leaving.h"
#include "tests/broker/core/memory_harness.h"

namespace sluice::core {
namespace {

Nanos busy(Harness& core, TenantId tenant) {
  return core.state().tenants.at(tenant)->shares[0].busy_ns;
}

TEST(Usage, IsAskedForAtTheEndOfASliceAndAtTheDrain) {
  Harness core;
  const TenantId a = core.admit();
  core.want(a);
  core.want(core.admit());
  core.now = core.alarm();
  core.step(Tick{});
  EXPECT_EQ(core.one<UsageWanted>().tenant, a);
  EXPECT_TRUE(core.open(a)) << "decided by measured time, so after the answer";
  core.step(UsageSeen{a, 0, 9 * kMs});
  EXPECT_FALSE(core.open(a));
  core.drain(a);
  EXPECT_EQ(core.one<UsageWanted>().tenant, a);
}

TEST(Usage, NoAnswerIsNotWaitedForLong) {
  Harness core;
  const TenantId a = core.admit();
  core.want(a);
  core.want(core.admit());
  core.pass(11 * kMs);
  EXPECT_FALSE(core.open(a));
}

TEST(Usage, NeverMoreThanTheLeaseTimeAndNeverBackwards) {
  Harness core;
  const TenantId a = core.admit();
  core.want(a);
  core.pass(4 * kMs);
  core.step(UsageSeen{a, 0, 100 * kMs});
  EXPECT_EQ(busy(core, a), 4 * kMs);
  core.step(UsageSeen{a, 0, 1 * kMs});
  EXPECT_EQ(busy(core, a), 4 * kMs);
  core.pass(4 * kMs);
  core.step(UsageSeen{a, 0, 100 * kMs});
  EXPECT_EQ(busy(core, a), 4 * kMs) << "no progress is no new use";
  core.step(UsageSeen{a, 0, 103 * kMs});
  EXPECT_EQ(busy(core, a), 7 * kMs);
}

TEST(Usage, AMeterThatShowsNothingDoesNotMakeTheGpuFree) {
  Harness core;
  const TenantId liar = core.admit(TenantClass::kBatch, 50);
  const TenantId honest = core.admit(TenantClass::kBatch, 50);
  std::map<TenantId, Nanos> held;
  core.want(liar);
  core.want(honest);
  for (int i = 0; i < 10'000; ++i) {
    for (TenantId t : {liar, honest})
      if (core.open(t)) held[t] += kMs;
    core.pass(kMs);
    core.step(UsageSeen{liar, 0, 0});
    core.step(UsageSeen{honest, 0, held[honest]});
    for (TenantId t : {liar, honest}) {
      if (core.open(t)) continue;
      core.drain(t);
      core.step(UsageSeen{t, 0, t == liar ? 0 : held[honest]});
      core.want(t);
    }
  }
  EXPECT_GT(held[honest], 3 * kSecond)
      << "at worst the liar's time counts half: a third of the GPU is left";
}

TEST(Usage, TheDeadStayInTheGpusTotal) {
  Harness core;
  const TenantId a = core.admit();
  core.want(a);
  core.pass(20 * kMs);
  core.step(FounderGone{a});
  core.step(ProcessGone{Harness::process(a)});
  ASSERT_EQ(core.one<UsageWanted>().tenant, a)
      << "the last measure is asked for before the end is told";
  core.step(UsageSeen{a, 0, 15 * kMs});
  EXPECT_EQ(core.state().gpus[0]->busy_ns, 15 * kMs);
  core.step(UsageSeen{a, 0, 16 * kMs});
  EXPECT_EQ(core.state().gpus[0]->busy_ns, 15 * kMs) << "once";
}

TEST(View, ShowsWhatTheCoreKnows) {
  Harness core;
  TenantAsked asked = core.ask(TenantClass::kBatch, 3 * kGiB);
  asked.name = "a-name-that-is-longer-than-thirty-two-bytes";
  const TenantId a = core.admit(asked);
  core.want(a);
  core.step(core.ask(TenantClass::kBatch, 2 * kGiB));
  core.pass(5 * kMs);
  const View view = state_view(core.state(), core.now);
  ASSERT_EQ(view.tenants.size(), 2U);
  EXPECT_EQ(std::string(view.tenants[0].name), "a-name-that-is-longer-than-thir");
  EXPECT_EQ(view.tenants[1].state, protocol::TenantState::kQueued);
  EXPECT_EQ(view.tenants[1].queue_position, 1U);
  ASSERT_EQ(view.gpus.size(), 1U);
  EXPECT_EQ(view.gpus[0].holder, a);
  EXPECT_EQ(view.gpus[0].promised_bytes, 3 * kGiB);
  ASSERT_EQ(view.tenant_gpus.size(), 1U);
  EXPECT_EQ(view.tenant_gpus[0].lease_held_ns, static_cast<std::uint64_t>(5 * kMs));
  EXPECT_EQ(view.tenant_gpus[0].wants, 0U);
}

TEST(View, SaysWhyMemoryStays) {
  using protocol::StayReason;
  Policy policy = policy_swapping();
  policy.swap_host_bytes_per_user = kGiB;
  MemoryHarness h(policy, 2);
  h.pinned = {uuid_of(2)};
  const auto reason = [&](TenantId tenant) {
    for (const protocol::SnapshotTenant& row : state_view(h.state(), h.now).tenants)
      if (row.tenant == tenant) return row.stays;
    return StayReason::kGoes;
  };
  EXPECT_EQ(reason(h.holder(kGiB / 2, false)), StayReason::kNotSwappable);
  const TenantId goes = h.holder(kGiB / 2);
  EXPECT_EQ(reason(goes), StayReason::kGoes);
  EXPECT_EQ(reason(h.holder(kGiB + kGiB / 2)), StayReason::kHostMemory);
  h.state().tenants.at(goes)->move_failures = kMoveFailuresMax;
  EXPECT_EQ(reason(goes), StayReason::kFailed);
  h.want(goes);
  h.want(goes - 1);
  h.pass(kSecond);
  EXPECT_EQ(h.state().tenants.at(goes)->phase, Phase::kRunaway) << "it does not drain";
  EXPECT_EQ(reason(goes), StayReason::kRunaway);
  TenantAsked whole = h.ask(TenantClass::kExclusive);
  whole.pinned = {uuid_of(1)};
  EXPECT_EQ(reason(h.admit(whole)), StayReason::kExclusive);
}

// Who made it wait leaves while it drains, so that it is opened before its meter has told.
TEST(Usage, WorkOfTheLeaseBeforeIsChargedOnce) {
  Harness core;
  const TenantId a = core.admit();
  const TenantId b = core.admit();
  core.want(a);
  core.want(b);
  core.pass(11 * kMs);
  ASSERT_FALSE(core.open(a));
  core.want(a);
  core.pass(50 * kMs);
  core.end(b);
  core.drain(a);
  ASSERT_TRUE(core.open(a));
  const auto charged = [&] {
    const Share& share = core.state().tenants.at(a)->shares[0];
    return share.vtime * share_weight(*core.state().gpus[0], share);
  };
  core.step(UsageSeen{a, 0, 61 * kMs});
  EXPECT_DOUBLE_EQ(charged(), 61e6);
  core.pass(9 * kMs);
  core.step(UsageSeen{a, 0, 70 * kMs});
  EXPECT_DOUBLE_EQ(charged(), 70e6);
  core.want(core.admit());
  core.pass(11 * kMs);
  ASSERT_FALSE(core.open(a));
  core.drain(a);
  core.step(UsageSeen{a, 0, 81 * kMs});
  EXPECT_NEAR(charged(), 81e6, 1e6) << "what others waited for before is no silence now";
}

}  // namespace
}  // namespace sluice::core
