// The ends of moves, and what a failure costs.
//
// What fails is undone: the tenant is left alone for a while that doubles each time; after three
// failures in a row only its own user's command makes it try again. What fails on the way in is
// tried again, ever more rarely: there is no other way forward for it.
#include "broker/core/arrive.h"

#include <algorithm>

#include "broker/core/aside.h"
#include "broker/core/command.h"
#include "broker/core/hold.h"
#include "broker/core/leaving.h"
#include "broker/core/memory.h"
#include "broker/core/schedule.h"

namespace sluice::core {
namespace {

constexpr int kBackoffDoublingsMax = 6;
constexpr Nanos kBackoffMinNs = 10'000'000;  // of a policy without a swap quantum

}  // namespace

Nanos failure_pause(const State& state, const Tenant& tenant) {
  const int doublings = std::min(static_cast<int>(tenant.move_failures) - 1, kBackoffDoublingsMax);
  return std::max(state.policy.swap_quantum_ns, kBackoffMinNs) << std::max(doublings, 0);
}

void stay_in(State& state, Tenant& tenant, Nanos now) {
  residence_set(tenant, Residence::kIn, now);
  aside_rest(tenant, now);
  tenant.yields = false;
  tenant.reverting = false;
  tenant.order_result = 0;
  tenant.back_since = 0;
  tenant.in_since = now;
  tenant.idle_since = now;
  state.room_dirty = true;
  tenant_waiting_update(state, tenant, now);
}

void stay_out(State& state, Tenant& tenant, Nanos now) {
  residence_set(tenant, Residence::kOut, now);
  tenant.reverting = false;
  tenant.victim = false;
  tenant.out_since = now;
  tenant.moves++;
  for (Share& share : tenant.shares)
    host_charge(state, share, tenant.frozen ? share_freezable(share) : share.swapped);
  state.room_dirty = state.queue_dirty = true;
}

void reasons_drop(State& state, Tenant& tenant, RefusalCode code, const std::string& text,
                  Nanos now, Actions& out) {
  tenant.victim = false;
  tenant.steps_aside = false;
  tenant.yields = false;
  tenant.move_to = kNoGpu;
  if (tenant.residence != Residence::kOut) tenant.suspended = tenant.rests = false;
  commands_fail(state, tenant, code, text, now, out);
  state.queue_dirty = true;
}

void failure_count(const State& state, Tenant& tenant, const std::string& text, Nanos now,
                   Actions& out) {
  ++tenant.move_failures;
  ++tenant.moves_failed;
  tenant.retry_at = now + failure_pause(state, tenant);
  out.emplace_back(MoveFailed{tenant.id, 0, tenant.move_failures, text});
}

void stay_given_up(State& state, Tenant& tenant, RefusalCode code, const std::string& text,
                   Nanos now, Actions& out) {
  failure_count(state, tenant, text, now, out);
  if (code == RefusalCode::kHostMemoryLimit) --tenant.move_failures;  // not its own failure
  const bool held = tenant.residence != Residence::kLeaving;
  reasons_drop(state, tenant, code, text, now, out);
  if (held) hold_clear(state, tenant, now, out);
  stay_in(state, tenant, now);
  if (held) stay_note(tenant, out);
}

void stay_note(const Tenant& tenant, Actions& out) {
  const bool out_now = tenant.residence != Residence::kIn;
  const bool frozen = tenant.frozen || tenant.residence == Residence::kCheckpointing;
  StayNoted action;
  action.tenant = tenant.id;
  action.suspended = tenant.suspended;
  action.by_other = tenant.suspended && tenant.suspended_by != tenant.uid;
  action.rests = tenant.rests;
  action.returns = tenant.vacated && !stays_away(tenant);
  action.swapped = out_now && tenant.swap;
  action.frozen = frozen;
  action.out = tenant.residence == Residence::kOut;
  const bool moved = std::ranges::any_of(
      tenant.restore_to, [](const GpuMove& move) { return !(move.from == move.to); });
  if (frozen && moved)
    for (const GpuMove& move : tenant.restore_to) action.frozen_on.push_back(move.from);
  out.emplace_back(std::move(action));
}

}  // namespace sluice::core
