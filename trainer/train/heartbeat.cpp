// See heartbeat.h.
#include "trainer/train/heartbeat.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice::train {

Nanos silence_due(const RankLine& line, Nanos patience, bool watches_training, Nanos listen_from) {
  const Nanos lead = std::min(kNoticeLead, patience / 10);
  const Nanos alive_due = std::max<Nanos>(line.alive_ns, listen_from) + patience - lead;
  if (!watches_training || line.waits) return alive_due;
  // A step may take all of its time.
  return std::min(alive_due, std::max<Nanos>(line.progress_ns, listen_from) + patience);
}

Heartbeat::Heartbeat(BoardMap& board, int slot)
    : line_(board.line(slot)), members_(board.members()) {
  line_.waits = true;  // until it trains
  line_.alive_ns = now_ns();
  thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Heartbeat::broken_check() const {
  if (is_broken()) throw PeerFailure("a rank of this job is lost");
}

void Heartbeat::run() {
  // Signals are the training thread's.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  while (!ends_) {
    line_.alive_ns = now_ns();
    if (guarded_ != nullptr && is_broken()) std::exchange(guarded_, nullptr)->abort();
    changed_.wait_for(lock, std::chrono::nanoseconds(kBeatGap));
  }
}

Heartbeat::Guard::Guard(Heartbeat& heartbeat, Communicator& comm) : heartbeat_(heartbeat) {
  const std::lock_guard lock(heartbeat_.mutex_);
  heartbeat_.guarded_ = &comm;
}

Heartbeat::Guard::~Guard() {
  const std::lock_guard lock(heartbeat_.mutex_);
  heartbeat_.guarded_ = nullptr;
}

}  // namespace sluice::train
