// See row_unrest.h.
#include "tests/interpose/row_unrest.h"

#include <chrono>

namespace sluice::test {

using namespace protocol;

Unrest::Unrest(TestBroker& broker, std::uint64_t seed, bool moves)
    : broker_(broker), random_(seed), moves_(moves), thread_([this] { serve(); }) {}

Unrest::~Unrest() {
  ends_ = true;
  thread_.join();
}

void Unrest::pause(unsigned most_us) {
  std::this_thread::sleep_for(std::chrono::microseconds(below(most_us)));
}

// On all GPUs, or on the first one, as a window that a gang is given.
void Unrest::lease_close() {
  const bool all = below(2) == 0;
  if (all)
    broker_.lease_store(0);
  else
    broker_.lease_store(0, 0);
  pause(2000);
}

// An order's answer, as long as there is somebody to give it: a hold that ends with memory outside
// lets the program have more than there is, so a slow host gets its time.
bool Unrest::carried_out(std::uint32_t order) {
  const std::uint32_t word = broker_.order_store(order);
  for (int i = 0; i < 1500 && !ends_; ++i) {
    if (broker_.wait_moved(word, 20)) return true;
  }
  return false;
}

// One that is not acknowledged in time (a capture is in progress, a process has ended) is taken
// back.
void Unrest::hold() {
  broker_.lease_store(0);
  broker_.hold_store(true);
  if (broker_.registrations() > 0 && broker_.wait_held(50)) {
    ++holds_;
    if (moves_ && carried_out(kHoldOut)) {
      pause(1000);
      if (carried_out(kHoldIn)) ++moved_;
    }
  }
  broker_.hold_store(false);
}

void Unrest::serve() {
  while (!ends_) {
    {
      const std::lock_guard lock(rest);
      broker_.window_set(below(2) == 0 ? 0 : 1000ull * below(3000));
      if (below(3) == 0)
        hold();
      else
        lease_close();
      broker_.lease_store(below(4) == 0 ? kLeaseOpen | kLeaseExclusive : kLeaseOpen);
    }
    pause(4000);
  }
}

}  // namespace sluice::test
