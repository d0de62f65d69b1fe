// Queues and operations of a device: opening, charging, closing, waiting. See device.h for what the
// model promises.
#include <time.h>

#include <algorithm>
#include <cassert>

#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

constexpr double kSleepMaxNs = 10e6;
constexpr double kSleepMinNs = 20e3;

void sleep_ns(double nanoseconds) {
  const double bounded = std::clamp(nanoseconds, kSleepMinNs, kSleepMaxNs);
  const timespec t{0, static_cast<long>(bounded)};
  nanosleep(&t, nullptr);
}

}  // namespace

std::uint32_t Device::queue_open(std::uint32_t client, double since_ns) {
  const Lock lock(*this);
  // A process that was taken for dead has no part any more.
  if (client >= kClientsMax || segment_->clients[client].life != lives_->own()) return kNone;
  for (std::uint32_t i = 0; i < kQueuesEach; ++i) {
    const std::uint32_t queue = client * kQueuesEach + i;
    if (queue_taken(*segment_, queue)) continue;
    Queue& q = segment_->queues[queue];
    q.head = q.tail = 1;  // number 0 stands for "none"
    q.finish_ns = since_ns;
    bit_set(segment_->taken, queue);
    return queue;
  }
  return kNone;
}

void Device::queue_close(std::uint32_t queue) {
  const Lock lock(*this);
  if (segment_->clients[queue / kQueuesEach].life != lives_->own()) return;
  queue_drop_locked(queue);
}

void Device::queue_drop_locked(std::uint32_t queue) {
  queue_active(*segment_, queue, false);
  segment_->queues[queue].head = segment_->queues[queue].tail;
  bit_clear(segment_->taken, queue);
}

/// Time that the operations up to `number` still need with the device to themselves.
double Device::queue_ahead_locked(const Queue& queue, std::uint64_t number) const {
  double ahead = 0;
  for (std::uint64_t i = queue.head; i <= number && i < queue.tail; ++i) {
    const Work& w = queue.ring[i % kQueueDepth];
    ahead += std::max(0.0, w.cost - w.received) / w.width;
  }
  return ahead;
}

std::uint64_t Device::work_open(std::uint32_t queue, const WorkRequest& request,
                                const std::atomic<bool>& stop) {
  for (;;) {
    if (stop.load(std::memory_order_relaxed)) return 0;
    double ahead = 0;
    {
      const Lock lock(*this);
      Queue& q = segment_->queues[queue];
      if (!queue_taken(*segment_, queue)) return 0;
      ahead = queue_ahead_locked(q, q.tail);
      if (q.tail - q.head < kQueueDepth && ahead <= kAheadNs) {
        Work& w = q.ring[q.tail % kQueueDepth];
        w = Work{};
        w.kind = request.kind;
        w.state = WorkState::kOpen;
        w.width = std::clamp(request.width, 1.0, static_cast<double>(segment_->sm_count));
        w.cost = request.cost;
        w.priority = request.priority;
        if (request.counted) ++segment_->clients[queue_client(queue)].launches;
        w.finish_ns = std::max(request.ready_ns, q.finish_ns);
        const std::uint64_t number = q.tail++;
        if (paced()) queue_active(*segment_, queue, true);
        return number;
      }
    }
    sleep_ns(std::max(ahead - kAheadNs, ahead / 4));
  }
}

bool Device::work_charge(std::uint32_t queue, std::uint64_t number, double cost,
                         const std::atomic<bool>& stop) {
  for (bool hangs = false;;) {
    if (stop.load(std::memory_order_relaxed)) return false;
    double ahead = 0;
    {
      const Lock lock(*this);
      Queue& q = segment_->queues[queue];
      if (!queue_taken(*segment_, queue)) return false;
      Work& w = work(queue, number);
      w.cost += cost;
      cost = 0;
      if (hangs) w.finish_ns = segment_->now_ns;  // it begins when the fault lets it go
      hangs = client_hangs(*segment_, queue_client(queue));
      ahead = hangs ? kSleepMaxNs * 2 : queue_ahead_locked(q, number);
    }
    if (!hangs && (!paced() || ahead <= kAheadNs)) return true;
    sleep_ns(ahead - kAheadNs / 2);
  }
}

/// Adds `amount` to the accounts as if the device had served it just now.
void Device::account_locked(std::uint32_t client, const Work& w, double amount) {
  Account& account = segment_->clients[client];
  if (w.kind != WorkKind::kCompute) {
    account.copy_ns += amount;
    return;
  }
  account.sm_ns += amount;
  account.busy_ns += amount / w.width;
  window_use(*segment_, client, amount / w.width);
}

/// Without pacing a closed operation has had its time at once, and so has what was left before it
/// when pacing was turned off.
void Device::unpaced_finish_locked(std::uint32_t queue) {
  Queue& q = segment_->queues[queue];
  for (; q.head < q.tail; ++q.head) {
    Work& w = work(queue, q.head);
    if (w.state == WorkState::kOpen) break;
    account_locked(queue_client(queue), w, w.cost - w.received);
    q.finish_ns = w.finish_ns = std::max(w.finish_ns, q.finish_ns) + w.cost / w.width;
    w.received = w.cost;
    w.state = WorkState::kDone;
  }
  if (q.head == q.tail) queue_active(*segment_, queue, false);
}

