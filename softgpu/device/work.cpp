// Queues and operations of a device: opening, charging, closing, waiting. See device.h for what the
// model promises.
#include <time.h>

#include <algorithm>
#include <cassert>

#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

/// Idle time before an operation that may be credited to it: enough for a thread to wake up on a
/// loaded host.
constexpr double kCreditMaxNs = 2e6;
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
        const double idle_since =
            std::max({request.ready_ns, q.finish_ns,
                      segment_->engine_end_ns[static_cast<std::size_t>(request.kind)]});
        if (q.head == q.tail)
          w.credit_ns = std::clamp(segment_->now_ns - idle_since, 0.0, kCreditMaxNs);
        w.finish_ns =
            std::max(request.ready_ns, q.finish_ns);  // without pacing: where its time begins
        segment_->engine_end_ns[static_cast<std::size_t>(request.kind)] = segment_->now_ns;
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
  for (;;) {
    if (stop.load(std::memory_order_relaxed)) return false;
    double ahead = 0;
    bool hangs = false;
    {
      const Lock lock(*this);
      Queue& q = segment_->queues[queue];
      if (!queue_taken(*segment_, queue)) return false;
      work(queue, number).cost += cost;
      cost = 0;
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
  // Idle time that is to be credited to it when it closes has passed already.
  return segment_->now_ns + std::max(0.0, queue_ahead_locked(q, number) - w.credit_ns);
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
  const double gain = std::min(w.credit_ns * w.width, w.cost - w.received);
  if (gain > 0) {
    account_locked(queue_client(queue), w, gain);
    w.received += gain;
  }
  if (w.received <= w.cost) return false;
  if (w.kind == WorkKind::kCompute) {
    const double lag = (w.received - w.cost) / w.width;
    segment_->clients[queue_client(queue)].lag_ns += lag;
  }
  w.received = w.cost;  // complete at the next step of the model
  return false;
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
