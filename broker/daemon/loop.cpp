// epoll behind the Loop interface.
#include "broker/daemon/loop.h"

#include <errno.h>
#include <sys/epoll.h>

#include <cassert>

namespace sluice::daemon {
namespace {

constexpr int kEventsPerTurn =
    64;  // few enough that one busy turn delays an alarm by well under a millisecond

}  // namespace

Loop::Loop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) { assert(epoll_ && "epoll_create1 failed"); }

Loop::Key Loop::add(int fd, Handler handler) {
  const Key key = next_++;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  const int rc = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  assert(rc == 0 && "a descriptor that cannot be watched was added");
  (void)rc;
  watches_.emplace(key, Watch{fd, std::make_shared<Handler>(std::move(handler))});
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

void Loop::turn(int timeout_ms) {
  deferred_run();
  epoll_event events[kEventsPerTurn];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerTurn, timeout_ms);
  assert((count >= 0 || errno == EINTR) && "epoll_wait failed");
  for (int i = 0; i < count; ++i) {
    const auto found = watches_.find(events[i].data.u64);
    if (found == watches_.end()) continue;
    const std::shared_ptr<Handler> handler = found->second.handler;  // outlives its own removal
    (*handler)();
    deferred_run();
  }
}

void Loop::run() {
  while (!stopped_) turn(-1);
}

}  // namespace sluice::daemon
