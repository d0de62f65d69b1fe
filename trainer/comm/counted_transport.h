// A decorator over Gloo's transport: everything that Gloo's algorithms send passes here, is counted
// as it is (never from a formula), may be slowed down to a link's speed, and may be written down
// for a look at which message waited for which. Gloo alone decides what is sent.
#pragma once

#include <gloo/transport/device.h>

#include <memory>
#include <utility>
#include <vector>

#include "trainer/base/clock.h"
#include "trainer/comm/operation.h"

namespace sluice::train {

/// One message as a rank saw it. Receptions say no more than from whom and in which slot: the
/// sender knows the rest, and messages of a slot arrive in order.
struct WireEvent {
  enum class Kind : std::uint8_t { kSend, kReceive };
  Kind kind;
  int peer;
  std::uint64_t slot;
  std::uint64_t bytes;
  bool data;
};

/// The longest chain of data messages of which each could be sent only after the one before it had
/// arrived: the "steps" of an algorithm. `ranks[r]` is what rank r saw of one collective.
int wire_steps(const std::vector<std::vector<WireEvent>>& ranks);

/// The counts of one rank. One thread at a time sends.
class WireMeter {
 public:
  explicit WireMeter(WireThrottle throttle) : throttle_(throttle) {}

  /// What is sent from here on belongs to this.
  void operation_set(Operation operation) { operation_ = operation; }
  /// Buffers made from here on carry data if they lie in this memory, else control messages.
  void data_mark(const void* memory, std::size_t bytes);
  void data_forget(const void* memory);
  bool is_data(const void* memory) const;

  void sending(int peer, std::uint64_t slot, std::size_t bytes, bool data);
  void received(int peer, std::uint64_t slot);

  const Traffic& traffic() const { return traffic_; }
  void trace(bool on) { traced_ = on; }
  std::vector<WireEvent> trace_take() { return std::exchange(events_, {}); }

 private:
  void hold_back(std::size_t bytes);

  const WireThrottle throttle_;
  Nanos free_ns_ = 0;  // when the throttled link has passed everything
  Operation operation_ = Operation::kBarrier;
  Traffic traffic_;
  std::vector<std::pair<const std::byte*, std::size_t>> data_;
  bool traced_ = false;
  std::vector<WireEvent> events_;
};

/// `inner`, counted. The meter must outlive every context made of the device.
std::shared_ptr<gloo::transport::Device> counted_device(
    std::shared_ptr<gloo::transport::Device> inner, WireMeter& meter);

}  // namespace sluice::train
