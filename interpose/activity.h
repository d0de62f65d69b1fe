// What this process does while a GPU does nothing for it, written down in the claims page for
// whoever explains idleness: gaps between busy stretches, each with the thread whose launch ended
// it, and the waits of threads inside the shim. Nothing here decides anything.
//
// Stretches come from the meter stream by stream, roughly in order. What is told must be final, so
// a gap is told once nothing that is still in flight can have begun in it: `frontier_ns` of the
// context records is that moment, and the earliest of a device's contexts counts.
//
// Not told: time under an exclusive lease (nothing is fenced there), and processes without a
// broker.
#pragma once

#include "broker/protocol/pages.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// Shorter gaps are what launching itself takes; only their sum is told.
inline constexpr uint64_t kGapMinNs = 50'000;
/// Shorter waits are not told.
inline constexpr uint64_t kWaitMinNs = 20'000;
/// Stretches that are kept until what lies before them is known.
inline constexpr unsigned kStretchesMax = 32;

/// The union of busy stretches of one device, and how much of it has been told. Pure.
class Stretches {
 public:
  struct Stretch {
    uint64_t begin_ns, end_ns;
    uint32_t thread;  // whose launch began it; 0 = not known
  };
  /// Idle from then on.
  void begin(uint64_t now_ns) {
    if (settled_ns_ == 0) settled_ns_ = now_ns;
  }
  void add(const Stretch& stretch);
  /// The next gap that is final, of any length: false when there is none before the frontier.
  bool gap_take(uint64_t frontier_ns, Stretch* gap);
  uint64_t settled_ns() const { return settled_ns_; }
  unsigned pending() const { return count_; }

 private:
  Stretch kept_[kStretchesMax] = {};  // by begin; they may touch and overlap
  unsigned count_ = 0;
  uint64_t settled_ns_ = 0;
};

/// A context on the device was seen first.
void activity_begin(int device);
/// A busy stretch of the device, by the host's clock.
void activity_busy(int device, uint64_t begin_ns, uint64_t end_ns, uint32_t thread);
/// The device was idle and is about to be given work.
void activity_wakes(int device);
/// Tells what is final now.
void activity_settle(int device);
void activity_reset_after_fork();

/// Around a wait of the calling thread. One inside another is not told.
class WaitScope {
 public:
  explicit WaitScope(protocol::WaitReason reason);
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  uint64_t since_ns_ = 0;  // 0 = it is not told
  protocol::WaitReason reason_;
};

}  // namespace sluice::interpose
