// One software GPU as a process sees it: who is on it (clients), what they hold (memory) and what
// they have been given (time). All state is in the shared segment; this class takes its lock,
// brings the model up to the present moment and reads or changes it. Knows nothing of CUDA.
//
// Time. A stream is a queue of operations, served in order. Operations execute on the host
// (elsewhere) as fast as they can, but at most kAheadNs before their modelled time; what the
// program can observe (events, synchronisation) waits for the modelled time. Between processes the
// device works in slices, round robin; inside a process the operations at the heads of its queues
// share the SMs by width. Copies and links are engines of their own.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "softgpu/device/life.h"
#include "softgpu/device/segment.h"

namespace softgpu::device {

/// How far execution may run ahead of the time the device has given.
inline constexpr double kAheadNs = 20e6;
/// How long the place of a client that has nothing is kept for what it is about to take.
inline constexpr double kTakeNs = 100e6;
/// A copy inside the device is this much faster than one over the link.
inline constexpr double kInsideFactor = 8;

/// CLOCK_MONOTONIC without what a time namespace adds to it: the same for all processes.
double clock_ns();

/// What the process `pid` of this namespace is called by itself.
ProcessName process_named(int pid);
/// The pid by which this process may know another one: 0 if none of its pid namespace. `ticks`
/// (Account::start_ticks) tells processes apart where their namespaces cannot be read; 0 = not
/// known. Reads all of /proc when the namespace is another one, so hold no lock.
int process_pid(const ProcessName& name, std::uint64_t ticks);
std::uint64_t process_start_ticks(int pid);  // 0 = no such process, or it has ended
std::string process_name(int pid);
enum class ProcessStop { kRuns, kStopped, kTraced };
/// Whether all threads of a process are stopped; kTraced: one of them by a debugger.
ProcessStop process_stop(int pid);

class GivenFiles;

/// What `softgpu-ctl set` may change while the device works; 0 and -1 leave a value as it is.
struct Change {
  double rate = 0;
  double copy_rate = 0;
  double slice_ns = 0;
  double switch_ns = -1;
  double launch_ns = -1;
  int pacing = -1;
  std::optional<std::vector<TimedRule>> timed;
};

struct FaultRule {
  std::uint32_t id = 0;  // its place in the table
  Fault fault;
};

/// What has happened to a client since a moment in the count of alarms.
struct Alarm {
  std::uint32_t xid = 0;  // 0 = none
  bool lost = false;
  bool evicted = false;  // others found the process dead (life.h): it holds nothing any more
};

/// How much of the time a process had a kernel on the device.
struct Use {
  int pid = 0;  // as this process may know it
  double ratio = 0;
  double until_ns = 0;  // end of the last history window in which it had any
};

struct WorkRequest {
  WorkKind kind = WorkKind::kCompute;
  double width = 1;  // SMs it can use at most; 1 for copies
  // When the device could have begun it: it was submitted, and what it waits for was done.
  double ready_ns = 0;
  double cost = 0;            // what of it is known when it opens
  std::int32_t priority = 0;  // of a kernel, as of streams: smaller goes first
  bool counted = false;       // as a launch of the client
};

/// A consistent copy of the accounts, for NVML and softgpu-ctl.
struct Snapshot {
  unsigned char uuid[16] = {};
  std::uint32_t index = 0;
  std::uint64_t capacity_bytes = 0, used_bytes = 0;
  std::uint64_t peak_bytes = 0;  // of used_bytes, ever, at every moment and not only when asked
  double elapsed_ns = 0, busy_ns = 0, sm_ns = 0, lag_ns = 0;
  double recent_busy_ratio = 0, recent_copy_ratio = 0;  // of the last second
  bool lost = false;
  Account forgotten;  // the sum of the ended that are no longer listed
  struct Process {
    Account account;  // memory with the shared objects charged to it
    bool alive = false;
    int pid = 0;  // as this process may know it; 0 = it is of another pid namespace
  };
  std::vector<Process> processes;  // the living first, then the ended, oldest first
};

class Device {
 public:
  explicit Device(Segment* segment) : segment_(segment), lives_(&Lives::of(segment)) {}

  const Segment& settings() const { return *segment_; }
  Segment* segment() const { return segment_; }
  Lives& lives() const { return *lives_; }
  bool paced() const { return segment_->pacing != 0; }
  /// Modelled cost of executed warp instructions, in SM x ns.
  double compute_cost(std::uint64_t warp_instructions) const {
    return static_cast<double>(warp_instructions) * 1e9 * segment_->sm_count / segment_->rate;
  }
  double copy_cost(WorkKind kind, std::uint64_t bytes) const;
  /// The rule that a kernel of this name falls under. (timed.cpp)
  std::optional<TimedRule> timed(const std::string& kernel);
  /// What every kernel of this width costs before its first instruction.
  double launch_cost(double width) const { return segment_->launch_ns * width; }
  /// Continues on another segment; the caller has closed everything it had on the old one.
  void rebind(Segment* segment) {
    segment_ = segment;
    lives_ = &Lives::of(segment);
    ++moves_;
  }
  /// How often it has been; what was opened before the last time is closed already.
  std::uint32_t moves() const { return moves_; }

