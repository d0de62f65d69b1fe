// Clients and memory of a device: registration, accounts, capacity, and what death gives back. See
// device.h.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softgpu/device/device.h"

namespace softgpu::device {

Lock::Lock(Device& device) : device_(device) {
  Segment& segment = *device_.segment_;
  const int status = pthread_mutex_lock(&segment.mutex);
  if (status == EOWNERDEAD) {
    pthread_mutex_consistent(&segment.mutex);
    device_.reap_locked();
    for (std::uint32_t queue = 0; queue < kQueuesMax; ++queue) {  // the bit may not match the queue
      const Queue& q = segment.queues[queue];
      const std::uint64_t bit = 1ULL << (queue % 64);
      if (q.used != 0 && q.head != q.tail)
        segment.active[queue / 64] |= bit;
      else
        segment.active[queue / 64] &= ~bit;
    }
  }
  model_advance(segment, clock_ns());
}

Lock::~Lock() { pthread_mutex_unlock(&device_.segment_->mutex); }

std::uint32_t Device::client_open() {
  const int pid = getpid();
  const Lock lock(*this);
  reap_locked();
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    Account& account = segment_->clients[client];
    if (account.pid != 0) continue;
    Account fresh;
    fresh.generation = account.generation + 1;
    fresh.start_ticks = process_start_ticks(pid);
    fresh.opened_ns = segment_->now_ns;
    const std::string name = process_name(pid);
    std::memcpy(fresh.name, name.data(), std::min(name.size(), sizeof fresh.name - 1));
    account = fresh;
    account.pid = pid;  // last: before it the slot is free
    return client;
  }
  return kNone;
}

void Device::client_close(std::uint32_t client) {
  const Lock lock(*this);
  drop_locked(client);
}

void Device::drop_locked(std::uint32_t client) {
  Account& account = segment_->clients[client];
  if (account.pid == 0) return;
  for (std::uint32_t queue = 0; queue < kQueuesMax; ++queue) {
    Queue& q = segment_->queues[queue];
    if (q.used == 0 || q.client != client) continue;
    segment_->active[queue / 64] &= ~(1ULL << (queue % 64));
    q.head = q.tail;
    q.used = 0;
  }
  for (Shared& object : segment_->shared)
    if (object.inode != 0) shared_drop_locked(object, client, true);
  Account& ended = segment_->ended[segment_->ended_next % kEndedMax];
  ended = account;
  ended.memory_bytes = 0;
  ++segment_->ended_next;
  ++segment_->ended_count;
  account.memory_bytes = 0;
  account.pid = 0;
}

void Device::reap_locked() {
  const int self = getpid();
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    const Account& account = segment_->clients[client];
    if (account.pid == 0 || account.pid == self) continue;
    if (process_start_ticks(account.pid) != account.start_ticks) drop_locked(client);
  }
}

std::uint64_t Device::used_locked() const {
  std::uint64_t used = 0;
  for (const Account& account : segment_->clients)
    if (account.pid != 0) used += account.memory_bytes;
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

bool Device::memory_take(std::uint32_t client, std::uint64_t bytes) {
  const Lock lock(*this);
  if (!fits_locked(bytes)) return false;
  segment_->clients[client].memory_bytes += bytes;
  return true;
}

void Device::memory_give(std::uint32_t client, std::uint64_t bytes) {
  const Lock lock(*this);
  Account& account = segment_->clients[client];
  account.memory_bytes -= std::min(bytes, account.memory_bytes);
}

bool Device::shared_create(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes) {
  const Lock lock(*this);
  if (!fits_locked(bytes)) return false;
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

bool Device::shared_hold(std::uint32_t client, std::uint64_t inode) {
  const Lock lock(*this);
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

void Device::shared_release(std::uint32_t client, std::uint64_t inode) {
  const Lock lock(*this);
  for (Shared& object : segment_->shared)
    if (object.inode == inode && inode != 0) shared_drop_locked(object, client, false);
}

void Device::shared_drop_locked(Shared& object, std::uint32_t client, bool all) {
  bool held = false;
  for (std::uint32_t i = 0; i < kHoldersMax; ++i) {
    if (object.holders[i] == client + 1 && (all || --object.counts[i] == 0)) object.holders[i] = 0;
    held = held || object.holders[i] != 0;
  }
  if (!held) object.inode = 0;
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
                                                  [](const Account& a) { return a.pid != 0; }));
}

void Device::launch_count(std::uint32_t client) {
  const Lock lock(*this);
  ++segment_->clients[client].launches;
}

Snapshot Device::snapshot() {
  const Lock lock(*this);
  reap_locked();
  const Segment& segment = *segment_;
  Snapshot result;
  std::memcpy(result.uuid, segment.uuid, sizeof result.uuid);
  result.index = segment.index;
  result.capacity_bytes = segment.memory_bytes;
  result.used_bytes = used_locked();
  result.elapsed_ns = segment.now_ns - segment.created_ns;
  result.busy_ns = segment.busy_ns;
  result.sm_ns = segment.sm_ns;
  result.lag_ns = segment.lag_ns;
  const auto present = static_cast<std::uint64_t>(segment.now_ns) / kWindowNs;
  constexpr std::uint64_t kRecent = 10;  // complete windows: one second
  for (std::uint64_t number = present - kRecent; number < present; ++number) {
    if (segment.window_number[number % kWindows] != number) continue;
    result.recent_busy_ratio += segment.window_busy_ns[number % kWindows] / (kRecent * kWindowNs);
    result.recent_copy_ratio += segment.window_copy_ns[number % kWindows] / (kRecent * kWindowNs);
  }
  for (std::uint32_t client = 0; client < kClientsMax; ++client) {
    if (segment.clients[client].pid == 0) continue;
    Snapshot::Process process{segment.clients[client], true};
    for (const Shared& object : segment.shared) {
      if (object.inode == 0) continue;
      const auto* owner = std::find_if(std::begin(object.holders), std::end(object.holders),
                                       [](std::uint32_t holder) { return holder != 0; });
      if (owner != std::end(object.holders) && *owner == client + 1)
        process.account.memory_bytes += object.bytes;
    }
    result.processes.push_back(process);
  }
  const std::uint64_t kept = std::min<std::uint64_t>(segment.ended_count, kEndedMax);
  for (std::uint64_t i = segment.ended_next - kept; i != segment.ended_next; ++i)
    result.processes.push_back({segment.ended[i % kEndedMax], false});
  return result;
}

}  // namespace softgpu::device
