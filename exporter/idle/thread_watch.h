// What the threads of watched processes did, moment by moment: on a CPU, waiting for one, or asleep
// and for what. Two sources: BPF programs (exact; thread_watch_bpf.cpp) and samples of /proc
// (coarse; thread_watch_proc.cpp). All times are CLOCK_MONOTONIC nanoseconds; all numbers of
// processes and threads are the host's.
//
// Knows nothing of GPUs, tenants' accounts or causes: causes.h makes those out of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sluice::exporter {

/// A thread of one process. A number that a program tells is no thread by itself: it may be another
/// program's.
struct HostThread {
  std::uint32_t process = 0;
  std::uint32_t thread = 0;
};

/// What a thread waits for while it is off the CPU.
enum class WaitKind : std::uint8_t {
  kNone,  // it could run and had no CPU (preempted, or throttled by its cgroup)
  kDisk,  // block I/O, page faults from files (the kernel's in_iowait, or D state in a file call)
  kNetwork,  // an internet socket
  kLocal,    // a pipe, a UNIX socket, an eventfd, an epoll or poll over such: who woke it matters
  kLock,     // a futex
  kTimer,    // a sleep for a time, and nothing else
  kDevice,   // a call into a device file (ioctl of a driver)
  kOther,    // anything else, its own children (wait4) among them
};

/// One period off the CPU: asleep from `left_ns` to `woken_ns`, waiting for a CPU from then to
/// `back_ns`. Before and after it the thread ran. kNone: woken_ns == left_ns.
struct OffCpu {
  std::uint32_t thread = 0;   // number of the thread
  std::uint32_t process = 0;  // of its process (thread group)
  std::uint64_t left_ns = 0;
  std::uint64_t woken_ns = 0;  // not woken yet: UINT64_MAX
  std::uint64_t back_ns = 0;   // not back yet: UINT64_MAX
  WaitKind kind = WaitKind::kNone;
  // Who woke it; 0 where nobody did (a timer, an interrupt) or it is not known. A waker need not be
  // watched.
  std::uint32_t waker_thread = 0;
  std::uint32_t waker_process = 0;
};

class ThreadWatch {
 public:
  virtual ~ThreadWatch() = default;

  /// Watches exactly these processes, all of their threads, and what they start from now on and
  /// have started (descendants), until called again. At most some thousands.
  virtual void processes_set(const std::vector<std::uint32_t>& processes) = 0;

  /// Appends what ended since the last call (back_ns known), oldest first for each thread, and then
  /// every period that still goes on. Returns the time up to which this is complete: what happened
  /// before it has been handed out. Called some times a second.
  virtual std::uint64_t periods_read(std::vector<OffCpu>& out) = 0;

  /// Periods that were lost because nobody read in time; only grows.
  virtual std::uint64_t lost() const = 0;

  /// The process of the list that this one is or descends from; 0 where it is not watched.
  virtual std::uint32_t root_of(std::uint32_t process) = 0;

  /// 'R' where the thread runs or wants to now, another letter where it sleeps, '\0' where it is
  /// gone, not watched, or of another process.
  virtual char letter_of(HostThread thread) = 0;

  /// True for samples: states hold from one sample to the next, wakers are not known.
  virtual bool is_coarse() const = 0;
};

/// BPF where it is permitted; else null, and `reason` says why and what to do.
std::unique_ptr<ThreadWatch> thread_watch_bpf(std::string* reason);

/// Samples /proc/PID/task/TID/{stat,schedstat,syscall,wchan} every `interval_ns` on a thread of its
/// own. Works without privileges for processes of the same user.
std::unique_ptr<ThreadWatch> thread_watch_proc(std::uint64_t interval_ns);

}  // namespace sluice::exporter