  // Clients: a process registers and stays until it ends, or until another process needs the place
  // of one that has nothing there. kNone when the device has no place, or when others could not see
  // that the process lives.
  std::uint32_t client_open();
  /// The client is about to take something, within kTakeNs. False: it is this process's no more.
  [[nodiscard]] bool client_need(std::uint32_t client);
  void client_close(std::uint32_t client);
  /// The client of this life; no value if there is none, or if it has ended.
  std::optional<Account> client_of(std::uint32_t life);

  // Checkpoint: what the client holds is given back and later taken again, all of it or nothing.
  // Charges made in between count as usual.
  void client_suspend(std::uint32_t client);
  [[nodiscard]] bool client_resume(std::uint32_t client);
  /// Some object is held by this client and by another.
  bool client_shares(std::uint32_t client);
  /// Copies a suspended client's claims (not its account) to another device; they are still to be
  /// taken there. False: too many objects.
  [[nodiscard]] static bool client_move(Device& from, std::uint32_t from_client, Device& to,
                                        std::uint32_t to_client);

  /// Counts a context and takes its memory. False: as memory_take().
  [[nodiscard]] bool context_take(std::uint32_t client);
  void context_give(std::uint32_t client);

  // Memory. False = the device is full, also after looking for processes that have died, or the
  // client is not this process's any more.
  [[nodiscard]] bool memory_take(std::uint32_t client, std::uint64_t bytes);
  void memory_give(std::uint32_t client, std::uint64_t bytes);
  [[nodiscard]] bool shared_create(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes);
  /// What the client has taken becomes an object that others may hold too. False: the client has
  /// made kSharedEach of them.
  [[nodiscard]] bool shared_adopt(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes);
  /// Holds an object that other processes may hold as well, or makes it. False: the device is full,
  /// or the client has made too many objects.
  [[nodiscard]] bool shared_join(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes);
  /// False: there is no object of this inode.
  [[nodiscard]] bool shared_hold(std::uint32_t client, std::uint64_t inode);
  /// From now on descriptors hold the object, too (given_files.h).
  void shared_give(std::uint64_t inode);
  /// True: nothing holds it any more, and its charge is gone.
  bool shared_release(std::uint32_t client, std::uint64_t inode);
  std::uint64_t used_bytes();

  /// A queue for a stream of the client that has been idle since `since_ns`. kNone: the client has
  /// kQueuesEach of them.
  std::uint32_t queue_open(std::uint32_t client, double since_ns);
  void queue_close(std::uint32_t queue);

  /// Starts an operation of unknown cost; waits while the queue is full. Returns its number; 0 if
  /// `stop` came, or the queue is no more this process's.
  std::uint64_t work_open(std::uint32_t queue, const WorkRequest& request,
                          const std::atomic<bool>& stop);
  /// Adds cost to an open operation and blocks while execution is too far ahead. False as above.
  bool work_charge(std::uint32_t queue, std::uint64_t number, double cost,
                   const std::atomic<bool>& stop);
  /// With the rest of its cost. What the host was late with it is made up for by time in which its
  /// engine was idle since it was ready. True when it has had all its time; `finish_ns` is when.
  bool work_close(std::uint32_t queue, std::uint64_t number, double cost, double& finish_ns);
  void work_close(std::uint32_t queue, std::uint64_t number) {
    double finish = 0;
    (void)work_close(queue, number, 0, finish);
  }
  /// Whether it has had all its modelled time; `finish_ns` is when.
  bool work_done(std::uint32_t queue, std::uint64_t number, double& finish_ns);
  /// Sleeps towards the moment it can be done at the earliest (at most 10 ms), then tells whether
  /// it is.
  bool work_wait(std::uint32_t queue, std::uint64_t number, double& finish_ns);

  /// Modelled time at which an executing operation is: what it has cost so far, placed after what
  /// is before it.
  double work_time(std::uint32_t queue, std::uint64_t number);

  Snapshot snapshot();
  /// The living clients that used the device after `since_ns` (complete history windows only).
  std::vector<Use> uses(double since_ns);
  /// Clients that are alive now.
  std::uint32_t users();

