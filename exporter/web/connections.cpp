// One thread wakes up while connections are open and shuts down those that took too long.
#include "exporter/web/connections.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

namespace sluice::exporter {
namespace {

// How late a connection may be shut down. It bounds how long a new client waits in a crowd.
constexpr std::chrono::milliseconds kLookEvery{50};
// A prompt client sends its request with the handshake. A quarter of a second leaves room for a
// busy host and a slow network.
constexpr std::chrono::milliseconds kPromptClient{250};
// A client that takes what is sent has the longest page, some hundred KiB, well within this time.
constexpr std::chrono::seconds kPromptReader{1};

/// Returns whether the server has bytes of `socket` to read: then the server is late, not the
/// client.
bool has_unread(int socket) {
  int bytes = 0;
  return ioctl(socket, FIONREAD, &bytes) == 0 && bytes > 0;
}

}  // namespace

Connections::Connections(ConnectionLimits limits) : limits_(limits), thread_([this] { watch(); }) {}

Connections::~Connections() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Connections::opened(int socket) {
  {
    const std::lock_guard lock(mutex_);
    open_.push_back({socket, Clock::now(), false, false});
  }
  changed_.notify_one();
}

void Connections::asked(int socket) {
  const std::lock_guard lock(mutex_);
  for (Open& open : open_) {
    if (open.socket == socket) open.has_asked = true;
  }
}

void Connections::closed(int socket) {
  const std::lock_guard lock(mutex_);
  open_.remove_if([socket](const Open& open) { return open.socket == socket; });
}

bool Connections::is_late(const Open& open, Clock::time_point now, Clock::duration most) {
  return !open.shut && now - open.since > most && (open.has_asked || !has_unread(open.socket));
}

void Connections::shut(Open& open) {
  open.shut = true;
  ::shutdown(open.socket, SHUT_RDWR);
}

void Connections::late_shut(Clock::time_point now) {
  for (Open& open : open_) {
    const auto most =
        std::chrono::milliseconds(open.has_asked ? limits_.life_ms : limits_.request_ms);
    if (is_late(open, now, most)) shut(open);
  }
}

void Connections::crowd_shut(Clock::time_point now) {
  auto left = static_cast<std::size_t>(
      std::count_if(open_.begin(), open_.end(), [](const Open& open) { return !open.shut; }));
  for (const bool has_asked : {false, true}) {
    const Clock::duration prompt = has_asked ? Clock::duration(kPromptReader) : kPromptClient;
    for (auto open = open_.begin(); open != open_.end() && left > limits_.crowd; ++open) {
      if (open->has_asked != has_asked || !is_late(*open, now, prompt)) continue;
      shut(*open);
      --left;
    }
  }
}

void Connections::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (open_.empty()) {
      changed_.wait(lock, [this] { return ends_ || !open_.empty(); });
    } else {
      changed_.wait_for(lock, kLookEvery, [this] { return ends_; });
    }
    const Clock::time_point now = Clock::now();
    late_shut(now);
    crowd_shut(now);
  }
}

}  // namespace sluice::exporter
