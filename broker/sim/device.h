// A model of one GPU without MPS: one context's work at a time, in order within a context, time
// slices between contexts that have work at the same time. A kernel runs for its length; one of a
// collective spins until all its ranks run. It knows nothing of leases: it is the hardware.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "broker/sim/clock.h"

namespace sluice::sim {

inline constexpr Nanos kEndless = INT64_MAX / 4;

/// Ranks that meet in one collective operation. Complete when all have begun to run it.
struct Collective {
  std::uint32_t missing = 0;
  Nanos length_ns = 0;
  std::vector<std::function<void()>> complete;  // tells the devices on which ranks spin
};

struct Kernel {
  Nanos left_ns = 0;
  std::shared_ptr<Collective> collective;  // null for ordinary work
  bool arrived = false;                    // has begun to run
  std::function<void()> done;
};

class Device {
 public:
  using Context = std::uint64_t;
  /// `used(context, from, to)` is told every stretch of device time.
  Device(Clock& clock, std::function<void(Context, Nanos, Nanos)> used);

  void submit(Context context, Kernel kernel);
  /// The process is gone; its work is too.
  void destroy(Context context);
  /// Accounts the running stretch up to now.
  void account();

 private:
  void dispatch();
  void on_timer(std::uint64_t generation);
  void begin(Kernel& kernel);
  bool others_ready() const;

  Clock& clock_;
  std::function<void(Context, Nanos, Nanos)> used_;
  std::map<Context, std::deque<Kernel>> queues_;
  bool running_ = false;
  Context current_ = 0;
  Nanos since_ = 0;
  Nanos slice_end_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace sluice::sim