  // Control, from outside. Pids are of the caller's namespace. False: no such process is on the
  // device, or no place is left.
  void change(const Change& change);
  [[nodiscard]] bool weight_set(int pid, double weight);
  bool has_process(int pid);
  [[nodiscard]] bool fault_add(const Fault& fault, std::uint32_t& id);
  [[nodiscard]] bool fault_remove(std::uint32_t id);
  /// Removes every fault and brings a lost device back.
  void faults_clear();
  std::vector<FaultRule> faults();
  /// An event of the device. With `pid` it strikes that process alone, else all that are there.
  void xid_raise(std::uint32_t number, int pid);
  /// Notes an event for those who watch; the process it strikes knows already.
  void xid_note(std::uint32_t number);
  void lose();
  bool lost() const { return __atomic_load_n(&segment_->lost, __ATOMIC_ACQUIRE) != 0; }
  /// One load: cheap enough for every call.
  std::uint32_t alarm() const { return __atomic_load_n(&segment_->alarm, __ATOMIC_ACQUIRE); }
  Alarm alarm_since(std::uint32_t client, std::uint32_t alarm) const;
  /// Number of events so far, and one of them (false when it is too old or yet to come).
  std::uint32_t xid_count() const {
    return __atomic_load_n(&segment_->xid_count, __ATOMIC_ACQUIRE);
  }
  bool xid_get(std::uint32_t number, Xid& xid);
  /// Sleeps until there are more than `number` of them, at most so long.
  void xid_wait(std::uint32_t number, double timeout_ns) const;

 private:
  friend class Lock;
  Work& work(std::uint32_t queue, std::uint64_t number) {
    return segment_->queues[queue].ring[number % kQueueDepth];
  }
  bool own_locked(std::uint32_t client) const {
    return client < kClientsMax && segment_->clients[client].life == lives_->own();
  }
  bool rests_locked(std::uint32_t client) const;
  std::uint32_t place_locked();
  bool take_locked(std::uint32_t client, std::uint64_t bytes);
  void give_locked(std::uint32_t client, std::uint64_t bytes);
  std::uint64_t used_locked() const;
  void xid_add_locked(std::uint32_t number);
  void xid_wake() const;
  bool fits_locked(std::uint64_t bytes);
  void peak_note_locked();
  bool refused_locked(std::uint32_t client);
  void forget_locked();
  void ended_add_locked(std::uint32_t client);
  void snapshot_take(Snapshot& result);
  std::vector<Use> uses_take(double since_ns, std::vector<Account>& accounts);
  void reap_locked();
  void repair_locked();
  void drop_locked(std::uint32_t client);
  bool shared_hold_locked(std::uint32_t client, std::uint64_t inode);
  bool shared_add_locked(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes);
  Shared* shared_find_locked(std::uint64_t inode);
  Shared* shared_place_locked(std::uint32_t client);
  void shared_drop_locked(Shared& object, std::uint32_t client, GivenFiles& files);
  void shared_free_locked(Shared& object);
  void queue_drop_locked(std::uint32_t queue);
  void given_reap_locked();
  void unpaced_finish_locked(std::uint32_t queue);
  /// Where an operation at a queue's head lies in the idle time since it was ready.
  struct Placed {
    double gained = 0;   // of its cost, beyond what it has received
    bool whole = false;  // it lies there with all its cost, and ends at `end_ns`
    double end_ns = 0;
  };
  Placed place_locked(Idle& idle, const Queue& queue, const Work& work) const;
  Idle idle_of_locked(const Queue& queue, const Work& work) const;
  bool close_locked(std::uint32_t queue, Work& work);
  double queue_ahead_locked(const Queue& queue, std::uint64_t number) const;
  void account_locked(std::uint32_t client, const Work& work, double amount);

  Segment* segment_;
  Lives* lives_;
  std::uint32_t moves_ = 0;
  /// How often this process holds an object, by its inode; guarded by the segment's lock.
  std::map<std::uint64_t, std::uint32_t> holds_;
};

/// Holds the segment's lock and has brought the model up to `clock_ns()`. A dead owner's lock is
/// taken over and what it left is repaired. (lock.cpp)
class Lock {
 public:
  explicit Lock(Device& device);
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Device& device_;
};

/// Whether a fault keeps this client from getting device time. (control.cpp)
bool client_hangs(const Segment& segment, std::uint32_t client);
/// Makes every context look at its state. (control.cpp)
void alarm_sound(Segment& segment);
/// The operation at the head of the queue has had all its time at `at_ns`. (model.cpp)
void head_finish(Segment& segment, std::uint32_t queue, double at_ns);
/// Notes kernel time of a client in the utilization history. (model.cpp)
void window_use(Segment& segment, std::uint32_t client, double busy_ns);

/// Advances the fluid model of `segment` to `target_ns`; the caller holds the lock. (model.cpp)
void model_advance(Segment& segment, double target_ns);

}  // namespace softgpu::device
