// The process's worker threads. One pool serves the launches of all streams: a launch runs on its
// calling thread, and asks for help when it has more CTAs than one thread should run alone. Threads
// start when first needed, and a forked child gets a pool of its own.
#pragma once

#include <atomic>
#include <cstdint>

namespace softgpu::ptx {

/// Something several threads can work on at once.
class PoolJob {
 public:
  virtual ~PoolJob() = default;
  /// Runs on a helper until nothing is left to begin.
  virtual void help() = 0;
  virtual bool wants_help() const = 0;

 private:
  friend class Pool;
  int helpers_ = 0;  // under the pool's mutex
};

/// Threads that work on launches, the calling one included: SOFTGPU_THREADS, or the number of
/// cores.
unsigned pool_width();

/// Offers the job to idle helpers. Must be followed by pool_withdraw() before the job goes away.
void pool_offer(PoolJob& job);
/// Takes the offer back and waits for the helpers that are still at it.
void pool_withdraw(PoolJob& job);

}  // namespace softgpu::ptx
