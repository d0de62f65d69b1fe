// How the work of a stream gets done: by its worker, or by a thread that waits for it, one
// operation at a time; and how it is found out that the device has come to the end of it.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "softgpu/driver/memory_strict.h"
#include "softgpu/driver/stream.h"
#include "softgpu/driver/thread.h"

namespace softgpu::driver {
namespace {

/// How long submitted work that nobody waits for may lie while the worker is on patrol. A look
/// costs some microseconds: this keeps it at a few percent of a core, and only while the program
/// submits.
constexpr std::chrono::microseconds kPatrol{100};
/// So much waiting work is worth waking it.
constexpr std::size_t kBacklog = 16;
/// Idle workers that a context keeps. Beyond, one ends that looks and finds its stream idle: a
/// program may have thousands of streams, a host has not always as many threads.
constexpr int kWorkersKept = 256;
constexpr std::chrono::milliseconds kRest{100};
/// A kernel takes so much stack at most: 13 KiB for a matrix instruction, and a signal frame. The
/// threads of a program may have 16 KiB in all (PTHREAD_STACK_MIN).
constexpr std::size_t kKernelStack = 64 * 1024;

/// Whether a kernel that faults on this thread reaches our handler: a synchronous signal that is
/// blocked ends the process.
bool faults_arrive() {
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return sigismember(&blocked, SIGSEGV) == 0 && sigismember(&blocked, SIGBUS) == 0;
}

}  // namespace

int Stream::worker_start_locked() {
  worker_ = Worker::kBusy;
  {
    const std::lock_guard lock(owner_->workers_mutex);
    ++owner_->workers;
  }
  const auto over = [](Context& context) {
    const std::lock_guard lock(context.workers_mutex);
    --context.workers;
    context.workers_changed.notify_all();
  };
  const int error =
      thread_start("softgpu-stream", [self = shared_from_this(), context = owner_, over] {
        self->worker_run();
        over(*context);
      });
  if (error == 0) return 0;
  worker_ = Worker::kNone;
  over(*owner_);
  return error;
}

/// There is no worker, and the system makes none: the context fails, and what was submitted up to
/// `op` is dropped here.
void Stream::worker_lack(const Op& op, int error) {
  Process::get().complain("the system makes no thread for a stream (" +
                          std::generic_category().message(error) +
                          "); its context answers every call with CUDA_ERROR_OPERATING_SYSTEM; "
                          "raise the limit on processes (ulimit -u), or allow clone3");
  owner_->fail(CUDA_ERROR_OPERATING_SYSTEM);
  std::unique_lock lock(mutex_);
  while (op.state.load(std::memory_order_acquire) == Op::kQueued && worker_ == Worker::kNone) {
    if (available_locked()) {
      execute_locked(lock);
      continue;
    }
    ++waiters_;
    changed_.wait(lock);
    --waiters_;
  }
}

/// After something has changed that the worker may have to see.
void Stream::worker_wake_locked() {
  const bool ends = retiring_ || owner_->closed;
  const bool wake =
      worker_ == Worker::kAsleep
          ? available_locked() || ends
          : worker_ == Worker::kPatrol &&
                (ends || (available_locked() && (ops_.size() - begun_ >= kBacklog ||
                                                 ops_[begun_]->by == Op::By::kWorker)));
  if (wake) work_.notify_one();
}

void Stream::hurry() {
  const std::lock_guard lock(mutex_);
  if (available_locked()) work_.notify_one();
}

void Stream::worker_run() {
  prctl(PR_SET_TIMERSLACK, 5000);  // modelled times are met to some microseconds
  thread_state().in_callback = true;
  if (!worker_loop()) return;
  // What refers to this stream's operations must know their end before the queue goes.
  const OpRef final_op = last();
  (void)wait(final_op);
  leave();
}

/// False: the stream stays, and gets another worker with its next work.
bool Stream::worker_loop() {
  std::unique_lock lock(mutex_);
  for (std::uint64_t seen = 0;;) {
    worker_ = Worker::kBusy;
    if (available_locked()) {
      execute_locked(lock);
    } else if ((retiring_ || owner_->closed) && !executing_) {
      return true;
    } else if (seen != submitted_) {
      seen = submitted_;
      worker_ = Worker::kPatrol;
      work_.wait_for(lock, kPatrol);
    } else if (owner_->workers <= kWorkersKept) {
      worker_ = Worker::kAsleep;
      work_.wait(lock);
    } else {
      settle_locked();
      if (ops_.empty() && !executing_) {
        worker_ = Worker::kNone;
        return false;
      }
      worker_ = Worker::kAsleep;
      work_.wait_for(lock, kRest);
    }
  }
}

void Stream::retire() {
  {
    const std::lock_guard lock(mutex_);
    retiring_ = true;
    work_.notify_all();
    if (worker_ != Worker::kNone) return;
  }
  leave();
}

void Stream::leave() {
  {
    // Events that were recorded last here keep the stream, for as long as the program keeps them.
    const std::lock_guard lock(mutex_);
    left_ = ops_.empty();
    if (left_) {
      queue_give();
      last_.reset();  // it refers to this stream, which would otherwise keep itself
    }
  }
  const std::lock_guard order(owner_->order);
  std::erase_if(owner_->streams, [this](const StreamRef& other) { return other.get() == this; });
}

/// Executes the next operation; the lock is released meanwhile.
void Stream::execute_locked(std::unique_lock<std::mutex>& lock) {
  const OpRef op = ops_[begun_++];
  executing_ = true;
  lock.unlock();
  perform(*op);
  lock.lock();
  executing_ = false;
  op->mark = mark_;
  op->state.store(Op::kExecuted, std::memory_order_release);
  settle_locked();
  if (waiters_ != 0) changed_.notify_all();
}

void Stream::perform(Op& op) {
  op.floor_ns = std::max(op.submitted_ns, floor_ns_);
  for (const OpRef& other : op.after) {
    (void)wait(other);
    op.floor_ns = std::max(op.floor_ns, other->finish_ns);
  }
  std::vector<OpRef> over;
  {
    const std::lock_guard lock(mutex_);  // follows() reads it
    over.swap(op.after);
  }
  const bool dead = owner_->stop || owner_->status() != CUDA_SUCCESS;
  if (!dead || op.always) {
    const DeviceSide device;
    op.run(*this);
  }
  op.drop();
  floor_ns_ = std::max(floor_ns_, op.floor_ns);
}

void Stream::settle() {
  const std::lock_guard lock(mutex_);
  settle_locked();
}

/// Marks what the device has finished. Called after every operation, before its number leaves the
/// device's memory, and by everyone who waits.
void Stream::settle_locked() {
  const std::size_t before = ops_.size();
  while (!ops_.empty()) {
    Op& op = *ops_.front();
    if (op.state.load(std::memory_order_acquire) != Op::kExecuted) break;
    double finish = op.mark.finish_ns;
    const bool over =
        op.mark.number == 0 || op.mark.reached || owner_->stop || owner_->status() != CUDA_SUCCESS;
    if (!over && !owner_->gpu.model.work_done(queue_, op.mark.number, finish)) break;
    last_finish_ns_ = std::max({last_finish_ns_, finish, op.floor_ns});
    op.finish_ns = last_finish_ns_;
    op.state.store(Op::kDone, std::memory_order_release);
    ops_.pop_front();
    --begun_;
  }
  if (ops_.size() == before) return;
  pending_.store(ops_.size(), std::memory_order_release);
  if (waiters_ != 0) changed_.notify_all();
}

/// Does the work up to `target` here, as far as others than the worker may do it. False: there is
/// something before its end that is somebody else's.
bool Stream::help(const Op& target) {
  std::unique_lock lock(mutex_);
  while (target.state.load(std::memory_order_acquire) == Op::kQueued) {
    if (!available_locked() || ops_[begun_]->by == Op::By::kWorker) {
      worker_wake_locked();
      return false;
    }
    execute_locked(lock);
  }
  worker_wake_locked();
  return true;
}

/// Helps, and sleeps while this thread cannot, until it has executed.
void Stream::wait_executed(const Op& target) {
  const bool may_help = stack_left() >= kKernelStack && faults_arrive();
  if (!may_help) hurry();
  while (!may_help || !help(target)) {
    std::unique_lock lock(mutex_);
    const auto executed = [&] {
      return target.state.load(std::memory_order_acquire) != Op::kQueued;
    };
    ++waiters_;
    changed_.wait(lock, [&] {
      return executed() || (may_help && available_locked() && ops_[begun_]->by == Op::By::kAnyone);
    });
    --waiters_;
    if (executed()) return;
  }
}

bool Stream::ready(const OpRef& op) {
  if (op->done()) return true;
  op->stream->settle();
  if (op->state.load(std::memory_order_acquire) == Op::kQueued) op->stream->hurry();
  return op->done();
}

CUresult Stream::wait(const OpRef& op) {
  if (op == nullptr) return CUDA_SUCCESS;
  Stream& stream = *op->stream;
  if (op->state.load(std::memory_order_acquire) == Op::kQueued) stream.wait_executed(*op);
  for (double finish = 0; !ready(op);) {
    // It may leave meanwhile, with all done.
    const std::uint32_t queue = stream.queue();
    if (queue != device::kNone)
      (void)stream.owner_->gpu.model.work_wait(queue, op->mark.number, finish);
  }
  return stream.owner_->status();
}

std::uint64_t Stream::work_begin(const device::WorkRequest& request) {
  device::Device& model = owner_->gpu.model;
  if (!queue_hold()) return 0;
  const std::uint64_t number = model.work_open(queue_, request, owner_->stop);
  if (number == 0) {
    working_.store(false, std::memory_order_release);
    return 0;
  }
  mark_ = WorkMark{number, false, 0};
  // A fault may hold it here, however little it costs.
  const bool held = model.settings().fault_count != 0;
  return held && !model.work_charge(queue_, number, 0, owner_->stop) ? 0 : number;
}

void Stream::work_end(std::uint64_t number, double cost) {
  double finish = 0;
  if (owner_->stop) return;
  if (owner_->gpu.model.work_close(queue_, number, cost, finish)) {
    mark_.reached = true;
    mark_.finish_ns = finish;
  }
  working_.store(false, std::memory_order_release);
}

bool Stream::work_add(Op& op, device::WorkKind work_kind, double cost, double width) {
  device::Device& model = owner_->gpu.model;
  const std::uint64_t number = work_begin({work_kind, width, op.floor_ns});
  if (number == 0) return false;
  const bool charged = model.work_charge(queue_, number, cost, owner_->stop);
  work_end(number, 0);
  return charged;
}

double Stream::work_drain() {
  for (;;) {
    WorkMark awaited;
    std::uint32_t queue = device::kNone;
    {
      const std::lock_guard lock(mutex_);
      if (mark_.number == 0 || mark_.reached || owner_->stop) return mark_.finish_ns;
      awaited = mark_;
      queue = queue_;
    }
    if (!owner_->gpu.model.work_wait(queue, awaited.number, awaited.finish_ns)) continue;
    const std::lock_guard lock(mutex_);
    (void)mark_reached_locked();
  }
}

}  // namespace softgpu::driver
