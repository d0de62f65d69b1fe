// Streams and what runs in them. A stream is a queue of operations, a worker thread and, while it
// has work on the device, a queue of the device. The work of an operation is done ahead of modelled
// time, in order, by the worker or by a thread that waits for it; an operation is *done* when the
// device has given it its time, which settling finds out. Nothing here knows what an operation
// does.
#pragma once

#include <deque>
#include <functional>

#include "softgpu/driver/state.h"

namespace softgpu::driver {

class Op;
using OpRef = std::shared_ptr<Op>;
class Capture;

/// A place in the order of a device queue, and when it was reached if that is known.
struct WorkMark {
  std::uint64_t number = 0;  // 0: before all work
  bool reached = false;
  double finish_ns = 0;
};

class Op : public std::enable_shared_from_this<Op> {
 public:
  enum State { kQueued, kExecuted, kDone };
  /// Whose thread may do the work. What calls functions of the program, or waits for something
  /// other than the device, is the worker's.
  enum class By { kAnyone, kWorker };

  explicit Op(By who) : by(who) {}
  virtual ~Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  virtual void run(Stream& on) = 0;
  /// Lets go of everything it holds; it ran or never will.
  virtual void drop() = 0;
  OpRef shared() { return shared_from_this(); }
  bool done() const { return state.load(std::memory_order_acquire) == kDone; }

  const By by;
  bool always = false;       // runs after a fault, too
  std::vector<OpRef> after;  // of other streams; must be done before this one starts
  StreamRef stream;
  double submitted_ns = 0;
  double floor_ns = 0;   // it cannot have been done earlier: submission and what it waited for
  WorkMark mark;         // where the stream's device queue was when it had executed
  double finish_ns = 0;  // modelled time, once done
  std::atomic<int> state{kQueued};
};

/// What cuStreamSetAttribute sets, apart from the priority. Kept and told; nothing of it changes
/// what work computes.
/// What hardware tells of a stream before its policy is set.
inline constexpr auto kSyncPolicyUnset = static_cast<CUsynchronizationPolicy>(-1);

struct StreamAttributes {
  CUsynchronizationPolicy policy = kSyncPolicyUnset;
  CUaccessPolicyWindow window{};
  CUlaunchMemSyncDomainMap domains{0, 0};
  CUlaunchMemSyncDomain domain = CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
  unsigned nvlink_centric = 0;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum Kind { kCreated, kLegacy, kPerThread };

  Stream(const ContextRef& of, Kind of_kind, unsigned with_flags, int with_priority);
  ~Stream();

  CUstream handle() { return reinterpret_cast<CUstream>(this); }
  bool blocking() const { return kind != kLegacy && (flags & CU_STREAM_NON_BLOCKING) == 0; }
  /// Appends in submission order, with the legacy stream's implicit dependencies.
  void submit(const OpRef& op, std::vector<OpRef> after = {});
  OpRef submit(std::function<void(Stream&, Op&)> run, std::vector<OpRef> after = {});
  /// Everything submitted so far, the error of the context included.
  CUresult synchronize();
  CUresult query();
  OpRef last();
  /// Without pacing: the host's time since the last operation was done is none of the GPU's; what
  /// this process submits from here on begins where that one ended. False: it is not done yet.
  bool go_on();
  /// Work that nobody waits for yet begins now, not at the worker's next look.
  void hurry();
  /// The worker ends when all is done; the handle is gone already.
  void retire();

  StreamAttributes attributes() const;
  void attributes_change(const std::function<void(StreamAttributes&)>& how);

  // For operations, on the thread that executes them.
  /// One piece of device time whose cost is known. False: stopped.
  bool work_add(Op& op, device::WorkKind kind, double cost, double width = 1);
  /// The same in two steps, for work whose cost shows while it executes. 0: stopped.
  std::uint64_t work_begin(const device::WorkRequest& request);
  void work_end(std::uint64_t number, double cost);
  /// All device time so far has been given: a host function may look. The modelled end of it; 0
  /// when there was none, or stopped.
  double work_drain();

  const ContextRef& context() const { return owner_; }
  Context& owner() const { return *owner_; }
  std::uint32_t queue() const { return queue_.load(); }
  /// The GPU has become another device, and everything submitted is done.
  void queue_forget();

  const Kind kind;
  const unsigned flags;
  std::atomic<int> priority;
  const std::uint64_t id;
  std::shared_ptr<Capture> capture;  // guarded by the capture lock (capture.h)

  static CUresult wait(const OpRef& op);
  static bool ready(const OpRef& op);
  /// Whether all that will be submitted to `stream` comes after `op` of another stream, because of
  /// dependencies that are still queued.
  static bool follows(Stream& stream, const Op& op);

 private:
  friend class Context;
  /// What the worker is doing. On patrol it looks at the queue every now and then without being
  /// woken, because the program keeps submitting: waking a thread costs more than a small kernel.
  enum class Worker { kNone, kBusy, kPatrol, kAsleep };

  [[nodiscard]] int worker_start_locked();
  void worker_lack(const Op& op, int error);
  void worker_run();
  bool worker_loop();
  void worker_wake_locked();
  void leave();
  void queue_give();
  [[nodiscard]] bool queue_hold();
  bool queue_open();
  bool queue_wait();
  bool queue_spare();
  static bool queues_spare(Gpu& gpu);
  void queue_yield();
  bool mark_reached_locked();
  std::vector<OpRef> lasts();

  bool available_locked() const { return begun_ < ops_.size() && !executing_; }
  void execute_locked(std::unique_lock<std::mutex>& lock);
  void perform(Op& op);
  void settle();
  void settle_locked();
  bool help(const Op& target);
  void wait_executed(const Op& target);

  ContextRef owner_;
  // kNone: none of its work is on the device. Taken and given back by the thread that executes;
  // given back for another stream by any thread, under the mutex, while `working_` is false.
  std::atomic<std::uint32_t> queue_ = device::kNone;
  std::atomic<bool> working_{false};  // an operation is between its begin and its end there
  std::uint32_t queue_moves_ = 0;     // Device::moves() when the queue was taken
  double queue_taken_ns_ = 0;
  double idle_since_ns_ = 0;  // of the device: while it has no queue
  mutable std::mutex mutex_;
  std::condition_variable work_;         // for the worker
  std::condition_variable changed_;      // for those who wait for operations
  std::deque<OpRef> ops_;                // not known to be done; in order
  std::size_t begun_ = 0;                // how many of them have executed or do now
  bool executing_ = false;               // somebody is at the last of those
  std::atomic<std::size_t> pending_{0};  // size of ops_
  std::uint64_t submitted_ = 0;
  unsigned waiters_ = 0;
  OpRef last_;
  double last_finish_ns_ = 0;
  Worker worker_ = Worker::kNone;
  bool retiring_ = false;
  bool left_ = false;  // what a thread that had it still submits reaches no device
  StreamAttributes attributes_;
  WorkMark mark_;  // of the thread that executes, and of any as `queue_` is
  // Of the thread that executes.
  double floor_ns_ = 0;  // what the operations so far could not have been done before
};

inline constexpr std::size_t kStreamsMax = 16384;  // that a process has at a time

/// Resolves a stream argument: null, the special handles, or a created one of any living context.
CUresult stream_find(CUstream handle, const ContextRef& current, StreamRef& stream);
CUresult stream_create(const ContextRef& context, Stream::Kind kind, unsigned flags, int priority,
                       StreamRef& stream);

}  // namespace softgpu::driver
