// Streams as objects: making, submitting to, asking, ending. How their work gets done is in
// stream_work.cpp.
#include "softgpu/driver/stream.h"

#include <unistd.h>

#include <algorithm>

#include "softgpu/driver/capture.h"

namespace softgpu::driver {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> id{1};
  return id++;
}

/// An operation that is a function of the driver, for what is rare.
class FunctionOp : public Op {
 public:
  explicit FunctionOp(std::function<void(Stream&, Op&)> body)
      : Op(By::kWorker), body_(std::move(body)) {}
  void run(Stream& on) override { body_(on, *this); }
  void drop() override { body_ = nullptr; }

 private:
  std::function<void(Stream&, Op&)> body_;
};

}  // namespace

Stream::Stream(const ContextRef& of, Kind of_kind, unsigned with_flags, int with_priority)
    : kind(of_kind),
      flags(with_flags),
      priority(with_priority),
      id(next_id()),
      owner_(of),
      idle_since_ns_(device::clock_ns()) {}

Stream::~Stream() { queue_give(); }

void Stream::submit(const OpRef& op, std::vector<OpRef> after) {
  op->stream = shared_from_this();
  op->submitted_ns = owner_->gpu.now_ns();
  std::erase_if(after, [&](const OpRef& other) {
    if (other == nullptr) return true;
    if (!other->done()) return false;
    op->submitted_ns = std::max(op->submitted_ns, other->finish_ns);  // ahead only without pacing
    return true;
  });
  op->after = std::move(after);
  std::unique_lock order(owner_->order);
  const auto depend = [&](Stream& other) {
    if (other.pending_.load(std::memory_order_acquire) == 0) return;
    const OpRef last = other.last();
    if (last != nullptr && !last->done()) op->after.push_back(last);
  };
  if (kind == kLegacy) {
    for (const StreamRef& other : owner_->streams)
      if (other->blocking()) depend(*other);
  } else if (blocking() && owner_->legacy != nullptr) {
    depend(*owner_->legacy);
  }
  std::unique_lock lock(mutex_);
  last_ = op;
  ops_.push_back(op);
  pending_.store(ops_.size(), std::memory_order_release);
  ++submitted_;
  if (worker_ != Worker::kNone) return worker_wake_locked();
  const int error = worker_start_locked();
  if (error == 0) return;
  lock.unlock();
  order.unlock();
  worker_lack(*op, error);
}

OpRef Stream::submit(std::function<void(Stream&, Op&)> run, std::vector<OpRef> after) {
  auto op = std::make_shared<FunctionOp>(std::move(run));
  submit(op, std::move(after));
  return op;
}

OpRef Stream::last() {
  const std::lock_guard lock(mutex_);
  return last_;
}

bool Stream::go_on() {
  const std::lock_guard lock(mutex_);
  settle_locked();
  if (!ops_.empty()) return false;
  if (owner_->gpu.model.paced() || last_finish_ns_ == 0) return true;
  owner_->gpu.behind_ns = std::max(0.0, device::clock_ns() - last_finish_ns_);
  return true;
}

/// The last operations of all streams that this one's next operation would come after.
std::vector<OpRef> Stream::lasts() {
  std::vector<OpRef> all;
  const auto add = [&](Stream& stream) {
    if (stream.pending_.load(std::memory_order_acquire) != 0) all.push_back(stream.last());
  };
  add(*this);
  if (kind != kLegacy) return all;
  const std::lock_guard order(owner_->order);
  for (const StreamRef& other : owner_->streams)
    if (other->blocking()) add(*other);
  return all;
}

CUresult Stream::synchronize() {
  const std::vector<OpRef> all = lasts();
  for (std::size_t i = 1; i < all.size(); ++i) all[i]->stream->hurry();
  for (const OpRef& op : all) (void)wait(op);
  owner_->print_flush();
  return owner_->status();
}

CUresult Stream::query() {
  if (owner_->status() != CUDA_SUCCESS) return owner_->status();
  for (const OpRef& op : lasts())
    if (!ready(op)) return CUDA_ERROR_NOT_READY;
  return owner_->status();
}

StreamAttributes Stream::attributes() const {
  const std::lock_guard lock(mutex_);
  return attributes_;
}

void Stream::attributes_change(const std::function<void(StreamAttributes&)>& how) {
  const std::lock_guard lock(mutex_);
  how(attributes_);
}

CUresult stream_create(const ContextRef& context, Stream::Kind kind, unsigned flags, int priority,
                       StreamRef& stream) {
  // Bounded, so that a program that loses its streams is told before the host has no memory.
  if (kind != Stream::kLegacy && Registry<Stream>::all().size() >= kStreamsMax)
    return CUDA_ERROR_OUT_OF_MEMORY;
  stream = std::make_shared<Stream>(context, kind, flags, priority);
  if (kind == Stream::kLegacy) return CUDA_SUCCESS;
  Registry<Stream>::all().add(stream);
  std::vector<OpRef> awaited;
  {
    const std::lock_guard order(context->order);
    context->streams.push_back(stream);
    awaited = context->awaited;
  }
  std::erase_if(awaited, [](const OpRef& op) { return op->done(); });
  if (!awaited.empty()) stream->submit([](Stream&, Op&) {}, std::move(awaited));
  return CUDA_SUCCESS;
}

// The first thread's end is the process's, and in the child of a fork the streams are not there.
Thread::~Thread() {
  if (default_streams.empty() || gettid() == getpid()) return;
  if (Process::get().status() != CUDA_SUCCESS) return;
  for (const auto& [context, stream] : default_streams) {
    if (stream == nullptr) continue;
    capture_leave(*stream);
    Registry<Stream>::all().take(stream.get());
    stream->retire();
  }
}

CUresult stream_find(CUstream handle, const ContextRef& current, StreamRef& stream) {
  Thread& thread = thread_state();
  const bool own =
      handle == CU_STREAM_PER_THREAD || (handle == nullptr && thread.per_thread_default);
  if (own) {
    StreamRef& mine = thread.default_streams[current->id];
    if (mine == nullptr) {
      StreamRef made;
      const CUresult result =
          stream_create(current, Stream::kPerThread, CU_STREAM_DEFAULT, 0, made);
      if (result != CUDA_SUCCESS) return result;
      mine = made;
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
