#include "exporter/idle/timeline.h"

#include <algorithm>

namespace sluice::exporter {
namespace {

constexpr std::uint64_t kNotYet = UINT64_MAX;

/// What a sum grew by, less what was drawn ahead of it.
std::uint64_t grown(std::uint64_t before, std::uint64_t now, std::uint64_t& ahead) {
  const std::uint64_t growth = now > before ? now - before : 0;
  const std::uint64_t known = std::min(growth, ahead);
  ahead -= known;
  return growth - known;
}

}  // namespace

Timeline::Timeline(std::uint32_t process, std::uint32_t thread, const ThreadSeen& first)
    : last_(first), kind_(WaitKind::kOther), at_(first.look.at_ns) {
  blank_.process = process;
  blank_.thread = thread;
  if (first.kind == WaitKind::kNone) return;
  kind_ = first.kind;
  open_ = blank_;
  open_->left_ns = at_;
  open_->woken_ns = open_->back_ns = kNotYet;
  open_->kind = first.kind;
}

void Timeline::seen(const ThreadSeen& now, std::vector<OffCpu>& ended) {
  const std::uint64_t span = now.look.at_ns > at_ ? now.look.at_ns - at_ : 0;
  std::uint64_t run_ns = std::min(span, grown(last_.look.run_ns, now.look.run_ns, run_ahead_));
  // A wait is added to the sum when it ends: it may have begun before the look before.
  const std::uint64_t waited_ns = grown(last_.look.wait_ns, now.look.wait_ns, wait_ahead_);
  std::uint64_t wait_ns = std::min(span - run_ns, waited_ns);
  late_ns_ = waited_ns - wait_ns;
  std::uint64_t rest = span - run_ns - wait_ns;
  const bool slept_before = last_.kind != WaitKind::kNone;
  const bool sleeps = now.kind != WaitKind::kNone;
  if (!slept_before && !sleeps && now.never_slept) {
    // The rest is of a turn or of a wait that goes on. A thread that ran would have been counted.
    const bool waits = run_ns == 0;
    (waits ? wait_ns : run_ns) += rest;
    (waits ? wait_ahead_ : run_ahead_) += rest;
    rest = 0;
  }
  const bool had_cpu = now.look.turns != last_.look.turns || now.look.run_ns != last_.look.run_ns;
  if (sleeps && slept_before && !had_cpu) {
    sleep(kind_, span, ended);
  } else if (slept_before && sleeps) {
    sleep(kind_, rest / 2, ended);
    wait(wait_ns);
    run(run_ns, ended);
    sleep(now.kind, rest - rest / 2, ended);
  } else if (sleeps) {
    wait(wait_ns);
    run(run_ns, ended);
    sleep(now.kind, rest, ended);
  } else {
    sleep(kind_, rest, ended);
    wait(wait_ns);
    run(run_ns, ended);
  }
  if (sleeps) kind_ = now.kind;
  at_ = std::max(at_, now.look.at_ns);
  last_ = now;
}

void Timeline::gone(std::vector<OffCpu>& ended) { end(ended); }

void Timeline::sleep(WaitKind kind, std::uint64_t duration_ns, std::vector<OffCpu>& ended) {
  if (duration_ns == 0) return;
  if (open_ && (open_->woken_ns != kNotYet || open_->kind != kind)) end(ended);
  if (!open_) {
    open_ = blank_;
    open_->left_ns = at_;
    open_->woken_ns = open_->back_ns = kNotYet;
    open_->kind = kind;
  }
  at_ += duration_ns;
}

void Timeline::wait(std::uint64_t duration_ns) {
  if (duration_ns == 0) return;
  if (open_ && open_->woken_ns == kNotYet) open_->woken_ns = at_;
  if (!open_) {
    open_ = blank_;
    open_->left_ns = open_->woken_ns = at_;
    open_->back_ns = kNotYet;
    open_->kind = WaitKind::kNone;
  }
  open_->woken_ns -= std::min(late_ns_, open_->woken_ns - open_->left_ns);
  at_ += duration_ns;
}

void Timeline::run(std::uint64_t duration_ns, std::vector<OffCpu>& ended) {
  if (duration_ns == 0) return;
  end(ended);
  at_ += duration_ns;
}

void Timeline::end(std::vector<OffCpu>& ended) {
  if (!open_) return;
  if (open_->woken_ns == kNotYet) open_->woken_ns = at_;
  open_->back_ns = at_;
  ended.push_back(*open_);
  open_.reset();
}

}  // namespace sluice::exporter
