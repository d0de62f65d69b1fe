// Virtual time: a queue of things to do, in the order of their time and, at the same time, of their
// arrival.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "broker/core/core.h"

namespace sluice::sim {

using core::Nanos;

class Clock {
 public:
  Nanos now() const { return now_; }

  void at(Nanos when, std::function<void()> what) {
    queue_.push(Entry{when < now_ ? now_ : when, sequence_++, std::move(what)});
  }
  void after(Nanos delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }

  /// Does everything up to `end`, and stands there.
  void run_until(Nanos end) {
    while (!queue_.empty() && queue_.top().when <= end) {
      Entry entry = std::move(const_cast<Entry&>(queue_.top()));
      queue_.pop();
      now_ = entry.when;
      entry.what();
    }
    now_ = end;
  }

 private:
  struct Entry {
    Nanos when;
    std::uint64_t sequence;
    std::function<void()> what;
    bool operator<(const Entry& other) const {
      return when != other.when ? when > other.when : sequence > other.sequence;
    }
  };
  std::priority_queue<Entry> queue_;
  Nanos now_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace sluice::sim
