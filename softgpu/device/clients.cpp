// Clients and memory of a device: registration, accounts, capacity, and what death gives back. See
// device.h.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "softgpu/device/device.h"
#include "softgpu/device/given_files.h"

namespace softgpu::device {
namespace {

/// What is written before this is in memory before what is written after it, as far as a process
/// that may die in between is concerned.
void store_order() { std::atomic_signal_fence(std::memory_order_seq_cst); }

bool holds(const Shared& object, std::uint32_t client) { return bit_get(object.holders, client); }

bool held(const Shared& object) {
  return std::any_of(std::begin(object.holders), std::end(object.holders),
                     [](std::uint64_t word) { return word != 0; });
}

bool held_by_another(const Shared& object, std::uint32_t client) {
  Shared others = object;
  bit_clear(others.holders, client);
  return held(others);
}

bool held_by_descriptor(const Shared& object, GivenFiles& files) {
  return object.given != 0 && files.has(object.inode);
}

/// The free place with the fewest objects of an earlier process that are still held.
std::uint32_t client_place(const Segment& segment) {
  std::uint32_t best = kNone;
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    if (segment.clients[client].life != 0) continue;
    if (best == kNone || segment.shared_ends[client] < segment.shared_ends[best]) best = client;
  }
  return best;
}

}  // namespace

std::uint32_t Device::client_open() {
  const std::uint32_t life = lives_->own();
  if (life == kLifeUntold) return kNone;
  const int pid = getpid();
  const ProcessName self = process_named(pid);
  const std::uint64_t ticks = process_start_ticks(pid);
  const std::string name = process_name(pid);
  const Lock lock(*this);
  reap_locked();
  const std::uint32_t client = place_locked();
  if (client == kNone) return kNone;
  Account fresh;
  fresh.pid = self.pid;
  fresh.space = self.space;
  fresh.start_ticks = ticks;
  fresh.opened_ns = fresh.needed_ns = segment_->now_ns;
  std::memcpy(fresh.name, name.data(), std::min(name.size(), sizeof fresh.name - 1));
  for (auto& window : segment_->window_client_ns) window[client] = 0;
  Account& account = segment_->clients[client];
  account = fresh;
  store_order();
  account.life = life;  // last: before it the slot is free
  return client;
}

void Device::client_close(std::uint32_t client) {
  const Lock lock(*this);
  if (own_locked(client)) drop_locked(client);
}

bool Device::client_need(std::uint32_t client) {
  const Lock lock(*this);
  if (!own_locked(client)) return false;
  segment_->clients[client].needed_ns = segment_->now_ns;
  return true;
}

/// Whether the client has nothing on the device and is not about to take something.
bool Device::rests_locked(std::uint32_t client) const {
  const Account& account = segment_->clients[client];
  if (account.contexts != 0 || account.memory_bytes != 0 || account.suspended_bytes != 0 ||
      segment_->now_ns - account.needed_ns < kTakeNs)
    return false;
  bool has = false;
  for (std::uint32_t i = 0; i < kQueuesEach; ++i)
    has = has || queue_taken(*segment_, client * kQueuesEach + i);
  shared_each(*segment_, [&](const Shared& object) { has = has || holds(object, client); });
  return !has;
}

/// A free place; without one, that of the client that has rested longest.
std::uint32_t Device::place_locked() {
  const std::uint32_t free = client_place(*segment_);
  if (free != kNone) return free;
  std::uint32_t best = kNone;
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    const bool older =
        best == kNone || segment_->clients[client].needed_ns < segment_->clients[best].needed_ns;
    if (older && rests_locked(client)) best = client;
  }
  if (best != kNone) drop_locked(best);
  return best;
}

std::optional<Account> Device::client_of(std::uint32_t life) {
  const Lock lock(*this);
  const auto* found = std::find_if(std::begin(segment_->clients), std::end(segment_->clients),
                                   [life](const Account& a) { return a.life == life; });
  if (life == 0 || found == std::end(segment_->clients) || lives_->ended(life)) return std::nullopt;
  return *found;
}

