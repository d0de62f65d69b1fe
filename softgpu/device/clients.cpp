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

bool holds(const Shared& object, std::uint32_t client) {
  return std::find(std::begin(object.holders), std::end(object.holders), client + 1) !=
         std::end(object.holders);
}

bool held(const Shared& object) {
  return std::any_of(std::begin(object.holders), std::end(object.holders),
                     [](std::uint32_t holder) { return holder != 0; });
}

bool held_by_descriptor(const Shared& object, GivenFiles& files) {
  return object.given != 0 && files.has(object.inode);
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
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    Account& account = segment_->clients[client];
    if (account.life != 0) continue;
    Account fresh;
    fresh.pid = self.pid;
    fresh.space = self.space;
    fresh.start_ticks = ticks;
    fresh.opened_ns = segment_->now_ns;
    std::memcpy(fresh.name, name.data(), std::min(name.size(), sizeof fresh.name - 1));
    for (auto& window : segment_->window_client_ns) window[client] = 0;
    account = fresh;
    store_order();
    account.life = life;  // last: before it the slot is free
    return client;
  }
  return kNone;
}

void Device::client_close(std::uint32_t client) {
  const Lock lock(*this);
  drop_locked(client);
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
  for (std::uint32_t queue = 0; queue < kQueuesMax; ++queue) {
    Queue& q = segment_->queues[queue];
    if (q.used == 0 || q.client != client) continue;
    segment_->active[queue / 64] &= ~(1ULL << (queue % 64));
    q.head = q.tail;
    q.used = 0;
  }
  for (Shared& object : segment_->shared)
    if (object.inode != 0) shared_drop_locked(object, client, true);
  ended_add_locked(client);
  account.memory_bytes = account.suspended_bytes = 0;
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
  for (Shared& object : segment_->shared)
    if (object.inode != 0 && !held(object) && !held_by_descriptor(object, files)) object.inode = 0;
}

