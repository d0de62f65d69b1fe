// Prepares batches ahead of the training thread: a thread of its own fills a ring of slots, at most
// `slots - 1` batches ahead of the one in use. With a single slot there is no thread, and a batch
// is made when it is asked for. Which samples a batch has is decided by the step alone, so both
// give the same bits. Knows neither the data nor the GPU: whoever makes one gives memory and a
// function.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "trainer/base/clock.h"

namespace sluice::train {

/// Memory for one batch, and what is in it.
struct LoadedBatch {
  void* inputs = nullptr;  // as source.h has them
  int* targets = nullptr;
  std::uint32_t count = 0;         // this rank's samples
  std::uint32_t global_count = 0;  // all ranks'
};

struct LoaderOptions {
  std::uint64_t steps = UINT64_MAX;  // no batch is made from this step on
  Nanos delay_ns = 0;                // a planted slow store: waited for before every batch
};

class Loader {
 public:
  /// Runs in the loader's thread; what it throws comes out of next().
  using Fill = std::function<void(std::uint64_t step, LoadedBatch& batch)>;

  Loader(std::vector<LoadedBatch> slots, const LoaderOptions& options, Fill fill);
  /// Returns once the batch in the making, if any, is made; a planted delay is cut short.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The batch of the next step, counted from 0; waits for it. The batch before it is given back.
  /// May be called `steps` times.
  const LoadedBatch& next();
  /// How long the last next() took.
  Nanos stall_ns() const { return stall_ns_; }

 private:
  bool ahead() const { return slots_.size() > 1; }
  LoadedBatch& slot_of(std::uint64_t step) { return slots_[step % slots_.size()]; }
  void run();
  /// False when the loader is to end before the slot of `step` is free and the delay is over.
  bool turn_await(std::uint64_t step);
  void wait_filled();

  std::vector<LoadedBatch> slots_;
  const LoaderOptions options_;
  const Fill fill_;
  std::uint64_t taken_ = 0;  // steps handed out; the training thread's
  Nanos stall_ns_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t released_ = 0;  // steps whose slots are free again
  std::uint64_t filled_ = 0;    // steps that are made
  bool ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace sluice::train