void Device::drop_locked(std::uint32_t client) {
  Account& account = segment_->clients[client];
  if (account.life == 0) return;
  for (std::uint32_t i = 0; i < kQueuesEach; ++i)
    if (queue_taken(*segment_, client * kQueuesEach + i))
      queue_drop_locked(client * kQueuesEach + i);
  GivenFiles files;
  shared_each(*segment_, [&](Shared& object) { shared_drop_locked(object, client, files); });
  ended_add_locked(client);
  account.memory_bytes = account.suspended_bytes = account.contexts = 0;
  store_order();
  account.life = 0;
}

/// Once, even if whoever did it before died between this and freeing the slot.
void Device::ended_add_locked(std::uint32_t client) {
  const Account& account = segment_->clients[client];
  const std::uint64_t count = segment_->ended_count;
  const std::uint64_t kept = std::min<std::uint64_t>(count, kClientsMax);
  for (std::uint64_t i = count - kept; i < count; ++i) {
    const Account& known = segment_->ended[i % kEndedMax];
    if (known.life == account.life && known.opened_ns == account.opened_ns) return;
  }
  forget_locked();
  Account& ended = segment_->ended[count % kEndedMax];
  ended = account;
  ended.memory_bytes = ended.suspended_bytes = 0;
  ended.ended_ns = segment_->now_ns;
  store_order();
  segment_->ended_count = count + 1;
}

/// Makes room for the next ended account by adding the oldest to the sum of the forgotten.
void Device::forget_locked() {
  const std::uint64_t forgotten = segment_->forgotten_count;
  if (segment_->ended_count < kEndedMax || forgotten + kEndedMax > segment_->ended_count) return;
  const Account& oldest = segment_->ended[forgotten % kEndedMax];
  Account& sum = segment_->forgotten[(forgotten + 1) % 2];
  sum = segment_->forgotten[forgotten % 2];
  sum.busy_ns += oldest.busy_ns;
  sum.sm_ns += oldest.sm_ns;
  sum.lag_ns += oldest.lag_ns;
  sum.copy_ns += oldest.copy_ns;
  sum.launches += oldest.launches;
  store_order();
  segment_->forgotten_count = forgotten + 1;
}

void Device::reap_locked() {
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    const std::uint32_t life = segment_->clients[client].life;
    if (life == 0 || !lives_->ended(life)) continue;
    alarm_sound(*segment_);  // a process that was taken for dead by mistake finds out
    drop_locked(client);
  }
  given_reap_locked();
}

/// What descriptors alone held is gone with the last of them.
void Device::given_reap_locked() {
  GivenFiles files;
  shared_each(*segment_, [&](Shared& object) {
    if (!held(object) && !held_by_descriptor(object, files)) shared_free_locked(object);
  });
}

std::uint64_t Device::used_locked() const {
  std::uint64_t used = 0;
  for (const Account& account : segment_->clients)
    if (account.life != 0) used += account.memory_bytes;
  shared_each(*segment_, [&](const Shared& object) { used += object.bytes; });
  return used;
}

bool Device::fits_locked(std::uint64_t bytes) {
  const auto fits = [&] {
    const std::uint64_t used = used_locked();
    return used <= segment_->memory_bytes && bytes <= segment_->memory_bytes - used;
  };
  if (fits()) return true;
  reap_locked();
  return fits();
}

/// After anything that takes memory. The dead hold nothing, also where nobody has noticed yet.
void Device::peak_note_locked() {
  if (used_locked() <= segment_->memory_peak_bytes) return;
  reap_locked();
  segment_->memory_peak_bytes = std::max(segment_->memory_peak_bytes, used_locked());
}

bool Device::context_take(std::uint32_t client) {
  const Lock lock(*this);
  if (!take_locked(client, segment_->context_bytes)) return false;
  ++segment_->clients[client].contexts;
  return true;
}

void Device::context_give(std::uint32_t client) {
  const Lock lock(*this);
  give_locked(client, segment_->context_bytes);
  if (own_locked(client) && segment_->clients[client].contexts > 0)
    --segment_->clients[client].contexts;
}

