// A broker that leaves the tenant no rest: leases that close and open again, exclusive ones,
// windows, holds, and, where its memory is movable, memory that goes out and comes in, all at
// random.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>

#include "tests/interpose/test_broker.h"

namespace sluice::test {

class Unrest {
 public:
  /// With `moves` memory goes out during holds; the tenant must be one that can be swapped.
  Unrest(TestBroker& broker, std::uint64_t seed, bool moves);
  /// Ends it. Leases are open then, and all memory is in, unless the program has ended.
  ~Unrest();
  Unrest(const Unrest&) = delete;
  Unrest& operator=(const Unrest&) = delete;

  /// Whoever has this has a rest: leases are open, and memory is in.
  std::mutex rest;
  int holds() const { return holds_; }
  int moves() const { return moved_; }

 private:
  void serve();
  void lease_close();
  void hold();
  bool carried_out(std::uint32_t order);
  void pause(unsigned most_us);
  unsigned below(unsigned n) { return static_cast<unsigned>(random_() % n); }

  TestBroker& broker_;
  std::mt19937_64 random_;
  const bool moves_;
  std::atomic<bool> ends_{false};
  std::atomic<int> holds_{0}, moved_{0};
  std::thread thread_;
};

}  // namespace sluice::test
