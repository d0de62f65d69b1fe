// epoll behind the Loop interface.
#include "broker/daemon/loop.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cassert>

#include "broker/daemon/timer.h"

namespace sluice::daemon {
namespace {

// Sleeping and waking takes longer; a wait that was shorter found something that was due before it.
constexpr std::int64_t kNoWait_ns = 5'000;

std::int64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

/// How often this thread has given up its processor to wait, by the kernel's count. What the clock
/// says of a wait does not tell: one that finds many descriptors ready takes long and does not
/// sleep.
long thread_sleeps() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

}  // namespace

Loop::Loop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) fault_ = errno;
}

/// False: the kernel would not have it now.
bool Loop::watch(Key key, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return true;
  assert((fault_ != 0 || errno == ENOMEM || errno == ENOSPC) &&
         "a descriptor that cannot be watched was added");
  return false;
}

// The daemon does this at least four times a second, so what could not be watched is late, not
// lost.
void Loop::unwatched_retry() {
  if (unwatched_.empty()) return;
  std::erase_if(unwatched_, [this](Key key) {
    const auto found = watches_.find(key);
    return found == watches_.end() || watch(key, found->second.fd);
  });
}

Loop::Key Loop::add(int fd, Handler handler, const char* name) {
  const Key key = next_++;
  watches_.emplace(key, Watch{fd, std::make_shared<Handler>(std::move(handler)), name});
  if (!watch(key, fd)) unwatched_.push_back(key);
  return key;
}

void Loop::remove(Key key) {
  const auto found = watches_.find(key);
  if (found == watches_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr);
  watches_.erase(found);
}

void Loop::deferred_run() {
  while (!deferred_.empty()) {
    const std::vector<Handler> tasks = std::move(deferred_);
    deferred_.clear();
    for (const Handler& task : tasks) task();
  }
}

int Loop::turn(int timeout_ms, int most) {
  deferred_run();
  unwatched_retry();
  epoll_event events[kEventsPerTurn];
  const std::int64_t wait_begin_ns = clock_ns();
  const int count = epoll_wait(epoll_.get(), events, std::min(most, kEventsPerTurn), timeout_ms);
  assert((count >= 0 || errno == EINTR) && "epoll_wait failed");
  const std::int64_t wait_end_ns = clock_ns();
  const bool waited = wait_end_ns - wait_begin_ns > kNoWait_ns || last_wait_end_ns_ == 0;
  readable_since_ns_ = waited ? wait_end_ns : last_wait_end_ns_;
  last_wait_end_ns_ = wait_end_ns;
  SlowTurn slowest;
  const std::int64_t begin_cpu_ns = slow_report_ ? cpu_ns() : 0;
  for (int i = 0; i < count; ++i) {
    const Key key = events[i].data.u64;  // a copy: the kernel's struct is packed
    handle(key, &slowest);
    rest_look();
  }
  if (slow_report_ && count > 0) slow_look(wait_end_ns, begin_cpu_ns, &slowest);
  return std::max(count, 0);
}

void Loop::handle(Key key, SlowTurn* slowest) {
  const auto found = watches_.find(key);
  if (found == watches_.end()) return;
  const std::shared_ptr<Handler> handler = found->second.handler;  // outlives its own removal
  const char* const name = found->second.name;
  const std::int64_t begin_ns = slow_report_ ? clock_ns() : 0;
  (*handler)();
  deferred_run();
  if (!slow_report_) return;
  const std::int64_t taken_ns = clock_ns() - begin_ns;
  if (taken_ns < slowest->handler_ns) return;
  slowest->handler_ns = taken_ns;
  slowest->handler = name;
}

void Loop::rest_after(std::int64_t run_ns, std::int64_t rest_ns) {
  rest_after_ns_ = run_ns;
  rest_ns_ = rest_ns;
  rest_looked_ns_ = clock_ns();
  sleeps_seen_ = thread_sleeps();
}

void Loop::rest_look() {
  if (rest_after_ns_ == INT64_MAX || clock_ns() - rest_looked_ns_ < rest_after_ns_) return;
  if (thread_sleeps() == sleeps_seen_) {
    const timespec rest{0, rest_ns_};
    nanosleep(&rest, nullptr);
  }
  sleeps_seen_ = thread_sleeps();
  rest_looked_ns_ = clock_ns();
}

void Loop::slow_watch(std::int64_t limit_ns, std::function<void(const SlowTurn&)> report) {
  slow_limit_ns_ = limit_ns;
  slow_report_ = std::move(report);
}

void Loop::slow_look(std::int64_t begin_ns, std::int64_t begin_cpu_ns, SlowTurn* slowest) {
  slowest->turn_ns = clock_ns() - begin_ns;
  if (slowest->turn_ns <= slow_limit_ns_) return;
  slowest->cpu_ns = cpu_ns() - begin_cpu_ns;
  ++slow_turns_;
  slow_report_(*slowest);
}

void Loop::run() {
  while (!stopped_) turn(-1);
}

}  // namespace sluice::daemon