bool Device::memory_take(std::uint32_t client, std::uint64_t bytes) {
  const Lock lock(*this);
  return take_locked(client, bytes);
}

bool Device::take_locked(std::uint32_t client, std::uint64_t bytes) {
  if (!own_locked(client) || refused_locked(client) || !fits_locked(bytes)) return false;
  Account& account = segment_->clients[client];
  account.memory_bytes += bytes;
  account.memory_peak_bytes = std::max(account.memory_peak_bytes, account.memory_bytes);
  peak_note_locked();
  return true;
}

void Device::memory_give(std::uint32_t client, std::uint64_t bytes) {
  const Lock lock(*this);
  give_locked(client, bytes);
}

void Device::give_locked(std::uint32_t client, std::uint64_t bytes) {
  if (!own_locked(client)) return;
  Account& account = segment_->clients[client];
  account.memory_bytes -= std::min(bytes, account.memory_bytes);
}

bool Device::shared_create(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes) {
  const Lock lock(*this);
  if (!own_locked(client) || refused_locked(client) || !fits_locked(bytes) ||
      !shared_add_locked(client, inode, bytes))
    return false;
  peak_note_locked();
  return true;
}

bool Device::shared_adopt(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes) {
  const Lock lock(*this);
  if (!own_locked(client) || !shared_add_locked(client, inode, bytes)) return false;
  // Who dies between the two takes both charges with it.
  Account& account = segment_->clients[client];
  account.memory_bytes -= std::min(bytes, account.memory_bytes);
  return true;
}

Shared* Device::shared_find_locked(std::uint64_t inode) {
  Shared* found = nullptr;
  shared_each(*segment_, [&](Shared& object) {
    if (object.inode == inode) found = &object;
  });
  return found;
}

/// A free place in the client's part; nullptr if there is none.
Shared* Device::shared_place_locked(std::uint32_t client) {
  Shared* const part = segment_->shared + client * kSharedEach;
  Shared* const place = std::find_if(part, part + kSharedEach,
                                     [](const Shared& object) { return object.inode == 0; });
  if (place == part + kSharedEach) return nullptr;
  std::uint32_t& end = segment_->shared_ends[client];
  end = std::max(end, static_cast<std::uint32_t>(place - part) + 1);
  *place = Shared{};
  return place;
}

bool Device::shared_add_locked(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes) {
  Shared* const object = shared_place_locked(client);
  if (object == nullptr) return false;
  object->bytes = bytes;
  object->owner = client;
  bit_set(object->holders, client);
  holds_[inode] = 1;
  store_order();
  object->inode = inode;
  return true;
}

void Device::shared_free_locked(Shared& object) {
  object.inode = 0;
  const auto place = static_cast<std::uint32_t>(&object - segment_->shared);
  const Shared* const part = segment_->shared + place / kSharedEach * kSharedEach;
  std::uint32_t& end = segment_->shared_ends[place / kSharedEach];
  end = std::min(end, kSharedEach);
  while (end > 0 && part[end - 1].inode == 0) --end;
}

bool Device::shared_join(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes) {
  const Lock lock(*this);
  if (!own_locked(client)) return false;
  if (shared_hold_locked(client, inode)) return true;
  if (!fits_locked(bytes) || !shared_add_locked(client, inode, bytes)) return false;
  peak_note_locked();
  return true;
}

bool Device::shared_hold(std::uint32_t client, std::uint64_t inode) {
  const Lock lock(*this);
  return own_locked(client) && shared_hold_locked(client, inode);
}

bool Device::shared_hold_locked(std::uint32_t client, std::uint64_t inode) {
  Shared* const object = shared_find_locked(inode);
  if (object == nullptr) return false;
  holds_[inode] = holds(*object, client) ? holds_[inode] + 1 : 1;
  bit_set(object->holders, client);
  if (!holds(*object, object->owner)) object->owner = client;
  return true;
}

