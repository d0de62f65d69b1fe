// Whether a shim is believed that the driver has no room.
//
// Where the claims show no room either there is nothing to believe. Where they show room, the shim
// may be right: a program that makes no claims has it, or it lies in pieces. Or it lies, and wants
// its neighbours moved for memory that it never allocates. So the device is asked first. If its
// figure shows no room, the shim is believed. If it shows room, the answer is that there is room,
// and nothing is kept for it.
//
// A shim that comes again right after that answer says that the room lies in pieces. No figure
// tells this from a lie. It is believed once in ten swap quanta for each user and GPU, and as long
// as it comes again right after each grant, until there is nothing left to be moved. Before the
// next time it is sent to the driver ten times a second. So a program on a GPU in pieces gets its
// memory or its error in the end, and a liar has each neighbour moved once in ten quanta, however
// many jobs it has, and for as long as an unused grant lasts. A device without a figure is treated
// as one that has its room in pieces.
#include "broker/core/refusal.h"

#include <algorithm>

#include "broker/core/memory.h"
#include "broker/core/returning.h"

namespace sluice::core {
namespace {

constexpr Nanos kFigurePatienceNs = 20'000'000;
constexpr Nanos kBelievedAgainQuanta = 10;
constexpr Nanos kBelievedAgainMinNs = 100'000'000;  // of a policy without a swap quantum

bool has_figure(const Gpu& gpu) { return gpu.used_at != kNever; }

bool figure_awaited(const Gpu& gpu, const Want& want, Nanos now) {
  return has_figure(gpu) && gpu.used_at < want.came_at && now < want.came_at + kFigurePatienceNs;
}

void figure_ask(State& state, Gpu& gpu, const Want& want, Nanos now, Actions& out) {
  state.room_at = std::min(state.room_at, want.came_at + kFigurePatienceNs);
  if (now < gpu.device_look_at) return;
  gpu.device_look_at = now + kDeviceLookNs;
  out.emplace_back(DeviceLookWanted{gpu.uuid});
}

/// Something is believed to be hidden there for another reason than this user's word.
bool hidden_by_others(const Gpu& gpu, std::uint32_t uid, Nanos now) {
  const auto found = gpu.beliefs.find(uid);
  const bool own = found != gpu.beliefs.end() && now < found->second.until;
  return now < gpu.hidden_until && !own;
}

bool may_believe(const State& state, Gpu& gpu, std::uint32_t uid, Nanos now) {
  const Nanos period =
      std::max(kBelievedAgainQuanta * state.policy.swap_quantum_ns, kBelievedAgainMinNs);
  std::erase_if(gpu.beliefs, [&](const auto& entry) {
    return now >= std::max(entry.second.at + period, entry.second.until);
  });
  const auto found = gpu.beliefs.find(uid);
  return found == gpu.beliefs.end() || now < found->second.until;
}

}  // namespace

void refusal_note(Want& want, const Share& share, const Gpu& gpu, Nanos now) {
  want.came_at = now;
  want.doubted = gpu_free(gpu, now) >= static_cast<Room>(want.bytes);
  want.again = now < share.told_room_until;
}

Refusal refusal_judge(State& state, Gpu& gpu, Want& want, std::uint32_t uid, Nanos now,
                      Actions& out) {
  if (gpu_free(gpu, now) < static_cast<Room>(want.bytes)) want.doubted = false;  // by now
  if (!want.doubted) return Refusal::kSettled;
  if (figure_awaited(gpu, want, now)) {
    figure_ask(state, gpu, want, now, out);
    return Refusal::kUnproven;
  }
  const bool known = has_figure(gpu) && gpu.used_at >= want.came_at;
  const bool shows_room = known && gpu.used + want.bytes <= gpu.size;
  if (shows_room && !want.again) return Refusal::kUntrue;
  const bool proven = known && !shows_room;
  if (proven || may_believe(state, gpu, uid, now)) {
    want.doubted = false;
    want.unproven = !proven && !hidden_by_others(gpu, uid, now);
    gpu_surprise(state, gpu, want.bytes, now);
    if (!proven) gpu.beliefs[uid] = {now, gpu.hidden_until};
    return Refusal::kSettled;
  }
  if (now >= want.came_at + kLookAgainNs) return Refusal::kUntrue;
  state.room_at = std::min(state.room_at, want.came_at + kLookAgainNs);
  return Refusal::kUnproven;
}

void refusal_answered(Gpu& gpu, const Want& want, Share& share, bool none, Nanos now) {
  share.told_room_until = none ? now : now + kClaimNs;
  if (!want.unproven) return;
  gpu.hidden_until = std::min(gpu.hidden_until, share.told_room_until);
  gpu.beliefs[share.tenant->uid].until = share.told_room_until;
}

}  // namespace sluice::core
