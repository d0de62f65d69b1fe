// The entrance: one event in, its actions out. Each step has the same order - time passes, the
// event is taken in, the queue is looked at, leases are decided, the alarm is set - so that no
// decision is ever made on half an event.
#include "broker/core/core.h"

#include <algorithm>
#include <cassert>

#include "broker/core/admission.h"
#include "broker/core/aside.h"
#include "broker/core/command.h"
#include "broker/core/freeze.h"
#include "broker/core/hold.h"
#include "broker/core/lease.h"
#include "broker/core/line.h"
#include "broker/core/load.h"
#include "broker/core/memory.h"
#include "broker/core/policy.h"
#include "broker/core/restore.h"
#include "broker/core/returning.h"
#include "broker/core/room.h"
#include "broker/core/runaway.h"
#include "broker/core/schedule.h"
#include "broker/core/state.h"
#include "broker/core/stay.h"
#include "broker/core/usage.h"
#include "broker/core/vacate.h"
#include "broker/protocol/gpu_index.h"

namespace sluice::core {
namespace {

void gpu_added(State& state, const GpuAdded& event, Nanos now) {
  state.queue_dirty = true;
  const std::uint32_t known = protocol::gpu_index(state.gpus, event.uuid);
  if (known < state.gpus.size()) {
    state.gpus[known]->lost = false;
    return;
  }
  auto gpu = std::make_unique<Gpu>();
  gpu->policy = &state.policy;
  gpu->uuid = event.uuid;
  gpu->capacity = event.capacity;
  gpu->size = event.size == 0 ? event.capacity : event.size;
  gpu->context_bytes = event.context_bytes;
  gpu->band_at = now;
  gpu->band_credit_ns = static_cast<double>(state.policy.inference_burst_ns);
  state.gpus.push_back(std::move(gpu));
}

void gpu_closed(State& state, const GpuClosed& event) {
  const std::uint32_t g = protocol::gpu_index(state.gpus, event.uuid);
  if (g == state.gpus.size()) return;
  state.gpus[g]->closed_to_new = state.queue_dirty = true;
  state.gpus[g]->drain = event.drain;
}

void policy_changed(State& state, const PolicyChanged& event, Nanos now, Actions& out) {
  const bool reordered = event.policy.order != state.policy.order;
  gangs_settle(state, now);
  state.policy = event.policy;
  gangs_reweigh(state);
  if (reordered) debts_reordered(state);
  for (auto& gpu : state.gpus) {
    if (reordered) policies_chosen(state.policy, *gpu, now);
    windows_refresh(state, *gpu, true, out);
    for (Share* share : gpu->waiting) line_update(state, *share, now);
  }
  state.queue_dirty = true;
}

struct Dispatch {
  State& state;
  Nanos now;
  Actions& out;

  void operator()(const GpuAdded& e) const { gpu_added(state, e, now); }
  void operator()(const TenantAsked& e) const { tenant_asked(state, e, now, out); }
  void operator()(const TenantRestored& e) const { tenant_restored(state, e, now, out); }
  void operator()(const TenantsNumbered& e) const { tenants_numbered(state, e); }
  void operator()(const LimitsChanged& e) const { limits_changed(state, e, now, out); }
  void operator()(const RequestGone& e) const { request_gone(state, e); }
  void operator()(const FounderGone& e) const { founder_gone(state, e, now, out); }
  void operator()(const FounderAdopted& e) const { founder_adopted(state, e); }
  void operator()(const ProcessJoined& e) const { process_joined(state, e); }
  void operator()(const ProcessDetached& e) const { process_detached(state, e, now, out); }
  void operator()(const ProcessGone& e) const { process_gone(state, e, now, out); }
  void operator()(const GateWanted& e) const { gate_wanted(state, e, now, out); }
  void operator()(const GateIdle& e) const { gate_idle(state, e); }
  void operator()(const Drained& e) const { gate_drained(state, e, now, out); }
  void operator()(const UsageSeen& e) const { usage_seen(state, e, now); }
  void operator()(const TenantIdle& e) const { tenant_idle(state, e, now); }
  void operator()(const JobReleased& e) const { job_released(state, e, now, out); }
  void operator()(const MemorySeen& e) const { memory_seen(state, e, now); }
  void operator()(const MemoryWanted& e) const { memory_wanted(state, e, now); }
  void operator()(const HoldAcked& e) const { hold_acked(state, e); }
  void operator()(const MoveDone& e) const { move_done(state, e); }
  void operator()(const CheckpointDone& e) const { checkpoint_done(state, e, now, out); }
  void operator()(const CommandAsked& e) const { command_asked(state, e, now, out); }
  void operator()(const GpuLost& e) const { gpu_lost(state, e, now, out); }
  void operator()(const GpuClosed& e) const { gpu_closed(state, e); }
  void operator()(const DeviceSeen& e) const { device_seen(state, e, now); }
  void operator()(const PolicyChanged& e) const { policy_changed(state, e, now, out); }
  void operator()(const Tick&) const {}
};

constexpr int kRoundsMax = 64;

bool memory_due(const State& state, Nanos now) { return state.room_dirty || state.room_at <= now; }

/// Who is to go out or come back, and for whom.
void memory_decide(State& state, Nanos now, Actions& out) {
  const bool any = !state.moving.empty() || !state.wants.empty();
  if (!any && !memory_due(state, now)) return;
  state.room_dirty = false;
  state.room_at = kNever;
  stays_decide(state, now, out);
  room_decide(state, now, out);
  aside_decide(state, now);
  stays_decide(state, now, out);
}

void alarm_set(State& state, Nanos now, Actions& out) {
  const Nanos more = queue_unfinished(state) ? now : kNever;
  const Nanos next = std::min({schedule_at(state, now), state.queue_deadline, state.holds_at,
                               state.room_at, stays_at(state, now), returning_at(state), more});
  if (next == kNever) {
    state.alarm_at = kNever;
    return;
  }
  const Nanos at = std::max(next, now + 1);
  if (at == state.alarm_at) return;
  state.alarm_at = at;
  out.emplace_back(AlarmSet{at});
}

}  // namespace

std::vector<Action> step(State& state, const Event& event, Nanos now) {
  Actions out;
  now = state.now = std::max(now, state.now);          // a clock that goes back stands still
  if (state.alarm_at <= now) state.alarm_at = kNever;  // it has rung
  const bool answer =
      std::holds_alternative<UsageSeen>(event) || std::holds_alternative<MemorySeen>(event);
  if (!answer) state.ghosts.clear();
  queue_resume(state);
  loads_look(state, now);
  usage_time_passed(state, now);
  std::visit(Dispatch{state, now, out}, event);
  returning_decide(state, now, out);
  memory_decide(state, now, out);
  queue_pump(state, now, out);
  schedule(state, now, out);
  // A drain may have handed GPUs back, and let somebody be held; a hold of nobody's is over at
  // once.
  for (int round = 0; memory_due(state, now) || state.queue_dirty; ++round) {
    assert(round < kRoundsMax && "decisions settle");
    memory_decide(state, now, out);
    queue_pump(state, now, out);
    schedule(state, now, out);
  }
  alarm_set(state, now, out);
  return out;
}

std::unique_ptr<State, void (*)(State*)> state_create(const Policy& policy) {
  return {new State(policy), [](State* state) { delete state; }};
}

}  // namespace sluice::core
