// See stream.h.
#include "softgpu/driver/stream.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

namespace softgpu::driver {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> id{1};
  return id++;
}

/// Signals are the program's business: its handlers never run on our threads.
void thread_start(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGFPE);
  sigdelset(&all, SIGILL);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(std::move(body)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

Stream::Stream(const ContextRef& of, Kind of_kind, unsigned with_flags, int with_priority)
    : kind(of_kind), flags(with_flags), priority(with_priority), id(next_id()), owner_(of) {
  queue_ = of->gpu.model.queue_open(of->gpu.client);
}

Stream::~Stream() {
  if (queue_ != device::kNone && Process::get().status() == CUDA_SUCCESS)
    owner_->gpu.model.queue_close(queue_);
}

OpRef Stream::submit(std::function<void(Stream&, Op&)> run, std::vector<OpRef> after) {
  auto op = std::make_shared<Op>(std::move(run));
  op->stream = shared_from_this();
  op->submitted_ns = device::clock_ns();
  std::erase_if(after, [](const OpRef& other) { return other == nullptr || other->done(); });
  op->after = std::move(after);
  const std::lock_guard order(owner_->order);
  const auto depend = [&](Stream& other) {
    const OpRef last = other.last();
    if (last != nullptr && !last->done()) op->after.push_back(last);
  };
  if (kind == kLegacy) {
    for (const StreamRef& other : owner_->streams)
      if (other->blocking()) depend(*other);
  } else if (blocking() && owner_->legacy != nullptr) {
    depend(*owner_->legacy);
  }
  const std::lock_guard lock(mutex_);
  last_ = op;
  queued_.push_back(op);
  unsettled_.push_back(op);
  worker_need_locked();
  changed_.notify_all();
  return op;
}

void Stream::worker_need_locked() {
  if (worker_) return;
  worker_ = true;
  {
    const std::lock_guard lock(owner_->workers_mutex);
    ++owner_->workers;
  }
  thread_start([self = shared_from_this(), context = owner_] {
    self->worker_run();
    const std::lock_guard lock(context->workers_mutex);
    --context->workers;
    context->workers_changed.notify_all();
  });
}

void Stream::worker_run() {
  prctl(PR_SET_NAME, "softgpu-stream");
  prctl(PR_SET_TIMERSLACK, 5000);  // modelled times are met to some microseconds
  thread_state().in_callback = true;
  for (;;) {
    OpRef op;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queued_.empty() || retiring_ || owner_->closed; });
      if (queued_.empty()) break;
      op = queued_.front();
      queued_.pop_front();
    }
    execute(op);
  }
  // What refers to this stream's operations must know their end before the queue goes.
  OpRef final_op = last();
  (void)wait(final_op);
  {
    const std::lock_guard lock(mutex_);
    last_.reset();  // it refers to this stream, which would otherwise keep itself
  }
  leave();
}

void Stream::leave() {
  const std::lock_guard order(owner_->order);
  std::erase_if(owner_->streams, [this](const StreamRef& other) { return other.get() == this; });
}

void Stream::execute(const OpRef& op) {
  op->floor_ns = op->submitted_ns;
  for (const OpRef& other : op->after) {
    (void)wait(other);
    op->floor_ns = std::max(op->floor_ns, other->finish_ns);
  }
  op->after.clear();
  if (owner_->status() == CUDA_SUCCESS && !owner_->stop) op->run(*this, *op);
  op->run = nullptr;
  op->number = last_number;
  {
    const std::lock_guard lock(mutex_);
    op->state.store(Op::kExecuted, std::memory_order_release);
  }
  changed_.notify_all();
  settle();
}

/// Marks what the device has finished. Called by the worker after every operation, before its
/// number leaves the ring, and by everyone who waits.
void Stream::settle() {
  bool any = false;
  {
    const std::lock_guard lock(mutex_);
    while (!unsettled_.empty()) {
      const OpRef& op = unsettled_.front();
      if (op->state.load(std::memory_order_acquire) != Op::kExecuted) break;
      double finish = 0;
      const bool over = owner_->stop || owner_->status() != CUDA_SUCCESS;
      if (!over && op->number != 0 && !owner_->gpu.model.work_done(queue_, op->number, finish))
        break;
      last_finish_ns_ = std::max({last_finish_ns_, finish, op->floor_ns});
      op->finish_ns = last_finish_ns_;
      op->state.store(Op::kDone, std::memory_order_release);
      unsettled_.pop_front();
      any = true;
    }
  }
  if (any) changed_.notify_all();
}

