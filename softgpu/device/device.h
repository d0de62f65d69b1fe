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
#include <string>
#include <vector>

#include "softgpu/device/segment.h"

namespace softgpu::device {

/// How far execution may run ahead of the time the device has given.
inline constexpr double kAheadNs = 20e6;
/// Every kernel takes at least this long on the device.
inline constexpr double kLaunchNs = 3000;
/// Device time lost when another process's turn begins.
inline constexpr double kSwitchNs = 5000;
/// A copy inside the device is this much faster than one over the link.
inline constexpr double kInsideFactor = 8;

double clock_ns();  // CLOCK_MONOTONIC

/// A process is identified by pid and start time, so that a reused pid is not mistaken for it.
std::uint64_t process_start_ticks(int pid);  // 0 = no such process, or it has ended
std::string process_name(int pid);

struct WorkRequest {
  WorkKind kind = WorkKind::kCompute;
  double width = 1;  // SMs it can use at most; 1 for copies
  double ready_ns =
      0;  // when the program submitted it (idle device time since then is credited to it)
};

/// A consistent copy of the accounts, for NVML and softgpu-ctl.
struct Snapshot {
  unsigned char uuid[16] = {};
  std::uint32_t index = 0;
  std::uint64_t capacity_bytes = 0, used_bytes = 0;
  double elapsed_ns = 0, busy_ns = 0, sm_ns = 0, lag_ns = 0;
  double recent_busy_ratio = 0, recent_copy_ratio = 0;  // of the last second
  struct Process {
    Account account;  // memory with the shared objects charged to it
    bool alive = false;
  };
  std::vector<Process> processes;  // the living first, then the ended, oldest first
};

class Device {
 public:
  explicit Device(Segment* segment) : segment_(segment) {}

  const Segment& settings() const { return *segment_; }
  bool paced() const { return segment_->pacing != 0; }
  /// Modelled cost of executed warp instructions, in SM x ns.
  double compute_cost(std::uint64_t warp_instructions) const {
    return static_cast<double>(warp_instructions) * 1e9 * segment_->sm_count / segment_->rate;
  }
  double copy_cost(WorkKind kind, std::uint64_t bytes) const;

  // Clients: a process registers once and stays until it ends. kNone when the device has no place.
  std::uint32_t client_open();
  void client_close(std::uint32_t client);

  // Memory. False = the device is full, also after looking for processes that have died.
  [[nodiscard]] bool memory_take(std::uint32_t client, std::uint64_t bytes);
  void memory_give(std::uint32_t client, std::uint64_t bytes);
  [[nodiscard]] bool shared_create(std::uint32_t client, std::uint64_t inode, std::uint64_t bytes);
  /// False: no living process holds an object of this inode, or too many do.
  [[nodiscard]] bool shared_hold(std::uint32_t client, std::uint64_t inode);
  void shared_release(std::uint32_t client, std::uint64_t inode);
  std::uint64_t used_bytes();

  // Queues of a client. kNone when all are taken.
  std::uint32_t queue_open(std::uint32_t client);
  void queue_close(std::uint32_t queue);

  /// Starts an operation of unknown cost; waits while the queue is full. Returns its number, 0 when
  /// `stop` came.
  std::uint64_t work_open(std::uint32_t queue, const WorkRequest& request,
                          const std::atomic<bool>& stop);
  /// Adds cost to an open operation and blocks while execution is too far ahead. False when `stop`
  /// came.
  bool work_charge(std::uint32_t queue, std::uint64_t number, double cost,
                   const std::atomic<bool>& stop);
  void work_close(std::uint32_t queue, std::uint64_t number);
  /// Whether it has had all its modelled time; `finish_ns` is when.
  bool work_done(std::uint32_t queue, std::uint64_t number, double& finish_ns);
  /// Sleeps towards the moment it can be done at the earliest (at most 10 ms), then tells whether
  /// it is.
  bool work_wait(std::uint32_t queue, std::uint64_t number, double& finish_ns);

  void launch_count(std::uint32_t client);
  Snapshot snapshot();
  /// Clients that are alive now.
  std::uint32_t users();

 private:
  friend class Lock;
  Work& work(std::uint32_t queue, std::uint64_t number) {
    return segment_->queues[queue].ring[number % kQueueDepth];
  }
  std::uint64_t used_locked() const;
  bool fits_locked(std::uint64_t bytes);
  void reap_locked();
  void drop_locked(std::uint32_t client);
  void shared_drop_locked(Shared& object, std::uint32_t client, bool all);
  double queue_ahead_locked(const Queue& queue, std::uint64_t number) const;
  void account_locked(std::uint32_t client, const Work& work, double amount);

  Segment* segment_;
};

/// Holds the segment's lock and has brought the model up to `clock_ns()`. A dead owner's lock is
/// taken over and what it left is repaired.
class Lock {
 public:
  explicit Lock(Device& device);
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Device& device_;
};

/// Advances the fluid model of `segment` to `target_ns`; the caller holds the lock. (model.cpp)
void model_advance(Segment& segment, double target_ns);

}  // namespace softgpu::device
