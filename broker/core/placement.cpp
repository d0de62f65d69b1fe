// Where a request fits.
//
// Memory admits. On each GPU the sum of what is guaranteed is at most its capacity (never
// oversold), and the sum of memory_max at most oversell_memory times it. Guaranteed is the
// memory_max of a tenant whose memory stays where it is, the memory_min of a swappable one. What a
// tenant holds beyond a quota that was lowered stays guaranteed until it is back. And beside all
// that there is room to fill the largest swappable quota, so that each swappable tenant can have
// all it was granted when its turn comes. GPU time is admitted likewise: the shares that are
// guaranteed on a GPU add up to 100 % at most. An exclusive request needs GPUs without any tenant,
// or on which all have stepped aside for it.
//
// Which of the GPUs that have room: a tenant with one GPU is spread or packed, as its class says.
// Spread: where least is promised, then where least has happened lately, so that tenants get in
// each other's way as little as can be. Packed: where least room is left, so that large requests
// keep finding some. Tenants with several GPUs and whole-GPU use are packed, onto GPUs that are in
// use already where there is a choice, so that whole GPUs stay free.
#include "broker/core/placement.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "broker/core/aside.h"
#include "broker/core/memory.h"

namespace sluice::core {
namespace {

bool gpu_named(const TenantAsked& ask, const GpuUuid& uuid) {
  return ask.pinned.empty() || std::ranges::find(ask.pinned, uuid) != ask.pinned.end();
}

enum class Fit : std::uint8_t { kNo, kButForShare, kYes };

Fit gpu_fits(const State& state, const Gpu& gpu, const TenantAsked& ask) {
  if (gpu.lost || gpu.closed_to_new) return Fit::kNo;
  if (ask.tenant_class == TenantClass::kExclusive)
    return gpu.returning == 0 && (gpu.shares.empty() || aside_clear(gpu)) ? Fit::kYes : Fit::kNo;
  if (gpu.exclusive() || !promise_fits(state, gpu, ask)) return Fit::kNo;
  return share_fits(gpu, ask.sm_kind, ask.sm_percent) ? Fit::kYes : Fit::kButForShare;
}

/// Tenants that are in the way of an exclusive request and do not make room yet.
std::size_t gpu_company(const Gpu& gpu) {
  return static_cast<std::size_t>(std::ranges::count_if(gpu.shares, [](const Share* share) {
    return !share->tenant->steps_aside && !aside_goes(*share->tenant);
  }));
}

Bytes gpu_room(const Gpu& gpu) {
  const Bytes taken = gpu.promised_min + gpu.returning + gpu_left(gpu);
  return gpu.exclusive() || taken > gpu.capacity ? 0 : gpu.capacity - taken;
}

/// Keeps the first `count` in the order of `better`; ties go to the lower index, so that the result
/// is repeatable.
template <class Better>
void first_of(std::vector<std::uint32_t>& list, std::size_t count, Better better) {
  std::ranges::sort(list, [&](std::uint32_t a, std::uint32_t b) {
    return better(a, b) || (!better(b, a) && a < b);
  });
  if (list.size() > count) list.resize(count);
}

QueueReason why_not(const State& state, const TenantAsked& ask,
                    const std::vector<std::uint32_t>& candidates, std::size_t fitting,
                    std::size_t kept, std::size_t but_for_share) {
  if (fitting + kept >= ask.gpu_count) return QueueReason::kPriority;
  if (ask.tenant_class == TenantClass::kExclusive) return QueueReason::kDrain;
  const auto whole = std::ranges::count_if(candidates, [&](std::uint32_t g) {
    return state.gpus[g]->exclusive() || state.gpus[g]->closed_to_new;
  });
  if (candidates.size() - static_cast<std::size_t>(whole) < ask.gpu_count)
    return QueueReason::kDrain;
  if (fitting + kept + but_for_share >= ask.gpu_count) return QueueReason::kShare;
  return ask.gpu_count > 1 && fitting + kept > 0 ? QueueReason::kGang : QueueReason::kResources;
}

}  // namespace

Bytes spread_max(const Gpu& gpu, const Tenant* except) {
  Bytes most = 0;
  if (gpu.swap_count == 0) return most;
  for (const Share* share : gpu.shares)
    if (share->tenant->swap && share->tenant != except)
      most = std::max(most, share->tenant->memory_most - share->tenant->promised);
  return most;
}

bool promise_fits(const State& state, const Gpu& gpu, bool swap, Bytes memory_max, Bytes memory_min,
                  TenantId returns) {
  const Bytes promise = swap ? memory_min : memory_max;
  const Bytes spread = std::max(spread_max(gpu), memory_max - std::min(promise, memory_max));
  return gpu.promised_min + gpu.returning + gpu_left(gpu, returns) + promise + spread <=
             gpu.capacity &&
         gpu.promised_max + memory_max <= gpu.limit_max(state.policy.oversell_memory);
}

bool lacks_only_share(const State& state, const Gpu& gpu, const TenantAsked& ask) {
  return gpu_fits(state, gpu, ask) == Fit::kButForShare;
}

std::vector<std::uint32_t> placement_candidates(const State& state, const TenantAsked& ask) {
  std::vector<std::uint32_t> list;
  list.reserve(state.gpus.size());
  for (std::uint32_t g = 0; g < state.gpus.size(); ++g) {
    const Gpu& gpu = *state.gpus[g];
    if (gpu.lost || !gpu_named(ask, gpu.uuid)) continue;
    const bool whole = ask.tenant_class == TenantClass::kExclusive;
    const Bytes most = std::min(gpu.capacity, gpu.limit_max(state.policy.oversell_memory));
    if (whole || (ask.memory_max >= gpu.context_bytes && ask.memory_max <= most)) list.push_back(g);
  }
  return list;
}

namespace {

/// What is left to promise on each GPU.
std::vector<Bytes> rooms_of(const State& state) {
  std::vector<Bytes> rooms;
  rooms.reserve(state.gpus.size());
  for (const auto& gpu : state.gpus) rooms.push_back(gpu_room(*gpu));
  return rooms;
}

/// Where a GPU stands; the least is the first choice.
using Standing = std::array<double, 4>;

Standing standing_spread(const Gpu& gpu, Bytes room) {
  // In tenths: a GPU whose tenant paused for a moment is not idle.
  return {static_cast<double>(gpu.guaranteed), std::round(gpu.load * 10), weights_asked(gpu),
          -static_cast<double>(room)};
}

bool spread_out(const State& state, TenantClass tenant_class, std::uint32_t gpu_count) {
  const ClassPolicy& policy = state.policy.classes[static_cast<std::size_t>(tenant_class)];
  return tenant_class != TenantClass::kExclusive && gpu_count == 1 &&
         policy.placement == PlacementRule::kSpread;
}

bool spread_out(const State& state, const TenantAsked& ask) {
  return spread_out(state, ask.tenant_class, ask.gpu_count);
}

void fitting_order(const State& state, const TenantAsked& ask, const std::vector<Bytes>& rooms,
                   std::vector<std::uint32_t>& list) {
  if (!spread_out(state, ask)) {
    const bool gang = ask.gpu_count > 1;
    first_of(list, list.size(), [&](std::uint32_t a, std::uint32_t b) {
      const bool breaks_up_a = gang && state.gpus[a]->shares.empty();
      const bool breaks_up_b = gang && state.gpus[b]->shares.empty();
      return breaks_up_a != breaks_up_b ? breaks_up_b : rooms[a] < rooms[b];
    });
    return;
  }
  std::vector<Standing> standings(state.gpus.size());
  for (const std::uint32_t g : list) standings[g] = standing_spread(*state.gpus[g], rooms[g]);
  first_of(list, list.size(),
           [&](std::uint32_t a, std::uint32_t b) { return standings[a] < standings[b]; });
}

Fitting fitting_find(const State& state, const TenantAsked& ask,
                     const std::vector<std::uint32_t>& candidates,
                     const std::vector<Bytes>& rooms) {
  Fitting fitting;
  for (const std::uint32_t g : candidates) {
    const Fit fit = gpu_fits(state, *state.gpus[g], ask);
    if (fit == Fit::kYes) fitting.gpus.push_back(g);
    if (fit != Fit::kButForShare) continue;
    fitting.but_for_share++;
    const int least = fitting.least_guaranteed;
    if (least < 0 ||
        state.gpus[g]->guaranteed < state.gpus[static_cast<std::size_t>(least)]->guaranteed)
      fitting.least_guaranteed = static_cast<int>(g);
  }
  if (fitting.gpus.size() > 1) fitting_order(state, ask, rooms, fitting.gpus);
  return fitting;
}

Placement placement_choose(const State& state, const TenantAsked& ask,
                           const std::vector<std::uint32_t>& candidates, const Fitting& fitting,
                           const GpuFlags& kept) {
  Placement result;
  std::size_t fitting_but_kept = 0;
  for (std::uint32_t g : fitting.gpus) {
    if (kept[g])
      fitting_but_kept++;
    else
      result.gpus.push_back(g);
  }
  if (result.gpus.size() < ask.gpu_count) {
    result.reason = why_not(state, ask, candidates, result.gpus.size(), fitting_but_kept,
                            fitting.but_for_share);
    result.gpus.clear();
    return result;
  }
  result.gpus.resize(ask.gpu_count);
  std::ranges::sort(result.gpus);
  return result;
}

}  // namespace

bool placement_prefers(const State& state, TenantClass tenant_class, std::uint32_t a,
                       std::uint32_t b) {
  const Bytes room_a = gpu_room(*state.gpus[a]);
  const Bytes room_b = gpu_room(*state.gpus[b]);
  if (!spread_out(state, tenant_class, 1)) return room_a < room_b;
  return standing_spread(*state.gpus[a], room_a) < standing_spread(*state.gpus[b], room_b);
}

Placement placement_find(const State& state, const TenantAsked& ask, const GpuFlags& kept) {
  const std::vector<std::uint32_t> candidates = placement_candidates(state, ask);
  return placement_choose(state, ask, candidates,
                          fitting_find(state, ask, candidates, rooms_of(state)), kept);
}

namespace {

/// By how much the guarantees of the GPU would pass 100 %.
std::uint64_t share_missing(const Gpu& gpu, const TenantAsked& ask) {
  return share_fits(gpu, ask.sm_kind, ask.sm_percent) ? 0 : gpu.guaranteed + ask.sm_percent - 100;
}

std::vector<std::uint32_t> plan_make(const State& state, const TenantAsked& ask,
                                     std::vector<std::uint32_t> list,
                                     const std::vector<Bytes>& rooms) {
  // A GPU that is closed to new tenants is waited for only where there are not enough others.
  std::stable_partition(list.begin(), list.end(),
                        [&](std::uint32_t g) { return !state.gpus[g]->closed_to_new; });
  const auto open =
      std::ranges::count_if(list, [&](std::uint32_t g) { return !state.gpus[g]->closed_to_new; });
  if (static_cast<std::size_t>(open) >= ask.gpu_count) list.resize(static_cast<std::size_t>(open));
  if (ask.tenant_class == TenantClass::kExclusive) {
    first_of(list, ask.gpu_count, [&](std::uint32_t a, std::uint32_t b) {
      return gpu_company(*state.gpus[a]) < gpu_company(*state.gpus[b]);
    });
  } else {
    first_of(list, ask.gpu_count, [&](std::uint32_t a, std::uint32_t b) {
      const std::uint64_t over_a = share_missing(*state.gpus[a], ask);
      const std::uint64_t over_b = share_missing(*state.gpus[b], ask);
      return over_a != over_b ? over_a < over_b : rooms[a] > rooms[b];
    });
  }
  return list;
}

int roomiest_of(const std::vector<Bytes>& rooms, const std::vector<std::uint32_t>& candidates) {
  int best = -1;
  Bytes most = 0;
  for (std::uint32_t g : candidates) {
    const Bytes room = rooms[g];
    if (best >= 0 && room <= most) continue;
    best = static_cast<int>(g);
    most = room;
  }
  return best;
}

}  // namespace

Prospects::Kind::Kind(Prospects& of, const TenantAsked& ask) : of_(&of) {
  ask_.tenant_class = ask.tenant_class;
  ask_.memory_max = ask.memory_max;
  ask_.memory_min = ask.memory_min;
  ask_.gpu_count = ask.gpu_count;
  ask_.pinned = ask.pinned;
  ask_.swap = ask.swap;
  ask_.sm_kind = ask.sm_kind;
  ask_.sm_percent = ask.sm_percent;
  ask_.returns = ask.returns;
}

bool Prospects::Kind::fits(const TenantAsked& ask) const {
  if (ask.memory_max != ask_.memory_max || ask.memory_min != ask_.memory_min ||
      ask.gpu_count != ask_.gpu_count || ask.sm_kind != ask_.sm_kind || ask.returns != ask_.returns)
    return false;
  const bool whole = ask.tenant_class == TenantClass::kExclusive;
  const bool same_share = ask.sm_kind == SmKind::kWeight || ask.sm_percent == ask_.sm_percent;
  return whole == (ask_.tenant_class == TenantClass::kExclusive) && same_share &&
         ask.swap == ask_.swap && ask.pinned == ask_.pinned &&
         (ask.tenant_class == ask_.tenant_class ||
          spread_out(of_->state_, ask) == spread_out(of_->state_, ask_));
}

Prospects::Kind& Prospects::kind_of(const TenantAsked& ask) {
  constexpr std::size_t kKindsMax = 16;
  for (Kind& kind : kinds_)
    if (kind.fits(ask)) return kind;
  if (kinds_.size() < kKindsMax) return kinds_.emplace_back(Kind(*this, ask));
  oldest_ = (oldest_ + 1) % kKindsMax;
  return kinds_[oldest_] = Kind(*this, ask);
}

const std::vector<Bytes>& Prospects::rooms() {
  if (rooms_with_ != admitted_) rooms_ = rooms_of(state_);
  rooms_with_ = admitted_;
  return rooms_;
}

void Prospects::Kind::fitting_look() {
  if (fitting_with_ == of_->admitted_) return;
  fitting_with_ = of_->admitted_;
  candidates_ = placement_candidates(of_->state_, ask_);
  fitting_ = fitting_find(of_->state_, ask_, candidates_, of_->rooms());
}

const Placement& Prospects::Kind::find() {
  if (found_with_ == of_->planned_) return found_;
  found_with_ = of_->planned_;
  found_ = find_without(of_->state_.planned);
  return found_;
}

Placement Prospects::Kind::find_without(const GpuFlags& kept) {
  fitting_look();
  return placement_choose(of_->state_, ask_, candidates_, fitting_, kept);
}

void Prospects::Kind::look() {
  if (looked_with_ == of_->admitted_) return;
  looked_with_ = of_->admitted_;
  if (fitting_with_ != of_->admitted_) candidates_ = placement_candidates(of_->state_, ask_);
  plan_ = plan_make(of_->state_, ask_, candidates_, of_->rooms());
  roomiest_ = roomiest_of(of_->rooms(), candidates_);
}

const std::vector<std::uint32_t>& Prospects::Kind::plan() {
  look();
  return plan_;
}

std::vector<std::uint32_t> Prospects::Kind::plan_without(const GpuFlags& kept) {
  look();
  std::vector<std::uint32_t> list = candidates_;
  std::erase_if(list, [&](std::uint32_t g) { return kept[g]; });
  return plan_make(of_->state_, ask_, std::move(list), of_->rooms());
}

int Prospects::Kind::least_guaranteed() {
  fitting_look();
  return fitting_.least_guaranteed;
}

int Prospects::Kind::roomiest() {
  look();
  return roomiest_;
}

}  // namespace sluice::core
