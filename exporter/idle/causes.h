// Why a GPU had nothing to do for a tenant: from what a thread did between two moments to the one
// cause of each part of it. Pure: told everything, asks nobody.
//
// A thread that waits for another thread of its tenant (a lock, a queue, a pipe, a child) waits for
// whatever that one did meanwhile, so the wait is explained by the waker's own time, and so on, at
// most four deep. docs/idle-causes.md has the rules and their limits.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "exporter/idle/thread_watch.h"

namespace sluice::exporter {

enum class Cause : std::uint8_t {
  kCpu,       // it computed: preparing data, launching
  kRunqueue,  // it could run and had no CPU: other programs, a cgroup's limit
  kDisk,
  kNetwork,  // internet sockets: peers of a distributed job among them
  kLock,     // a futex whose owner did nothing that explains it
  kSync,     // in the driver: copies, and what comes after the end of a kernel
  kGate,     // waiting for its lease
  kMemory,   // waiting for room on the GPU
  kNoWork,   // asleep, or waiting for input
};
inline constexpr std::size_t kCauses = 9;
inline constexpr const char* kCauseNames[kCauses] = {
    "cpu", "runqueue", "disk", "network", "lock", "sync", "gate", "memory", "no-work"};

/// Nanoseconds by cause.
using CauseTimes = std::array<std::uint64_t, kCauses>;
std::uint64_t times_sum(const CauseTimes& times);

/// A wait of a thread that its process told of: kGate, kMemory or kSync.
struct ToldWait {
  HostThread thread;
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
  Cause cause = Cause::kGate;
};

inline constexpr int kFollowMax = 4;
inline constexpr std::uint64_t kPatienceNs = 5'000'000'000;
/// Periods and waits that a history keeps beside two for each thread. Of more, the older half is
/// dropped.
inline constexpr std::size_t kHistoryMax = 1U << 16;
/// Threads of which only a process told: so many are asked for between two calls of forget().
inline constexpr std::uint32_t kAsksMax = 256;

/// What the threads of one tenant's processes did lately. A tenant may write any number of any
/// thread into its page, so only threads that exist have a history, and its size is bounded.
class ThreadHistory {
 public:
  /// 'R' when the thread runs or wants to now, '\0' when the process has no such thread: for
  /// threads that have not left their CPU since they are watched, or sleep since before.
  using StateNow = std::function<char(HostThread thread)>;
  explicit ThreadHistory(StateNow state_now) : state_now_(std::move(state_now)) {}

  /// As ThreadWatch tells them: periods that ended, and then those that go on, which replace what
  /// was said of them before.
  void periods_add(const std::vector<OffCpu>& periods);
  /// In the order in which they begin, for each thread; a wait that goes on may be told again. Left
  /// out where the process has no such thread.
  void wait_add(const ToldWait& wait);
  /// Forgets what ended before.
  void forget(std::uint64_t before_ns);

  /// Until when it is known what the thread does: not beyond the beginning of a wait that goes on
  /// and that its waker will explain, unless it has gone on for kPatienceNs.
  std::uint64_t explained_until(HostThread thread, std::uint64_t known_ns) const;

  /// What the thread did from begin to end. `tenant`: the processes through which waits are
  /// followed.
  CauseTimes explain(HostThread thread, std::uint64_t begin_ns, std::uint64_t end_ns,
                     const std::set<std::uint32_t>& tenant) const;

 private:
  struct Thread {
    std::deque<OffCpu> periods;  // by left_ns, disjoint; the last may go on
    std::deque<ToldWait> waits;  // by begin_ns, disjoint
  };
  struct Span {
    std::uint64_t begin_ns, end_ns;
  };
  /// By process and thread.
  static std::uint64_t key_of(HostThread thread);
  Thread* told_thread(HostThread thread);
  char state_ask(HostThread thread) const;
  /// Drops what ended before, but for the newest period of each thread.
  void drop(std::uint64_t before_ns);
  void shrink();
  void explain_into(CauseTimes& out, HostThread thread, Span span,
                    const std::set<std::uint32_t>& tenant, int depth) const;
  void state_into(CauseTimes& out, HostThread name, const Thread& thread, Span span,
                  const std::set<std::uint32_t>& tenant, int depth) const;
  void sleep_into(CauseTimes& out, const OffCpu& period, Span span,
                  const std::set<std::uint32_t>& tenant, int depth) const;

  StateNow state_now_;
  std::unordered_map<std::uint64_t, Thread> threads_;
  std::size_t kept_ = 0;             // periods and waits in threads_
  mutable std::uint32_t asked_ = 0;  // since the last forget()
};

}  // namespace sluice::exporter
