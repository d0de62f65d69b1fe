// Events: a marker in a stream. Its time is the modelled time at which the stream came to it.
#pragma once

#include "softgpu/driver/stream.h"

namespace softgpu::driver {

class Graph;
class IpcEvent;
struct Node;

class Event;
/// The event was recorded outside all captures (capture.cpp).
void capture_forget(Event& event);

class Event {
 public:
  Event(const Context& of, unsigned with_flags) : gpu(of.gpu), context(of.id), flags(with_flags) {}
  OpRef op() const {
    const std::lock_guard lock(mutex_);
    return op_;
  }
  void record(OpRef op) {
    if (captured) capture_forget(*this);
    const std::lock_guard lock(mutex_);
    op_ = std::move(op);
  }
  /// Only if it still stands for `expected`.
  bool record_after(const OpRef& expected, OpRef op) {
    const std::lock_guard lock(mutex_);
    if (op_ != expected) return false;
    op_ = std::move(op);
    return true;
  }
  CUevent handle() { return reinterpret_cast<CUevent>(this); }
  bool timed() const { return (flags & CU_EVENT_DISABLE_TIMING) == 0; }

  Gpu& gpu;
  const std::uint64_t context;  // the id of the one it was made in
  const unsigned flags;
  // Its last recording was in a stream that captured, whose capture may have ended since. Written
  // under the capture lock, which also guards the two that follow.
  std::atomic<bool> captured{false};
  std::weak_ptr<Capture> capture;
  std::vector<Node*> captured_after;
  std::shared_ptr<IpcEvent> shared;  // with other processes (ipc_event.h)

 private:
  mutable std::mutex mutex_;
  OpRef op_;
};
using EventRef = std::shared_ptr<Event>;

}  // namespace softgpu::driver
