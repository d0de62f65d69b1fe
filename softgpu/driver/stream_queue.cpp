// The queue of the device that a stream has. A process has kQueuesEach of them, hardly any stream
// of a program with thousands has work at a time, and a stream that has none on the device lends
// its queue: it takes one at its first work, keeps it while no other stream wants it, and gives it
// back when one does. More streams with work than queues wait for each other, as the grids of
// hardware do that are more than can be resident.
#include <chrono>
#include <thread>

#include "softgpu/driver/stream.h"

namespace softgpu::driver {
namespace {

/// How often a stream that waits looks for a queue whose work is done.
constexpr std::chrono::microseconds kSpareLook{200};
/// A context may end while a stream of it waits for its turn to look.
constexpr std::chrono::milliseconds kTurn{10};
/// A stream that always has work goes on for so long before it lets one go first that waits.
constexpr double kTermNs = 10e6;

/// While one lives, streams with queues know that one waits.
class Waiter {
 public:
  explicit Waiter(Gpu& gpu) : gpu_(gpu) { ++gpu_.queue_waiters; }
  ~Waiter() { --gpu_.queue_waiters; }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  Gpu& gpu_;
};

}  // namespace

/// The stream has a queue, which nothing takes from it before its work there ends. False: its
/// context stops, or the stream has left.
bool Stream::queue_hold() {
  if (owner_->gpu.queue_waiters != 0) queue_yield();
  {
    const std::lock_guard lock(mutex_);
    if (left_) return false;
    // Before what earlier operations refer to leaves the ring.
    if (owner_->gpu.model.paced()) settle_locked();
    if (queue_ != device::kNone) {
      working_.store(true, std::memory_order_relaxed);
      return true;
    }
  }
  // What waits already goes first.
  return (owner_->gpu.queue_waiters == 0 && queue_open()) || queue_wait();
}

/// On the thread that executes, when the stream has none: takes a queue if one is free.
bool Stream::queue_open() {
  Gpu& gpu = owner_->gpu;
  const std::uint32_t queue = gpu.model.queue_open(gpu.client, idle_since_ns_);
  if (queue == device::kNone) return false;
  const std::lock_guard lock(mutex_);
  queue_moves_ = gpu.model.moves();
  queue_taken_ns_ = device::clock_ns();
  working_.store(true, std::memory_order_relaxed);
  queue_ = queue;
  return true;
}

/// On the thread that executes: takes a queue when another stream can spare it. False: the context
/// stops or has failed.
bool Stream::queue_wait() {
  Gpu& gpu = owner_->gpu;
  const Waiter waiter(gpu);
  const auto over = [this] { return owner_->stop || owner_->status() != CUDA_SUCCESS; };
  std::unique_lock turn(gpu.queue_turn, std::defer_lock);
  while (!turn.try_lock_for(kTurn))
    if (over()) return false;
  while (!over()) {
    if (queue_open()) return true;
    if (!queues_spare(gpu)) std::this_thread::sleep_for(kSpareLook);
  }
  return false;
}

/// Gives the queue back if all work there is done, from any thread. False: there is none, or it is
/// not done.
bool Stream::queue_spare() {
  if (queue_ == device::kNone) return false;  // most of them, without the lock
  const std::lock_guard lock(mutex_);
  if (queue_ == device::kNone || working_ || !mark_reached_locked()) return false;
  settle_locked();  // what refers to the queue is done, too, and learns when
  idle_since_ns_ = mark_.number != 0 ? mark_.finish_ns : idle_since_ns_;
  owner_->gpu.model.queue_close(queue_.exchange(device::kNone));
  return true;
}

/// Takes the queues of all streams whose work is done. False: there is none.
bool Stream::queues_spare(Gpu& gpu) {
  bool spared = false;
  for (const ContextRef& context : Registry<Context>::all().list()) {
    if (&context->gpu != &gpu) continue;
    for (const StreamRef& stream : context->streams_all()) spared |= stream->queue_spare();
  }
  return spared;
}

/// On the thread that executes: lets a stream go first that waits.
void Stream::queue_yield() {
  if (queue_ == device::kNone || device::clock_ns() - queue_taken_ns_ < kTermNs) return;
  (void)work_drain();
  (void)queue_spare();
}

/// The device has come to the end of what this stream has given it.
bool Stream::mark_reached_locked() {
  if (mark_.number == 0 || mark_.reached) return true;
  mark_.reached = owner_->gpu.model.work_done(queue_, mark_.number, mark_.finish_ns);
  return mark_.reached;
}

void Stream::queue_give() {
  device::Device& model = owner_->gpu.model;
  const std::uint32_t queue = queue_.exchange(device::kNone);
  mark_ = {};
  if (queue != device::kNone && queue_moves_ == model.moves() &&
      Process::get().status() == CUDA_SUCCESS)
    model.queue_close(queue);
}

void Stream::queue_forget() {
  const std::lock_guard lock(mutex_);
  queue_ = device::kNone;
  mark_ = {};
}

}  // namespace softgpu::driver
