// A tenant's time on one GPU, divided: busy, or idle for one cause. Each moment is accounted once,
// and not before everything about it is known, so that busy time and causes add up to the accounted
// time to the nanosecond. Pure; the gaps come from the shim by way of activity.h.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "exporter/idle/causes.h"

namespace sluice::exporter {

/// What a process told of one GPU since the last look.
struct GpuTold {
  struct Gap {
    std::uint64_t begin_ns = 0, end_ns = 0;
    std::uint32_t thread = 0;  // the host's number
    bool unseen = false;       // gaps were lost in it: what it was is not known
  };
  std::vector<Gap> gaps;         // new ones, in order
  std::uint64_t settled_ns = 0;  // all before is told; 0 = it has no context on the GPU
  std::uint64_t short_ns = 0;    // gaps too short to be told, their sum so far
  std::uint32_t thread = 0;      // launched last; 0 = none did
  bool idle = false;             // nothing since settled_ns
};

/// A living process of the tenant, on this GPU.
struct ProcessTold {
  std::uint32_t process = 0;
  GpuTold told;
};

struct IdleFigures {
  CauseTimes idle_ns{};
  std::uint64_t busy_ns = 0;
  std::uint64_t unseen_ns = 0;  // neither: gaps came faster than they were read
  /// What has been divided.
  std::uint64_t accounted_ns() const { return busy_ns + times_sum(idle_ns); }
};

/// Gaps of a tenant that wait to be accounted, shared evenly among its processes. Of more, the
/// oldest of a process become one of unknown kind.
inline constexpr std::size_t kGapsKeptMax = 16384;

class IdleAccount {
 public:
  /// Nothing before `since_ns` is accounted.
  explicit IdleAccount(std::uint64_t since_ns) : done_ns_(since_ns) {}

  /// Accounts what is known before `known_ns` (about threads, and by when the processes were
  /// looked at). All living processes of the tenant are in `processes`; `tenant` is through whom
  /// waits are followed.
  void advance(std::vector<ProcessTold> processes, std::uint64_t known_ns,
               const ThreadHistory& history, const std::set<std::uint32_t>& tenant);
  const IdleFigures& figures() const { return figures_; }
  /// Nothing before it is asked of the history any more.
  std::uint64_t done_ns() const { return done_ns_; }

 private:
  enum class Doing : std::uint8_t { kBusy, kUnseen, kIdle, kNothing };
  /// What a process does from a moment on, until when.
  struct Stretch {
    Doing doing = Doing::kNothing;
    std::uint64_t until_ns = UINT64_MAX;
    HostThread thread;
  };
  struct Process {
    std::deque<GpuTold::Gap> gaps;
    GpuTold last;  // without its gaps
    std::uint64_t short_counted_ns = 0;
    Stretch at(std::uint32_t number, std::uint64_t moment_ns) const;
  };

  void processes_take(std::vector<ProcessTold>& processes);
  Stretch tenant_at(std::uint64_t moment_ns) const;
  void shorts_take();

  std::map<std::uint32_t, Process> processes_;
  IdleFigures figures_;
  std::uint64_t done_ns_;
};

}  // namespace sluice::exporter