double Device::work_time(std::uint32_t queue, std::uint64_t number) {
  const Lock lock(*this);
  const Queue& q = segment_->queues[queue];
  const Work& w = work(queue, number);
  if (!paced()) return std::max(w.finish_ns, q.finish_ns) + w.cost / w.width;
  if (number != q.head) return segment_->now_ns + queue_ahead_locked(q, number);
  Idle idle = idle_of_locked(q, w);
  const Placed placed = place_locked(idle, q, w);
  if (placed.whole) return placed.end_ns;
  return segment_->now_ns + std::max(0.0, w.cost - w.received - placed.gained) / w.width;
}

/// The idle time from which an operation may take: its engine's.
Idle Device::idle_of_locked(const Queue& queue, const Work& w) const {
  if (w.kind != WorkKind::kLink) return segment_->idle[static_cast<std::size_t>(w.kind)];
  Idle idle;
  idle_forget(idle, std::max(w.finish_ns, queue.finish_ns));
  idle_note(idle, w.alone.from_ns > 0 ? w.alone.from_ns : segment_->now_ns);
  idle.until_ns = segment_->now_ns;
  return idle;
}

/// Lets an operation that has an engine to itself begin when it was ready: it takes idle time since
/// then, and what it has been served since the host came to it is idle instead.
Device::Placed Device::place_locked(Idle& idle, const Queue& queue, const Work& w) const {
  Placed placed;
  const double need = std::max(w.cost, w.received) / w.width;
  const double begun = w.alone.from_ns > 0 ? w.alone.from_ns : segment_->now_ns;
  const double from = std::max({w.finish_ns, queue.finish_ns, begun - kIdleKeptNs});
  idle_note(idle, segment_->now_ns);
  idle_give(idle, w.alone);
  const double taken = idle_take(idle, from, need, placed.end_ns);
  placed.whole = need - taken <= kEpsilonNs;
  const double alone = w.alone.to_ns - w.alone.from_ns;
  const double left = std::max(0.0, w.cost - w.received);
  placed.gained = placed.whole ? left : std::clamp((taken - alone) * w.width, 0.0, left);
  return placed;
}

/// Places a closed operation at the head of its queue. True: it is done.
bool Device::close_locked(std::uint32_t queue, Work& w) {
  Queue& q = segment_->queues[queue];
  Idle idle = idle_of_locked(q, w);
  const Placed placed = place_locked(idle, q, w);
  if (w.kind != WorkKind::kLink) segment_->idle[static_cast<std::size_t>(w.kind)] = idle;
  if (placed.gained > 0) account_locked(queue_client(queue), w, placed.gained);
  w.received += placed.gained;
  if (w.received > w.cost && w.kind == WorkKind::kCompute)
    segment_->clients[queue_client(queue)].lag_ns += (w.received - w.cost) / w.width;
  w.received = std::min(w.received, w.cost);  // without a place, complete at the model's next step
  if (placed.whole) head_finish(*segment_, queue, placed.end_ns);
  return placed.whole;
}

bool Device::work_close(std::uint32_t queue, std::uint64_t number, double cost, double& finish_ns) {
  const Lock lock(*this);
  if (!queue_taken(*segment_, queue)) return false;
  Work& w = work(queue, number);
  assert(w.state == WorkState::kOpen);
  w.state = WorkState::kClosed;
  w.cost += cost;
  if (!paced()) {
    unpaced_finish_locked(queue);
    finish_ns = w.finish_ns;
    return w.state == WorkState::kDone;
  }
  queue_active(*segment_, queue, true);  // also when it was opened unpaced
  const bool hangs = client_hangs(*segment_, queue_client(queue));
  if (hangs || number != segment_->queues[queue].head || !close_locked(queue, w)) return false;
  finish_ns = w.finish_ns;
  return true;
}

bool Device::work_done(std::uint32_t queue, std::uint64_t number, double& finish_ns) {
  const Lock lock(*this);
  const Queue& q = segment_->queues[queue];
  if (!queue_taken(*segment_, queue)) {
    finish_ns = segment_->now_ns;
    return true;
  }
  if (q.head <= number) return false;
  // An operation overwritten in the ring ended before the one that took its place began.
  finish_ns = q.tail - number <= kQueueDepth ? q.ring[number % kQueueDepth].finish_ns : q.finish_ns;
  return true;
}

bool Device::work_wait(std::uint32_t queue, std::uint64_t number, double& finish_ns) {
  double ahead = 0;
  {
    const Lock lock(*this);
    const Queue& q = segment_->queues[queue];
    if (!queue_taken(*segment_, queue) || q.head > number) {
      finish_ns = queue_taken(*segment_, queue) && q.tail - number <= kQueueDepth
                      ? q.ring[number % kQueueDepth].finish_ns
                      : q.finish_ns;
      return true;
    }
    ahead = queue_ahead_locked(q, number);
  }
  // Nobody can be served faster than alone, so it is safe to sleep this long: no process ever has
  // to wake another.
  sleep_ns(ahead);
  return work_done(queue, number, finish_ns);
}

}  // namespace softgpu::device
