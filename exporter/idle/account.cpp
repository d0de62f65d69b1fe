#include "exporter/idle/account.h"

#include <algorithm>
#include <utility>

#include "broker/protocol/pages.h"

namespace sluice::exporter {

IdleAccount::Stretch IdleAccount::Process::at(std::uint32_t number, std::uint64_t moment_ns) const {
  // It has done nothing on this GPU yet: its first thread is on the way there.
  if (last.settled_ns == 0) return {Doing::kNothing, UINT64_MAX, {number, number}};
  const auto gap = std::partition_point(
      gaps.begin(), gaps.end(), [&](const GpuTold::Gap& g) { return g.end_ns <= moment_ns; });
  if (gap != gaps.end()) {
    if (gap->begin_ns > moment_ns) return {Doing::kBusy, gap->begin_ns, {}};
    return {gap->unseen ? Doing::kUnseen : Doing::kIdle, gap->end_ns, {number, gap->thread}};
  }
  if (moment_ns < last.settled_ns) return {Doing::kBusy, last.settled_ns, {}};
  return {Doing::kIdle, UINT64_MAX, {number, last.thread != 0 ? last.thread : number}};
}

// Busy while any of them is; idle until the first of them is not. The thread is that of the process
// whose idleness ends first: it is the one that was waited for.
IdleAccount::Stretch IdleAccount::tenant_at(std::uint64_t moment_ns) const {
  Stretch out;
  for (const auto& [number, process] : processes_) {
    const Stretch one = process.at(number, moment_ns);
    if (one.doing == Doing::kBusy) return one;
    const std::uint64_t until_ns = std::min(out.until_ns, one.until_ns);
    const bool first =
        one.doing < out.doing ||
        (one.doing == out.doing && (one.until_ns < out.until_ns || out.thread.thread == 0));
    if (first) out = one;
    out.until_ns = until_ns;
  }
  return out;
}

void IdleAccount::processes_take(std::vector<ProcessTold>& processes) {
  std::map<std::uint32_t, Process> living;
  const std::size_t kept_max = std::max<std::size_t>(
      kGapsKeptMax / std::max<std::size_t>(processes.size(), 1), protocol::kGapsMax);
  for (ProcessTold& one : processes) {
    const auto found = processes_.find(one.process);
    Process process;
    if (found != processes_.end()) {
      process = std::move(found->second);
    } else {
      process.short_counted_ns = one.told.short_ns;
    }
    for (const GpuTold::Gap& gap : one.told.gaps) {
      // Told by a process that may tell anything: what goes backwards is left out.
      const std::uint64_t before_ns = process.gaps.empty() ? 0 : process.gaps.back().end_ns;
      if (gap.end_ns > gap.begin_ns && gap.begin_ns >= before_ns) process.gaps.push_back(gap);
    }
    // A process that stands in its account's way, for good if it lies, fills no memory.
    auto& gaps = process.gaps;
    for (; gaps.size() > kept_max; gaps.pop_front())
      gaps[1] = {gaps[0].begin_ns, gaps[1].end_ns, 0, true};
    one.told.gaps.clear();
    process.last = std::move(one.told);
    living.emplace(one.process, std::move(process));
  }
  processes_ = std::move(living);
}

// Gaps too short to be told are what launching takes. Where several processes share the GPU each
// others' gaps are mostly covered, and theirs stay busy time.
void IdleAccount::shorts_take() {
  std::size_t with_context = 0;
  for (const auto& entry : processes_) with_context += entry.second.last.settled_ns != 0 ? 1 : 0;
  for (auto& [number, process] : processes_) {
    const std::uint64_t now_ns = process.last.short_ns;
    const std::uint64_t grown_ns =
        now_ns > process.short_counted_ns ? now_ns - process.short_counted_ns : 0;
    process.short_counted_ns = now_ns;
    if (with_context != 1) continue;
    const std::uint64_t taken_ns = std::min(grown_ns, figures_.busy_ns);
    figures_.busy_ns -= taken_ns;
    figures_.idle_ns[static_cast<std::size_t>(Cause::kCpu)] += taken_ns;
  }
}

void IdleAccount::advance(std::vector<ProcessTold> processes, std::uint64_t known_ns,
                          const ThreadHistory& history, const std::set<std::uint32_t>& tenant) {
  processes_take(processes);
  std::uint64_t horizon_ns = known_ns;
  for (const auto& entry : processes_) {
    const GpuTold& told = entry.second.last;
    if (told.settled_ns != 0 && !told.idle) horizon_ns = std::min(horizon_ns, told.settled_ns);
  }
  while (done_ns_ < horizon_ns) {
    const Stretch now = tenant_at(done_ns_);
    std::uint64_t until_ns = std::min(now.until_ns, horizon_ns);
    if (now.doing == Doing::kIdle || now.doing == Doing::kNothing)
      until_ns = std::min(until_ns, history.explained_until(now.thread, horizon_ns));
    if (until_ns <= done_ns_) break;
    if (now.doing == Doing::kBusy) {
      figures_.busy_ns += until_ns - done_ns_;
    } else if (now.doing == Doing::kUnseen) {
      figures_.unseen_ns += until_ns - done_ns_;
    } else {
      const CauseTimes times = history.explain(now.thread, done_ns_, until_ns, tenant);
      for (std::size_t i = 0; i < kCauses; ++i) figures_.idle_ns[i] += times[i];
    }
    done_ns_ = until_ns;
  }
  for (auto& entry : processes_) {
    auto& gaps = entry.second.gaps;
    while (!gaps.empty() && gaps.front().end_ns <= done_ns_) gaps.pop_front();
  }
  shorts_take();
}

}  // namespace sluice::exporter
