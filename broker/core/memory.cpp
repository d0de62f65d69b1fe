// What is known of the memory of the GPUs.
//
// The claims are the tenants' own word, read now and then: they may be old, wrong, or lies, and
// there may be programs on the GPU that make none. So they only guide: the driver decides whether
// an allocation fits, and where its answer surprises, something hidden is believed to be there for
// a while, so that the next try makes more room than this one. A claim counts for no more than the
// highest quota that its tenant ever had: who boasts cannot keep more room from others than it may
// have anyway.
#include "broker/core/memory.h"

#include <algorithm>
#include <cassert>

#include "broker/core/stay.h"

namespace sluice::core {
namespace {

constexpr Nanos kLookPatienceNs = 1'000'000;  // an answer that takes longer is not waited for

/// Lowers a promise beyond a lowered quota to what the tenant's claims show that it holds.
void excess_settle(State& state, Tenant& tenant, Nanos now) {
  if (tenant.memory_most == tenant.memory_max || !tenant.charged) return;
  Bytes most = tenant.memory_max;
  for (const Share& share : tenant.shares) {
    if (share.memory_seen_at < tenant.lowered_at) return;
    most = std::max(most, share.held);
  }
  if (most >= tenant.memory_most) return;
  tenant.memory_most = most;
  tenant_rebook(state, tenant, tenant.sm_kind, tenant.sm_percent, tenant.memory_max,
                tenant.memory_min, now);
  state.queue_dirty = true;
}

}  // namespace

Bytes share_on_gpu(const Share& share) {
  const Tenant& tenant = *share.tenant;
  switch (tenant.residence) {
    case Residence::kIn:
    case Residence::kLeaving:
    case Residence::kSwappingIn:  // what is on its way back has its room
      return share.held;
    case Residence::kHeld:
    case Residence::kSwappingOut:
    case Residence::kCheckpointing:
    case Residence::kOut:
      return tenant.frozen ? share.left : share.held - share.swapped;
    case Residence::kRestoring:
      return share.held - share.swapped;
  }
  return share.held;
}

Bytes share_movable(const Share& share) { return share.movable - share.swapped; }

Bytes share_freezable(const Share& share) { return share.held - share.left; }

Bytes share_return(const Share& share) { return share.held - share_on_gpu(share); }

Bytes share_claim(const Share& share, Nanos now) {
  if (share.claim == 0 || now >= share.claim_until) return 0;
  const Bytes grown = share.held > share.claim_held ? share.held - share.claim_held : 0;
  return share.claim > grown ? share.claim - grown : 0;
}

Room gpu_free(const Gpu& gpu, Nanos now) {
  Bytes taken = gpu.returning + (now < gpu.hidden_until ? gpu.hidden : 0);
  gpu_shares_each(
      gpu, [&](const Share& share) { taken += share_on_gpu(share) + share_claim(share, now); });
  return static_cast<Room>(gpu.capacity) - static_cast<Room>(taken);
}

void gpu_surprise(const State& state, Gpu& gpu, Bytes bytes, Nanos now) {
  constexpr Nanos kBelievedQuanta = 2;
  constexpr Nanos kBelievedMinNs = 10'000'000;  // of a policy without a swap quantum
  const Room free = gpu_free(gpu, now);
  if (free < static_cast<Room>(bytes)) return;  // no surprise
  const Bytes known = now < gpu.hidden_until ? gpu.hidden : 0;
  gpu.hidden = known + static_cast<Bytes>(free) - bytes + 1;
  gpu.hidden_until = now + std::max(kBelievedQuanta * state.policy.swap_quantum_ns, kBelievedMinNs);
}

bool gpu_look(State& state, Gpu& gpu, Nanos age_max, Nanos now, Actions& out) {
  Nanos oldest = now;
  gpu_shares_each(gpu, [&](const Share& share) {
    if (!share.tenant->processes.empty()) oldest = std::min(oldest, share.memory_seen_at);
  });
  if (oldest + age_max >= now) return true;
  const bool asked = gpu.looked_at != kNever && gpu.looked_at + age_max >= now;
  if (asked) return oldest >= gpu.looked_at || now >= gpu.looked_at + kLookPatienceNs;
  gpu.looked_at = now;
  state.room_at = std::min(state.room_at, now + kLookPatienceNs);
  out.emplace_back(MemoryLookWanted{gpu.uuid});
  return false;
}

Nanos gpu_look_at(const Gpu& gpu, Nanos now) {
  if (gpu.looked_at == kNever) return kNever;
  const Nanos at = gpu.looked_at + kLookPatienceNs;
  return at > now ? at : kNever;
}

void memory_seen(State& state, const MemorySeen& event, Nanos now) {
  Tenant* tenant = tenant_find(state, event.tenant);
  if (tenant == nullptr || event.gpu_index >= tenant->shares.size()) return;
  Share& share = tenant->shares[event.gpu_index];
  const Bytes most = std::max(tenant->quota_most, state.gpus[share.gpu]->context_bytes);
  share.held = std::min(event.held, most);
  share.movable = std::min(event.movable, share.held);
  share.swapped = std::min(event.swapped, share.movable);
  share.left = std::min(event.left, share.held - share.swapped);
  share.memory_seen_at = now;
  if (!share.booked && (tenant->exclusive() || tenant->vacated)) state.queue_dirty = true;
  excess_settle(state, *tenant, now);
  state.room_dirty = true;
  if (!tenant->restored || share.swapped == 0 || tenant->residence != Residence::kIn) return;
  tenant->restored = false;  // once: what it says of itself later is its own affair
  tenant->victim = true;
  tenant->due_back = true;
  stay_look(state, *tenant);
}

Bytes host_room(const State& state, std::uint32_t uid) {
  const Bytes most = state.policy.swap_host_bytes_per_user;
  if (most == 0) return ~Bytes{0} / 2;
  auto it = state.users.find(uid);
  const Bytes used = it == state.users.end() ? 0 : it->second.host_bytes;
  return most > used ? most - used : 0;
}

void host_charge(State& state, Share& share, Bytes bytes) {
  if (share.host_bytes == bytes) return;
  const std::uint32_t uid = share.tenant->uid;
  UserCount& user = state.users[uid];
  assert(user.host_bytes >= share.host_bytes && "host memory is returned once");
  user.host_bytes = user.host_bytes - share.host_bytes + bytes;
  share.host_bytes = bytes;
  user_forget(state, uid);
}

}  // namespace sluice::core