bool Device::shared_release(std::uint32_t client, std::uint64_t inode) {
  const Lock lock(*this);
  reap_locked();  // the dead hold nothing
  Shared* const object = shared_find_locked(inode);
  if (object == nullptr) return true;
  if (!own_locked(client)) return false;
  if (std::uint32_t& count = holds_[inode]; holds(*object, client) && count > 1) {
    --count;
    return false;
  }
  holds_.erase(inode);
  GivenFiles files;
  shared_drop_locked(*object, client, files);
  return object->inode == 0;
}

void Device::shared_give(std::uint64_t inode) {
  const Lock lock(*this);
  if (Shared* const object = shared_find_locked(inode)) object->given = 1;
}

void Device::shared_drop_locked(Shared& object, std::uint32_t client, GivenFiles& files) {
  if (!holds(object, client)) return;
  bit_clear(object.holders, client);
  bits_each(object.holders, kClientsMax / 64, [&](std::uint32_t other) {
    if (!holds(object, object.owner)) object.owner = other;
  });
  if (held(object)) return;
  if (!held_by_descriptor(object, files)) shared_free_locked(object);
}

void Device::client_suspend(std::uint32_t client) {
  const Lock lock(*this);
  if (!own_locked(client)) return;
  Account& account = segment_->clients[client];
  account.suspended = 1;
  account.suspended_bytes += account.memory_bytes;
  account.memory_bytes = 0;
  shared_each(*segment_, [&](Shared& object) {
    if (!holds(object, client)) return;
    object.suspended_bytes += object.bytes;
    object.bytes = 0;
  });
}

bool Device::client_resume(std::uint32_t client) {
  const Lock lock(*this);
  if (!own_locked(client)) return false;
  Account& account = segment_->clients[client];
  std::uint64_t need = account.suspended_bytes;
  shared_each(*segment_, [&](const Shared& object) {
    if (holds(object, client)) need += object.suspended_bytes;
  });
  if (!fits_locked(need)) return false;
  account.memory_bytes += account.suspended_bytes;
  account.suspended_bytes = 0;
  shared_each(*segment_, [&](Shared& object) {
    if (!holds(object, client)) return;
    object.bytes += object.suspended_bytes;
    object.suspended_bytes = 0;
  });
  account.suspended = 0;
  peak_note_locked();
  return true;
}

bool Device::client_shares(std::uint32_t client) {
  const Lock lock(*this);
  bool shares = false;
  shared_each(*segment_, [&](const Shared& object) {
    shares = shares || (holds(object, client) && held_by_another(object, client));
  });
  return shares;
}

bool Device::client_move(Device& from, std::uint32_t from_client, Device& to,
                         std::uint32_t to_client) {
  std::uint64_t bytes = 0;
  std::uint32_t contexts = 0;
  std::vector<Shared> objects;
  {
    const Lock lock(from);
    bytes = from.segment_->clients[from_client].suspended_bytes;
    contexts = from.segment_->clients[from_client].contexts;
    shared_each(*from.segment_, [&](const Shared& object) {
      if (holds(object, from_client)) objects.push_back(object);
    });
  }
  const Lock lock(to);
  to.segment_->clients[to_client].suspended = 1;
  to.segment_->clients[to_client].contexts = contexts;
  to.segment_->clients[to_client].suspended_bytes = bytes;
  for (const Shared& object : objects) {
    Shared* const place = to.shared_place_locked(to_client);
    if (place == nullptr) return false;
    place->suspended_bytes = object.suspended_bytes;
    place->given = object.given;
    place->owner = to_client;
    bit_set(place->holders, to_client);
    store_order();
    place->inode = object.inode;
  }
  return true;
}

std::uint64_t Device::used_bytes() {
  const Lock lock(*this);
  reap_locked();
  return used_locked();
}

std::uint32_t Device::users() {
  const Lock lock(*this);
  reap_locked();
  return static_cast<std::uint32_t>(std::count_if(std::begin(segment_->clients),
                                                  std::end(segment_->clients),
                                                  [](const Account& a) { return a.life != 0; }));
}

}  // namespace softgpu::device
