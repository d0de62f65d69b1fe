// The observer on a thread of its own, beside a program that serves its figures: told who is there,
// asked what is known, and neither waits for a look that takes long. Thread-safe.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "exporter/idle/figures.h"
#include "exporter/idle/observer.h"

namespace sluice::exporter {

struct IdleSetup {
  std::unique_ptr<ThreadWatch> watch;  // null = by samples of /proc
  std::string reason;                  // of the watch, or of its absence
  std::unique_ptr<ActivitySource> source;
  std::uint32_t tenants_max =
      200;  // the oldest are observed, as only they have series of their own
};

class IdleThread {
 public:
  /// Samples are taken only of programs that this process might debug: of others /proc tells too
  /// little to name a cause.
  explicit IdleThread(IdleSetup setup);
  ~IdleThread();
  IdleThread(const IdleThread&) = delete;
  IdleThread& operator=(const IdleThread&) = delete;

  void tenants_set(const Snapshot& snapshot);
  IdleState state() const;

 private:
  void look_on();
  void narrow(Snapshot& snapshot);

  const bool sampled_;
  const std::uint32_t tenants_max_;
  IdleObserver observer_;
  mutable std::mutex mutex_;  // guards what follows, but for the thread
  std::condition_variable wake_;
  bool stop_ = false;
  std::optional<Snapshot> next_;
  std::uint64_t left_out_ = 0;
  IdleState state_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sluice::exporter
