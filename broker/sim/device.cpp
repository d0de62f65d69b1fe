// The GPU model. A stretch of device time begins at since_ and ends at a kernel's end, at a slice's
// end or when the picture changes; every change accounts the stretch and dispatches again.
#include "broker/sim/device.h"

#include <algorithm>
#include <utility>

namespace sluice::sim {
namespace {
constexpr Nanos kSliceNs = 2'000'000;  // of the order of a hardware time slice between contexts
}

Device::Device(Clock& clock, std::function<void(Context, Nanos, Nanos)> used)
    : clock_(clock), used_(std::move(used)) {}

void Device::submit(Context context, Kernel kernel) {
  account();
  queues_[context].push_back(std::move(kernel));
  dispatch();
}

void Device::destroy(Context context) {
  account();
  queues_.erase(context);
  if (running_ && current_ == context) running_ = false;
  dispatch();
}

void Device::account() {
  const Nanos now = clock_.now();
  if (!running_ || now == since_) return;
  Kernel& kernel = queues_[current_].front();
  if (kernel.left_ns < kEndless / 2) kernel.left_ns -= now - since_;
  used_(current_, since_, now);
  since_ = now;
}

bool Device::others_ready() const {
  return std::ranges::any_of(
      queues_, [&](const auto& q) { return q.first != current_ && !q.second.empty(); });
}

void Device::begin(Kernel& kernel) {
  if (kernel.arrived) return;
  kernel.arrived = true;
  if (kernel.collective == nullptr) return;
  Collective& collective = *kernel.collective;
  kernel.left_ns = kEndless;
  const Context context = current_;
  collective.complete.push_back([this, context, length = collective.length_ns] {
    account();
    auto it = queues_.find(context);
    if (it == queues_.end() || it->second.empty()) return;  // killed while it spun
    it->second.front().left_ns = length;
    dispatch();
  });
  if (--collective.missing == 0)
    for (auto& tell : collective.complete) clock_.at(clock_.now(), tell);
}

/// Chooses whose work runs now and sets the timer for the end of this stretch.
void Device::dispatch() {
  const Nanos now = clock_.now();
  generation_++;
  if (running_ && queues_[current_].empty()) running_ = false;
  const bool slice_over = running_ && now >= slice_end_ && others_ready();
  if (!running_ || slice_over) {
    auto next = queues_.upper_bound(current_);
    for (std::size_t i = 0; i <= queues_.size(); ++i) {
      if (next == queues_.end()) next = queues_.begin();
      if (next == queues_.end() || !next->second.empty()) break;
      ++next;
    }
    if (next == queues_.end() || next->second.empty()) {
      running_ = false;
      return;
    }
    current_ = next->first;
    running_ = true;
    slice_end_ = now + kSliceNs;
  }
  since_ = now;
  Kernel& kernel = queues_[current_].front();
  begin(kernel);
  Nanos until = kernel.left_ns < kEndless / 2 ? now + kernel.left_ns : kEndless;
  if (others_ready()) until = std::min(until, std::max(slice_end_, now + 1));
  if (until >= kEndless) return;
  clock_.at(until, [this, generation = generation_] { on_timer(generation); });
}

void Device::on_timer(std::uint64_t generation) {
  if (generation != generation_) return;
  account();
  std::deque<Kernel>& queue = queues_[current_];
  if (!queue.empty() && queue.front().left_ns <= 0) {
    const std::function<void()> done = std::move(queue.front().done);
    queue.pop_front();
    if (done) clock_.at(clock_.now(), done);
  }
  dispatch();
}

}  // namespace sluice::sim
