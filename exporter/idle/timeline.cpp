#include "exporter/idle/timeline.h"

#include <algorithm>

namespace sluice::exporter {
namespace {

constexpr std::uint64_t kNotYet = UINT64_MAX;

/// What a sum grew by, less what was drawn ahead of it, and no more than there is room for.
std::uint64_t grown(std::uint64_t before, std::uint64_t now, std::uint64_t& ahead,
                    std::uint64_t room) {
  std::uint64_t growth = now > before ? now - before : 0;
  const std::uint64_t known = std::min(growth, ahead);
  ahead -= known;
  growth -= known;
  return std::min(growth, room);
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
  std::uint64_t run_ns = grown(last_.look.run_ns, now.look.run_ns, run_ahead_, span);
  std::uint64_t wait_ns = grown(last_.look.wait_ns, now.look.wait_ns, wait_ahead_, span - run_ns);
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
  if (sleeps && now.look.turns == last_.look.turns && slept_before) {
    sleep(kind_, span, ended);  // it never had a CPU
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
