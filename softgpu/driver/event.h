// Events: a marker in a stream. Its time is the modelled time at which the stream came to it.
#pragma once

#include "softgpu/driver/stream.h"

namespace softgpu::driver {

class Graph;
struct Node;

class Event {
 public:
  Event(Gpu& on, unsigned with_flags) : gpu(on), flags(with_flags) {}
  OpRef op() const {
    const std::lock_guard lock(mutex_);
    return op_;
  }
  void record(OpRef op) {
    const std::lock_guard lock(mutex_);
    op_ = std::move(op);
    capture.reset();
  }
  /// A record node of a graph: the event completes with the whole launch.
  void record_in_graph(OpRef op) { record(std::move(op)); }
  CUevent handle() { return reinterpret_cast<CUevent>(this); }
  bool timed() const { return (flags & CU_EVENT_DISABLE_TIMING) == 0; }

  Gpu& gpu;
  const unsigned flags;
  std::weak_ptr<Capture>
      capture;  // recorded in a stream that captures; guarded by the capture lock
  std::vector<Node*> captured_after;

 private:
  mutable std::mutex mutex_;
  OpRef op_;
};
using EventRef = std::shared_ptr<Event>;

}  // namespace softgpu::driver
