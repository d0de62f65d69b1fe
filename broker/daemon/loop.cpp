// epoll behind the Loop interface.
#include "broker/daemon/loop.h"

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cassert>

#include "broker/daemon/timer.h"

namespace sluice::daemon {
namespace {

// Sleeping and waking takes longer; a wait that was shorter found something that was due before it.
constexpr std::int64_t kNoWait_ns = 5'000;

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

Loop::Key Loop::add(int fd, Handler handler) {
  const Key key = next_++;
  watches_.emplace(key, Watch{fd, std::make_shared<Handler>(std::move(handler))});
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
  for (int i = 0; i < count; ++i) {
    const auto found = watches_.find(events[i].data.u64);
    if (found == watches_.end()) continue;
    const std::shared_ptr<Handler> handler = found->second.handler;  // outlives its own removal
    (*handler)();
    deferred_run();
  }
  return std::max(count, 0);
}

void Loop::run() {
  while (!stopped_) turn(-1);
}

}  // namespace sluice::daemon
