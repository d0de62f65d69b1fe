// What tests of both observers of threads share: how they are made, and sums over what they saw
// between begin and end of a planted body.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "exporter/idle/thread_watch.h"
#include "planted.h"

namespace sluice::exporter {

inline constexpr std::uint64_t kSampleNs = 10'000'000;

inline std::unique_ptr<ThreadWatch> watch_made(bool exact, std::string* reason) {
  return exact ? thread_watch_bpf(reason) : thread_watch_proc(kSampleNs);
}

struct Tally {
  std::map<WaitKind, std::uint64_t> asleep_ns;
  std::map<std::uint32_t, int> by_thread, by_process;  // periods, by who ended the sleep
  std::uint64_t total_ns = 0;                          // asleep
  std::uint64_t queued_ns = 0;                         // could run, and waited for a CPU
  int periods = 0;

  double share(WaitKind kind) const {
    const auto found = asleep_ns.find(kind);
    if (found == asleep_ns.end()) return 0;
    return static_cast<double>(found->second) / static_cast<double>(total_ns);
  }
};

inline Tally tally(const std::vector<OffCpu>& periods, std::uint32_t thread, const Told& told) {
  Tally sum;
  const std::uint64_t begin = told.begin_ns, end = told.end_ns;
  const auto within = [&](std::uint64_t from, std::uint64_t to) {
    from = std::max(from, begin);
    to = std::min(to, end);
    return to > from ? to - from : 0;
  };
  for (const OffCpu& period : periods) {
    if (period.thread != thread || within(period.left_ns, period.back_ns) == 0) continue;
    const std::uint64_t asleep = within(period.left_ns, period.woken_ns);
    sum.queued_ns += within(period.woken_ns, period.back_ns);
    sum.total_ns += asleep;
    ++sum.periods;
    if (asleep == 0) continue;
    sum.asleep_ns[period.kind] += asleep;
    ++sum.by_thread[period.waker_thread];
    ++sum.by_process[period.waker_process];
  }
  return sum;
}

}  // namespace sluice::exporter
