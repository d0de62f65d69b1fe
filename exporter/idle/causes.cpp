#include "exporter/idle/causes.h"

#include <algorithm>
#include <numeric>

namespace sluice::exporter {
namespace {

void add(CauseTimes& out, Cause cause, std::uint64_t ns) {
  out[static_cast<std::size_t>(cause)] += ns;
}

std::uint64_t length(std::uint64_t begin_ns, std::uint64_t end_ns) {
  return end_ns > begin_ns ? end_ns - begin_ns : 0;
}

bool is_explained_by_waker(WaitKind kind) {
  return kind == WaitKind::kLock || kind == WaitKind::kLocal || kind == WaitKind::kOther;
}

// Replaces a period that went on when it was told before. Returns how many entries more there are,
// modulo 2^64.
template <class Entry>
std::size_t replace_or_append(std::deque<Entry>& entries, const Entry& entry,
                              std::uint64_t Entry::*key) {
  const std::size_t before = entries.size();
  while (!entries.empty() && entries.back().*key >= entry.*key) entries.pop_back();
  entries.push_back(entry);
  return entries.size() - before;
}

}  // namespace

std::uint64_t times_sum(const CauseTimes& times) {
  return std::accumulate(times.begin(), times.end(), std::uint64_t{0});
}

std::uint64_t ThreadHistory::key_of(HostThread thread) {
  return std::uint64_t{thread.process} << 32 | thread.thread;
}

void ThreadHistory::periods_add(const std::vector<OffCpu>& periods) {
  for (const OffCpu& period : periods) {
    Thread& thread = threads_[key_of({period.process, period.thread})];
    kept_ += replace_or_append(thread.periods, period, &OffCpu::left_ns);
  }
  shrink();
}

char ThreadHistory::state_ask(HostThread thread) const {
  return asked_++ < kAsksMax ? state_now_(thread) : '\0';
}

// Null where the process has no such thread.
ThreadHistory::Thread* ThreadHistory::told_thread(HostThread thread) {
  const auto found = threads_.find(key_of(thread));
  if (found != threads_.end()) return &found->second;
  return state_ask(thread) == '\0' ? nullptr : &threads_[key_of(thread)];
}

void ThreadHistory::wait_add(const ToldWait& wait) {
  Thread* thread = told_thread(wait.thread);
  if (thread == nullptr) return;
  kept_ += replace_or_append(thread->waits, wait, &ToldWait::begin_ns);
  // Disjoint, whatever the process tells: what ends first stands first.
  if (thread->waits.size() > 1) {
    std::uint64_t& before_ns = thread->waits[thread->waits.size() - 2].end_ns;
    before_ns = std::min(before_ns, wait.begin_ns);
  }
  shrink();
}

void ThreadHistory::drop(std::uint64_t before_ns) {
  kept_ = 0;
  for (auto& [key, thread] : threads_) {
    // The newest is kept: it says that the thread has run since.
    while (thread.periods.size() > 1 && thread.periods.front().back_ns < before_ns)
      thread.periods.pop_front();
    while (!thread.waits.empty() && thread.waits.front().end_ns < before_ns)
      thread.waits.pop_front();
    kept_ += thread.periods.size() + thread.waits.size();
  }
}

void ThreadHistory::shrink() {
  if (kept_ <= kHistoryMax + 2 * threads_.size()) return;
  std::vector<std::uint64_t> ends;
  ends.reserve(kept_);
  for (const auto& [key, thread] : threads_) {
    for (const OffCpu& period : thread.periods) ends.push_back(period.back_ns);
    for (const ToldWait& wait : thread.waits) ends.push_back(wait.end_ns);
  }
  const auto middle = ends.begin() + static_cast<std::ptrdiff_t>(ends.size() / 2);
  std::nth_element(ends.begin(), middle, ends.end());
  drop(*middle + 1);
}

void ThreadHistory::forget(std::uint64_t before_ns) {
  drop(before_ns);
  asked_ = 0;
  std::erase_if(threads_, [&](const auto& row) {
    const auto& [key, thread] = row;
    const bool old = thread.waits.empty() &&
                     (thread.periods.empty() || thread.periods.back().back_ns < before_ns);
    const HostThread name{static_cast<std::uint32_t>(key >> 32), static_cast<std::uint32_t>(key)};
    const bool gone = old && state_now_(name) == '\0';
    if (gone) kept_ -= thread.periods.size();
    return gone;
  });
}

std::uint64_t ThreadHistory::explained_until(HostThread thread, std::uint64_t known_ns) const {
  const auto found = threads_.find(key_of(thread));
  if (found == threads_.end() || found->second.periods.empty()) return known_ns;
  const OffCpu& last = found->second.periods.back();
  if (last.woken_ns != UINT64_MAX || !is_explained_by_waker(last.kind)) return known_ns;
  const std::uint64_t patient_ns = known_ns > kPatienceNs ? known_ns - kPatienceNs : 0;
  return std::min(known_ns, std::max(last.left_ns, patient_ns));
}

CauseTimes ThreadHistory::explain(HostThread thread, std::uint64_t begin_ns, std::uint64_t end_ns,
                                  const std::set<std::uint32_t>& tenant) const {
  CauseTimes out{};
  if (end_ns > begin_ns) explain_into(out, thread, {begin_ns, end_ns}, tenant, 0);
  return out;
}

// What the shim told comes first: it knows what its own sleeps are for.
void ThreadHistory::explain_into(CauseTimes& out, HostThread name, Span span,
                                 const std::set<std::uint32_t>& tenant, int depth) const {
  static const Thread kUnseen;
  const auto found = threads_.find(key_of(name));
  const Thread& thread = found == threads_.end() ? kUnseen : found->second;
  std::uint64_t at_ns = span.begin_ns;
  auto wait = std::partition_point(thread.waits.begin(), thread.waits.end(),
                                   [&](const ToldWait& w) { return w.end_ns <= at_ns; });
  for (; wait != thread.waits.end() && wait->begin_ns < span.end_ns; ++wait) {
    const std::uint64_t begin_ns = std::max(wait->begin_ns, at_ns);
    const std::uint64_t end_ns = std::min(wait->end_ns, span.end_ns);
    if (end_ns <= begin_ns) continue;
    if (begin_ns > at_ns) state_into(out, name, thread, {at_ns, begin_ns}, tenant, depth);
    add(out, wait->cause, end_ns - begin_ns);
    at_ns = end_ns;
  }
  if (at_ns < span.end_ns) state_into(out, name, thread, {at_ns, span.end_ns}, tenant, depth);
}

void ThreadHistory::state_into(CauseTimes& out, HostThread name, const Thread& thread, Span span,
                               const std::set<std::uint32_t>& tenant, int depth) const {
  if (thread.periods.empty()) {
    // It has not left its CPU, or not come back to one, since it is watched.
    add(out, state_ask(name) == 'R' ? Cause::kCpu : Cause::kNoWork, span.end_ns - span.begin_ns);
    return;
  }
  std::uint64_t at_ns = span.begin_ns;
  auto period = std::partition_point(thread.periods.begin(), thread.periods.end(),
                                     [&](const OffCpu& p) { return p.back_ns <= at_ns; });
  for (; period != thread.periods.end() && period->left_ns < span.end_ns; ++period) {
    if (period->left_ns > at_ns) {
      add(out, Cause::kCpu, period->left_ns - at_ns);
      at_ns = period->left_ns;
    }
    const std::uint64_t woken_ns =
        std::min(period->kind == WaitKind::kNone ? period->left_ns : period->woken_ns, span.end_ns);
    if (woken_ns > at_ns) {
      sleep_into(out, *period, {at_ns, woken_ns}, tenant, depth);
      at_ns = woken_ns;
    }
    const std::uint64_t back_ns = std::min(period->back_ns, span.end_ns);
    add(out, Cause::kRunqueue, length(at_ns, back_ns));
    at_ns = std::max(at_ns, back_ns);
  }
  add(out, Cause::kCpu, length(at_ns, span.end_ns));
}

void ThreadHistory::sleep_into(CauseTimes& out, const OffCpu& period, Span span,
                               const std::set<std::uint32_t>& tenant, int depth) const {
  const std::uint64_t all_ns = span.end_ns - span.begin_ns;
  switch (period.kind) {
    case WaitKind::kDisk:
      return add(out, Cause::kDisk, all_ns);
    case WaitKind::kNetwork:
      return add(out, Cause::kNetwork, all_ns);
    case WaitKind::kDevice:
      return add(out, Cause::kSync, all_ns);
    case WaitKind::kTimer:
      return add(out, Cause::kNoWork, all_ns);
    case WaitKind::kNone:
    case WaitKind::kLock:
    case WaitKind::kLocal:
    case WaitKind::kOther:
      break;
  }
  const Cause own = period.kind == WaitKind::kLock ? Cause::kLock : Cause::kNoWork;
  const bool ours = period.waker_thread != 0 && period.waker_thread != period.thread &&
                    tenant.count(period.waker_process) != 0;
  if (!ours || depth == kFollowMax) return add(out, own, all_ns);
  CauseTimes waker{};
  explain_into(waker, {period.waker_process, period.waker_thread}, span, tenant, depth + 1);
  // A waker that slept as well explains nothing more.
  add(waker, own, std::exchange(waker[static_cast<std::size_t>(Cause::kNoWork)], 0));
  for (std::size_t i = 0; i < kCauses; ++i) out[i] += waker[i];
}

}  // namespace sluice::exporter
