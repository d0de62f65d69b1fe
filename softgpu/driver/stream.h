// Streams and what runs in them. A stream is a queue of operations with a worker thread and a queue
// of the device. The worker does the work of an operation ahead of modelled time; an operation is
// *done* when the device has given it its time, which settle() finds out. Nothing here knows what
// an operation does.
#pragma once

#include <deque>
#include <functional>

#include "softgpu/driver/state.h"

namespace softgpu::driver {

class Op;
using OpRef = std::shared_ptr<Op>;
class Capture;

class Op : public std::enable_shared_from_this<Op> {
 public:
  enum State { kQueued, kExecuted, kDone };

  explicit Op(std::function<void(Stream&, Op&)> body) : run(std::move(body)) {}
  OpRef shared() { return shared_from_this(); }
  bool done() const { return state.load(std::memory_order_acquire) == kDone; }

  std::function<void(Stream&, Op&)> run;
  std::vector<OpRef> after;  // of other streams; must be done before this one starts
  StreamRef stream;
  double submitted_ns = 0;
  double floor_ns = 0;       // it cannot have been done earlier: submission and what it waited for
  std::uint64_t number = 0;  // last work of the device queue when it had executed
  double finish_ns = 0;      // modelled time, once done
  std::atomic<int> state{kQueued};
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum Kind { kCreated, kLegacy, kPerThread };

  Stream(const ContextRef& of, Kind of_kind, unsigned with_flags, int with_priority);
  ~Stream();

  CUstream handle() { return reinterpret_cast<CUstream>(this); }
  bool blocking() const { return kind != kLegacy && (flags & CU_STREAM_NON_BLOCKING) == 0; }
  /// Appends in submission order, with the legacy stream's implicit dependencies.
  OpRef submit(std::function<void(Stream&, Op&)> run, std::vector<OpRef> after = {});
  /// Everything submitted so far, the error of the context included.
  CUresult synchronize();
  CUresult query();
  OpRef last();
  /// The worker ends when all is done; the handle is gone already.
  void retire();

  // For operations, on the worker thread.
  /// One piece of device time whose cost is known. False: stopped.
  bool work_add(Op& op, device::WorkKind kind, double cost, double width = 1);
  /// All device time so far has been given: a host function may look.
  void work_drain();

  const ContextRef& context() const { return owner_; }
  Context& owner() const { return *owner_; }
  std::uint32_t queue() const { return queue_; }

  const Kind kind;
  const unsigned flags;
  const int priority;
  const std::uint64_t id;
  std::shared_ptr<Capture> capture;  // guarded by the capture lock (capture.h)
  std::uint64_t last_number = 0;     // worker only

  static CUresult wait(const OpRef& op);
  static bool ready(const OpRef& op);

 private:
  friend class Context;
  void worker_run();
  void leave();
  void execute(const OpRef& op);
  void settle();
  void worker_need_locked();

  ContextRef owner_;
  std::uint32_t queue_ = device::kNone;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OpRef> queued_;
  std::deque<OpRef> unsettled_;  // executed or executing, not known to be done; in order
  OpRef last_;
  double last_finish_ns_ = 0;
  bool worker_ = false;
  bool retiring_ = false;
};

/// Resolves a stream argument: null, the special handles, or a created one of any living context.
CUresult stream_find(CUstream handle, const ContextRef& current, StreamRef& stream);
CUresult stream_create(const ContextRef& context, Stream::Kind kind, unsigned flags, int priority,
                       StreamRef& stream);

}  // namespace softgpu::driver
