// The fluid model of one device: given the operations at the heads of all queues, how far has each
// come at a moment? It steps from event to event (an operation is complete, a slice ends, a window
// of the utilization history ends). Pure arithmetic on the segment: no clock and no lock of its
// own.
#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

/// What is at the heads of the queues at one moment.
struct Scene {
  std::uint32_t count = 0;
  std::array<std::uint32_t, 5> of_kind{};
  std::uint32_t computing = 0;  // kernels that have SMs
  std::array<bool, kClientsMax> runnable{};
  std::uint32_t runnable_count = 0;
};

Work& head_work(Segment& segment, std::uint32_t queue) {
  Queue& q = segment.queues[queue];
  return q.ring[q.head % kQueueDepth];
}

void scene_collect(Segment& segment, Scene& scene) {
  active_each(segment, [&](std::uint32_t queue) {
    const std::uint32_t client = queue_client(queue);
    const auto kind = static_cast<std::size_t>(head_work(segment, queue).kind);
    Queue& q = segment.queues[queue];
    q.rate = 0;
    q.hung = client_hangs(segment, client) ? 1 : 0;
    if (q.hung != 0 && kind != static_cast<std::size_t>(WorkKind::kCompute)) return;
    ++scene.count;
    ++scene.of_kind[kind];
    if (kind != static_cast<std::size_t>(WorkKind::kCompute) || scene.runnable[client]) return;
    scene.runnable[client] = true;
    ++scene.runnable_count;
  });
}

/// Round robin between the processes that have kernels to run, a slice each, longer by its weight.
void turn_choose(Segment& segment, const Scene& scene) {
  if (scene.runnable_count == 0) return;
  const std::uint32_t current = segment.current;
  const bool may_stay = current < kClientsMax && scene.runnable[current];
  if (may_stay && (scene.runnable_count == 1 || segment.now_ns < segment.slice_end_ns)) return;
  const std::uint32_t from = current < kClientsMax ? current : kClientsMax - 1;
  for (std::uint32_t step = 1; step <= kClientsMax; ++step) {
    const std::uint32_t next = (from + step) % kClientsMax;
    if (!scene.runnable[next]) continue;
    if (next != current && current != kNone)
      segment.stall_end_ns = segment.now_ns + segment.switch_ns;
    segment.current = next;
    segment.slice_end_ns =
        segment.now_ns + static_cast<double>(segment.slice_ns) * segment.clients[next].weight;
    return;
  }
}

/// The kernels of one priority share `left` SMs: the narrow ones get what they can use, the wide
/// ones the rest in equal parts. They are in the order of their widths.
void rates_share(Segment& segment, const std::uint32_t* queues, std::uint32_t count, double& left) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const double share = left / (count - i);
    const double rate = std::min(head_work(segment, queues[i]).width, share);
    segment.queues[queues[i]].rate = rate;
    left -= rate;
  }
}

/// The kernels of the process whose turn it is get the SMs by priority: the next one has what the
/// one before it cannot use.
void rates_compute(Segment& segment, Scene& scene) {
  if (segment.now_ns < segment.stall_end_ns || segment.current >= kClientsMax) return;
  std::array<std::uint32_t, kQueuesEach> mine;
  std::uint32_t count = 0;
  constexpr std::uint32_t kWords = kQueuesEach / 64;
  bits_each(segment.active + segment.current * kWords, kWords, [&](std::uint32_t bit) {
    const std::uint32_t queue = segment.current * kQueuesEach + bit;
    if (head_work(segment, queue).kind == WorkKind::kCompute) mine[count++] = queue;
  });
  std::sort(mine.begin(), mine.begin() + count, [&](std::uint32_t a, std::uint32_t b) {
    const Work &first = head_work(segment, a), &second = head_work(segment, b);
    return std::tie(first.priority, first.width) < std::tie(second.priority, second.width);
  });
  double left = segment.sm_count;
  for (std::uint32_t from = 0, to = 0; from < count; from = to) {
    const std::int32_t priority = head_work(segment, mine[from]).priority;
    while (to < count && head_work(segment, mine[to]).priority == priority) ++to;
    if (left > 0) scene.computing = to;
    rates_share(segment, mine.data() + from, to - from, left);
  }
}

void rates_engines(Segment& segment, const Scene& scene) {
  active_each(segment, [&](std::uint32_t queue) {
    const WorkKind kind = head_work(segment, queue).kind;
    Queue& q = segment.queues[queue];
    if (kind == WorkKind::kCompute || q.hung != 0) return;
    // A link delay is nobody else's business; an engine is shared by the copies in its direction.
    q.rate = kind == WorkKind::kLink ? 1.0 : 1.0 / scene.of_kind[static_cast<std::size_t>(kind)];
  });
}

