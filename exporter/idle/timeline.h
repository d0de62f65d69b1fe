// Pure: makes periods off the CPU out of looks at one thread from time to time. Between two looks
// the kernel's sums tell exactly how long the thread ran and waited for a CPU; the rest it slept,
// for what it was last seen to sleep. The order within is a guess.
#pragma once

#include <optional>

#include "exporter/idle/proc.h"
#include "exporter/idle/thread_watch.h"

namespace sluice::exporter {

/// A look, and what goes with it.
struct ThreadSeen {
  ThreadLook look;
  WaitKind kind = WaitKind::kNone;  // what it sleeps for; kNone while it can run
  // That it did not sleep since the look before, whatever the sums say: they are up to a tick late.
  bool never_slept = false;
};

class Timeline {
 public:
  /// Begins with the first look: what was before is not known.
  Timeline(std::uint32_t process, std::uint32_t thread, const ThreadSeen& first);

  /// Appends to `ended` the periods that have ended by this look.
  void seen(const ThreadSeen& now, std::vector<OffCpu>& ended);
  /// The thread has ended; so does its last period, with the last look.
  void gone(std::vector<OffCpu>& ended);

  const ThreadSeen& last() const { return last_; }
  /// What still goes on.
  const std::optional<OffCpu>& open() const { return open_; }

 private:
  void sleep(WaitKind kind, std::uint64_t duration_ns, std::vector<OffCpu>& ended);
  void wait(std::uint64_t duration_ns);
  void run(std::uint64_t duration_ns, std::vector<OffCpu>& ended);
  void end(std::vector<OffCpu>& ended);

  OffCpu blank_;
  ThreadSeen last_;
  WaitKind kind_;     // of its last sleep that was seen
  std::uint64_t at_;  // up to where the line is drawn
  // Drawn before the kernel's sums had it: they grow when a turn or a wait ends.
  std::uint64_t run_ahead_ = 0;
  std::uint64_t wait_ahead_ = 0;
  std::uint64_t late_ns_ = 0;  // of a wait that ends now: what lay before the look before
  std::optional<OffCpu> open_;
};

}  // namespace sluice::exporter