std::uint64_t Device::used_locked() const {
  std::uint64_t used = 0;
  for (const Account& account : segment_->clients)
    if (account.life != 0) used += account.memory_bytes;
  for (const Shared& object : segment_->shared)
    if (object.inode != 0) used += object.bytes;
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

bool Device::memory_take(std::uint32_t client, std::uint64_t bytes) {
  const Lock lock(*this);
  if (refused_locked(client) || !fits_locked(bytes)) return false;
  Account& account = segment_->clients[client];
  account.memory_bytes += bytes;
  account.memory_peak_bytes = std::max(account.memory_peak_bytes, account.memory_bytes);
  peak_note_locked();
  return true;
}

void Device::memory_give(std::uint32_t client, std::uint64_t bytes) {
  const Lock lock(*this);
  Account& account = segment_->clients[client];
  account.memory_bytes -= std::min(bytes, account.memory_bytes);
}

bool Device::shared_create(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes) {
  const Lock lock(*this);
  if (refused_locked(client) || !fits_locked(bytes) || !shared_add_locked(client, inode, bytes))
    return false;
  peak_note_locked();
  return true;
}

bool Device::shared_adopt(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes) {
  const Lock lock(*this);
  if (!shared_add_locked(client, inode, bytes)) return false;
  // Who dies between the two takes both charges with it.
  Account& account = segment_->clients[client];
  account.memory_bytes -= std::min(bytes, account.memory_bytes);
  return true;
}

bool Device::shared_add_locked(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes) {
  for (Shared& object : segment_->shared) {
    if (object.inode != 0) continue;
    object = Shared{};
    object.bytes = bytes;
    object.holders[0] = client + 1;
    object.counts[0] = 1;
    object.inode = inode;
    return true;
  }
  return false;
}

bool Device::shared_join(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes) {
  const Lock lock(*this);
  if (shared_hold_locked(client, inode)) return true;
  const bool known = std::any_of(std::begin(segment_->shared), std::end(segment_->shared),
                                 [inode](const Shared& object) { return object.inode == inode; });
  if (known || !fits_locked(bytes) || !shared_add_locked(client, inode, bytes)) return false;
  peak_note_locked();
  return true;
}

bool Device::shared_hold(std::uint32_t client, std::uint64_t inode) {
  const Lock lock(*this);
  return shared_hold_locked(client, inode);
}

bool Device::shared_hold_locked(std::uint32_t client, std::uint64_t inode) {
  for (Shared& object : segment_->shared) {
    if (object.inode != inode || inode == 0) continue;
    for (std::uint32_t i = 0; i < kHoldersMax; ++i) {
      if (object.holders[i] != client + 1) continue;
      ++object.counts[i];
      return true;
    }
    for (std::uint32_t i = 0; i < kHoldersMax; ++i) {
      if (object.holders[i] != 0) continue;
      object.counts[i] = 1;
      object.holders[i] = client + 1;
      return true;
    }
    return false;
  }
  return false;
}

bool Device::shared_release(std::uint32_t client, std::uint64_t inode) {
  const Lock lock(*this);
  reap_locked();  // the dead hold nothing
  bool gone = true;
  for (Shared& object : segment_->shared) {
    if (object.inode != inode || inode == 0) continue;
    shared_drop_locked(object, client, false);
    gone = object.inode == 0;
  }
  return gone;
}

void Device::shared_give(std::uint64_t inode) {
  const Lock lock(*this);
  for (Shared& object : segment_->shared)
    if (object.inode == inode && inode != 0) object.given = 1;
}

void Device::shared_drop_locked(Shared& object, std::uint32_t client, bool all) {
  for (std::uint32_t i = 0; i < kHoldersMax; ++i)
    if (object.holders[i] == client + 1 && (all || --object.counts[i] == 0)) object.holders[i] = 0;
  if (held(object)) return;
  GivenFiles files;
  if (!held_by_descriptor(object, files)) object.inode = 0;
}

void Device::client_suspend(std::uint32_t client) {
  const Lock lock(*this);
  Account& account = segment_->clients[client];
  account.suspended = 1;
  account.suspended_bytes += account.memory_bytes;
  account.memory_bytes = 0;
  for (Shared& object : segment_->shared) {
    if (object.inode == 0 || !holds(object, client)) continue;
    object.suspended_bytes += object.bytes;
    object.bytes = 0;
  }
}

bool Device::client_resume(std::uint32_t client) {
  const Lock lock(*this);
  Account& account = segment_->clients[client];
  std::uint64_t need = account.suspended_bytes;
  for (const Shared& object : segment_->shared)
    if (object.inode != 0 && holds(object, client)) need += object.suspended_bytes;
  if (!fits_locked(need)) return false;
  account.memory_bytes += account.suspended_bytes;
  account.suspended_bytes = 0;
  for (Shared& object : segment_->shared) {
    if (object.inode == 0 || !holds(object, client)) continue;
    object.bytes += object.suspended_bytes;
    object.suspended_bytes = 0;
  }
  account.suspended = 0;
  peak_note_locked();
  return true;
}

bool Device::client_shares(std::uint32_t client) {
  const Lock lock(*this);
  return std::any_of(
      std::begin(segment_->shared), std::end(segment_->shared), [&](const Shared& object) {
        return object.inode != 0 && holds(object, client) &&
               std::any_of(std::begin(object.holders), std::end(object.holders),
                           [&](std::uint32_t h) { return h != 0 && h != client + 1; });
      });
}

bool Device::client_move(Device& from, std::uint32_t from_client, Device& to,
                         std::uint32_t to_client) {
  std::uint64_t bytes = 0;
  std::vector<Shared> objects;
  {
    const Lock lock(from);
    bytes = from.segment_->clients[from_client].suspended_bytes;
    for (const Shared& object : from.segment_->shared)
      if (object.inode != 0 && holds(object, from_client)) objects.push_back(object);
  }
  const Lock lock(to);
  to.segment_->clients[to_client].suspended = 1;
  to.segment_->clients[to_client].suspended_bytes = bytes;
  for (const Shared& object : objects) {
    auto* place = std::find_if(std::begin(to.segment_->shared), std::end(to.segment_->shared),
                               [](const Shared& s) { return s.inode == 0; });
    if (place == std::end(to.segment_->shared)) return false;
    *place = Shared{};
    place->suspended_bytes = object.suspended_bytes;
    place->given = object.given;
    place->holders[0] = to_client + 1;
    place->counts[0] = 1;
    for (std::uint32_t i = 0; i < kHoldersMax; ++i)
      if (object.holders[i] == from_client + 1) place->counts[0] = object.counts[i];
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