bool Stream::ready(const OpRef& op) {
  if (op->done()) return true;
  op->stream->settle();
  return op->done();
}

CUresult Stream::wait(const OpRef& op) {
  if (op == nullptr) return CUDA_SUCCESS;
  Stream& stream = *op->stream;
  while (!ready(op)) {
    {
      std::unique_lock lock(stream.mutex_);
      stream.changed_.wait(
          lock, [&] { return op->state.load(std::memory_order_acquire) != Op::kQueued; });
    }
    double finish = 0;
    if (!op->done() && op->number != 0)
      stream.owner_->gpu.model.work_wait(stream.queue_, op->number, finish);
  }
  return stream.owner_->status();
}

OpRef Stream::last() {
  const std::lock_guard lock(mutex_);
  return last_;
}

CUresult Stream::synchronize() {
  OpRef last = this->last();
  if (kind == kLegacy) {
    // The legacy stream is in order with all blocking streams: an empty operation of it waits for
    // them.
    last = submit([](Stream&, Op&) {});
  }
  const CUresult result = wait(last);
  owner_->print_flush();
  return result == CUDA_SUCCESS ? owner_->status() : result;
}

CUresult Stream::query() {
  if (owner_->status() != CUDA_SUCCESS) return owner_->status();
  std::vector<OpRef> all{last()};
  if (kind == kLegacy) {
    const std::lock_guard order(owner_->order);
    for (const StreamRef& other : owner_->streams)
      if (other->blocking()) all.push_back(other->last());
  }
  const bool ready_all = std::all_of(all.begin(), all.end(),
                                     [](const OpRef& op) { return op == nullptr || ready(op); });
  return ready_all ? owner_->status() : CUDA_ERROR_NOT_READY;
}

void Stream::retire() {
  {
    const std::lock_guard lock(mutex_);
    retiring_ = true;
    changed_.notify_all();
    if (worker_) return;
  }
  leave();
}

bool Stream::work_add(Op& op, device::WorkKind work_kind, double cost, double width) {
  device::Device& model = owner_->gpu.model;
  settle();  // before what earlier operations refer to leaves the ring
  const std::uint64_t number =
      model.work_open(queue_, {work_kind, width, op.floor_ns}, owner_->stop);
  if (number == 0) return false;
  last_number = number;
  if (!model.work_charge(queue_, number, cost, owner_->stop)) return false;
  model.work_close(queue_, number);
  return true;
}

void Stream::work_drain() {
  double finish = 0;
  while (last_number != 0 && !owner_->stop &&
         !owner_->gpu.model.work_wait(queue_, last_number, finish)) {
  }
}

CUresult stream_create(const ContextRef& context, Stream::Kind kind, unsigned flags, int priority,
                       StreamRef& stream) {
  stream = std::make_shared<Stream>(context, kind, flags, priority);
  if (stream->queue() == device::kNone) return CUDA_ERROR_OUT_OF_MEMORY;
  if (kind == Stream::kLegacy) return CUDA_SUCCESS;
  Registry<Stream>::all().add(stream);
  const std::lock_guard order(context->order);
  context->streams.push_back(stream);
  return CUDA_SUCCESS;
}

CUresult stream_find(CUstream handle, const ContextRef& current, StreamRef& stream) {
  Thread& thread = thread_state();
  const bool own =
      handle == CU_STREAM_PER_THREAD || (handle == nullptr && thread.per_thread_default);
  if (own) {
    StreamRef& mine = thread.default_streams[current->id];
    if (mine == nullptr) {
      const CUresult result =
          stream_create(current, Stream::kPerThread, CU_STREAM_DEFAULT, 0, mine);
      if (result != CUDA_SUCCESS) return result;
    }
    stream = mine;
    return CUDA_SUCCESS;
  }
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    stream = current->legacy;
    return CUDA_SUCCESS;
  }
  stream = Registry<Stream>::all().find(handle);
  if (stream == nullptr || stream->owner().closed) return CUDA_ERROR_INVALID_HANDLE;
  return stream->owner().status();
}

}  // namespace softgpu::driver
