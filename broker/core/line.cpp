// Keeping the line of a GPU in order.
#include "broker/core/line.h"

#include <algorithm>
#include <cassert>

#include "broker/core/policy.h"
#include "broker/core/schedule.h"

namespace sluice::core {
namespace {

/// Asks the policies whether it may run, and brings it forward when a cap has just ended.
void cap_look(State& state, const Gpu& gpu, Share& share, Nanos now) {
  const bool was_capped = share.capped;
  share.capped = !policies_may_run(state.policy, gpu, share, now);
  if (share.capped || !was_capped) return;
  policies_woke(state.policy, gpu, share, now);
  if (share.tenant->gang()) gang_released(state, *share.tenant, now);
}

/// The first of those that are not inference.
const ShareHeap<double, heap_place>& others_first(const Gpu& gpu) {
  const auto& guaranteed = gpu.ready[kGuaranteedLane];
  const auto& weights = gpu.ready[kWeightLane];
  return guaranteed.before(weights) ? guaranteed : weights;
}

}  // namespace

HeapPlace& heap_place(Share& share) { return share.heap; }

std::size_t lane_of(const Share& share) {
  const Tenant& tenant = *share.tenant;
  if (tenant.inference()) return kInferenceLane;
  return tenant.guaranteed() && !tenant.gang() ? kGuaranteedLane : kWeightLane;
}

void line_enter(State& state, Share& share, Nanos now) {
  Gpu& gpu = *state.gpus[share.gpu];
  share.heap.since = ++gpu.waiting_count;
  line_clock_advance(state, gpu, now);  // what a pause of it has moved counts before it is back
  std::erase(gpu.left, &share);
  policies_woke(state.policy, gpu, share, now);
  cap_look(state, gpu, share, now);
  gpu.waiting.push_back(&share);
  if (share.tenant->gang()) gpu.waiting_gangs.push_back(&share);
  line_in(state, share, now);
}

void line_clock_advance(const State& state, Gpu& gpu, Nanos now) {
  double slowest = 0;
  bool any = false;
  auto consider = [&](const Share& share) {
    slowest = any ? std::min(slowest, share.vtime) : share.vtime;
    any = true;
  };
  for (const auto& lane : gpu.ready)
    if (const Share* first = lane.first()) consider(*first);
  if (gpu.holder != nullptr && !gpu.holder->exclusive())
    for (const Share* share : gpu.on)
      if (share->tenant == gpu.holder) consider(*share);
  std::erase_if(gpu.left, [&](const Share* share) {
    return now - share->left_at >= state.policy.idle_grace_ns;
  });
  for (const Share* share : gpu.left) consider(*share);
  if (any) fair_clock_advance(gpu, slowest);
}

void line_leave(State& state, Share& share) {
  Gpu& gpu = *state.gpus[share.gpu];
  line_out(state, share);
  share.left_at = state.now;
  std::erase(gpu.waiting, &share);
  if (share.tenant->gang()) std::erase(gpu.waiting_gangs, &share);
}

void line_update(State& state, Share& share, Nanos now) {
  if (!share.tenant->waiting) return;
  line_out(state, share);
  cap_look(state, *state.gpus[share.gpu], share, now);
  line_in(state, share, now);
}

void line_release(State& state, Gpu& gpu, Nanos now) {
  while (!gpu.capped.empty() && gpu.capped.first_key() <= now)
    line_update(state, *gpu.capped.first(), now);
}

Nanos line_release_at(const Gpu& gpu) {
  return gpu.capped.empty() ? kNever : gpu.capped.first_key();
}

void line_out(State& state, Share& share) {
  Gpu& gpu = *state.gpus[share.gpu];
  if (share.capped) return gpu.capped.remove(share);
  if (!share.tenant->gang()) gpu.ready[lane_of(share)].remove(share);
  if (share.tenant->inference()) return;
  if (share.tenant->sm_mode == SmMode::kEqual)
    gpu.waiting_equal--;
  else
    gpu.waiting_plain -= share.tenant->sm_percent;
  if (share.tenant->guaranteed()) gpu.waiting_guaranteed -= share.tenant->sm_percent;
}

void line_in(State& state, Share& share, Nanos now) {
  Gpu& gpu = *state.gpus[share.gpu];
  if (share.capped)
    return gpu.capped.insert(share, policies_may_run_at(state.policy, gpu, share, now));
  // Gangs collect turns instead (gang.cpp).
  if (!share.tenant->gang())
    gpu.ready[lane_of(share)].insert(share, policies_key(state.policy, gpu, share));
  if (share.tenant->inference()) return;
  if (share.tenant->sm_mode == SmMode::kEqual)
    gpu.waiting_equal++;
  else
    gpu.waiting_plain += share.tenant->sm_percent;
  if (share.tenant->guaranteed()) gpu.waiting_guaranteed += share.tenant->sm_percent;
}

double line_weight_others(const Gpu& gpu) {
  const double all = static_cast<double>(gpu.waiting_plain) + gpu.waiting_equal * equal_weight(gpu);
  return guarantees_scaled(gpu, all, gpu.waiting_guaranteed);
}

Share* line_first(const Gpu& gpu, bool band_too) {
  const auto& inference = gpu.ready[kInferenceLane];
  const auto& others = others_first(gpu);
  if (inference.empty()) return others.first();
  if (band_serves(gpu, *inference.first())) return (band_too ? inference : others).first();
  return (inference.before(others) ? inference : others).first();
}

void line_check(const State& state, std::uint32_t g) {
  const Gpu& gpu = *state.gpus[g];
  std::uint64_t plain = 0;
  std::uint64_t guaranteed = 0;
  std::uint32_t equal = 0;
  std::size_t gangs = 0;
  std::size_t singles = 0;
  std::size_t capped = 0;
  const Share* const first = line_first(gpu);
  for (Share* share : gpu.waiting) {
    const bool gang = share->tenant->gang();
    gangs += gang ? 1 : 0;
    capped += share->capped ? 1 : 0;
    singles += !gang && !share->capped ? 1 : 0;
    if (share->capped) {
      assert(gpu.capped.contains(*share) && "who is capped is among the capped");
    } else if (!gang) {
      const auto& lane = gpu.ready[lane_of(*share)];
      assert(lane.contains(*share) &&
             lane.key_of(*share) == policies_key(state.policy, gpu, *share) &&
             "who may run stands where the policies rank it");
      assert(!policies_before(state.policy, gpu, *share, *first) && "the policies' first is first");
      (void)lane;
    }
    if (share->capped || share->tenant->inference()) continue;
    guaranteed += guarantee_of(*share->tenant);
    if (share->tenant->sm_mode == SmMode::kEqual)
      ++equal;
    else
      plain += share->tenant->sm_percent;
  }
  std::size_t ready = 0;
  for (const auto& lane : gpu.ready) {
    assert(lane.ordered() && "a lane is in order");
    ready += lane.size();
  }
  assert(gpu.waiting_gangs.size() == gangs && gpu.capped.size() == capped && ready == singles &&
         "no other share is in line");
  assert(gpu.capped.ordered() && "the caps are in order");
  assert(plain == gpu.waiting_plain && equal == gpu.waiting_equal &&
         guaranteed == gpu.waiting_guaranteed && "the line's weights add up");
}

}  // namespace sluice::core