/// Nanoseconds to the next change of rates.
double event_next(Segment& segment, const Scene& scene) {
  const double window_end = (std::floor(segment.now_ns / kWindowNs) + 1) * kWindowNs;
  double next = window_end - segment.now_ns;
  if (segment.now_ns < segment.stall_end_ns)
    next = std::min(next, segment.stall_end_ns - segment.now_ns);
  if (scene.runnable_count > 1) next = std::min(next, segment.slice_end_ns - segment.now_ns);
  active_each(segment, [&](std::uint32_t queue) {
    const Queue& q = segment.queues[queue];
    const Work& work = head_work(segment, queue);
    if (q.rate <= 0 || q.hung != 0 || work.state != WorkState::kClosed) return;
    next = std::min(next, (work.cost - work.received) / q.rate);
  });
  return std::max(next, 0.0);
}

/// The place of the present window in the history, emptied when the window is new.
std::size_t window_slot(Segment& segment) {
  const auto number = static_cast<std::uint64_t>(segment.now_ns) / kWindowNs;
  const auto slot = number % kWindows;
  if (segment.window_number[slot] != number) {
    segment.window_number[slot] = number;
    segment.window_busy_ns[slot] = segment.window_copy_ns[slot] = 0;
    std::fill(std::begin(segment.window_client_ns[slot]), std::end(segment.window_client_ns[slot]),
              0.0);
  }
  return slot;
}

/// Whether no other operation has a part of its engine in this step. A link has no other.
bool is_alone(const Scene& scene, const Work& work) {
  if (work.kind == WorkKind::kCompute) return scene.computing == 1;
  return work.kind == WorkKind::kLink || scene.of_kind[static_cast<std::size_t>(work.kind)] == 1;
}

void alone_note(Work& work, double now_ns, double step, bool alone) {
  if (work.alone.from_ns == 0) work.alone = {now_ns, now_ns};
  if (alone && now_ns - work.alone.to_ns < kEpsilonNs) work.alone.to_ns = now_ns + step;
}

void step_apply(Segment& segment, const Scene& scene, double step) {
  double sms = 0;
  bool copying = false;
  // The SMs are in use while they change to another process.
  if (segment.now_ns < segment.stall_end_ns && scene.runnable_count != 0)
    idle_end(segment.idle[static_cast<std::size_t>(WorkKind::kCompute)], segment.now_ns, step);
  active_each(segment, [&](std::uint32_t queue) {
    const Queue& q = segment.queues[queue];
    if (q.rate <= 0) return;
    Work& work = head_work(segment, queue);
    Account& account = segment.clients[queue_client(queue)];
    if (q.hung == 0) work.received += q.rate * step;
    idle_end(segment.idle[static_cast<std::size_t>(work.kind)], segment.now_ns, step);
    alone_note(work, segment.now_ns, step, q.hung == 0 && is_alone(scene, work));
    if (work.kind == WorkKind::kCompute) {
      account.sm_ns += q.rate * step;
      sms += q.rate;
    } else {
      account.copy_ns += q.rate * step;
      copying = true;
    }
  });
  if (sms > 0) {
    segment.clients[segment.current].busy_ns += step;
    window_use(segment, segment.current, step);
  }
  if (copying) segment.window_copy_ns[window_slot(segment)] += step;
  segment.now_ns += step;
}

void heads_finish(Segment& segment) {
  active_each(segment, [&](std::uint32_t queue) {
    const Queue& q = segment.queues[queue];
    const Work& work = head_work(segment, queue);
    if (work.state != WorkState::kClosed || q.hung != 0) return;
    const double left_ns = (work.cost - work.received) / std::max(q.rate, 1.0);
    if (left_ns <= kEpsilonNs) head_finish(segment, queue, segment.now_ns);
  });
}

}  // namespace

void head_finish(Segment& segment, std::uint32_t queue, double at_ns) {
  Queue& q = segment.queues[queue];
  Work& work = q.ring[q.head % kQueueDepth];
  work.state = WorkState::kDone;
  work.finish_ns = q.finish_ns = at_ns;
  ++q.head;
  if (q.head == q.tail) queue_active(segment, queue, false);
}

void window_use(Segment& segment, std::uint32_t client, double busy_ns) {
  const std::size_t slot = window_slot(segment);
  segment.window_busy_ns[slot] += busy_ns;
  segment.window_client_ns[slot][client] += busy_ns;
}

void model_advance(Segment& segment, double target_ns) {
  if (std::all_of(std::begin(segment.active_clients), std::end(segment.active_clients),
                  [](std::uint64_t word) { return word == 0; })) {
    segment.now_ns = std::max(segment.now_ns, target_ns);
    return;
  }
  while (segment.now_ns < target_ns) {
    Scene scene;
    scene_collect(segment, scene);
    if (scene.count == 0) {
      segment.now_ns = target_ns;
      return;
    }
    turn_choose(segment, scene);
    rates_compute(segment, scene);
    rates_engines(segment, scene);
    const double step = std::min(event_next(segment, scene), target_ns - segment.now_ns);
    // Below the resolution of the clock a step would not move it.
    const double before = segment.now_ns;
    step_apply(segment, scene, step);
    if (segment.now_ns == before && step > 0) segment.now_ns = std::nextafter(before, target_ns);
    heads_finish(segment);
    if (step <= 0 && segment.now_ns == before) segment.now_ns = std::nextafter(before, target_ns);
  }
}

}  // namespace softgpu::device
