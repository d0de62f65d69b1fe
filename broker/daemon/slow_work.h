// Work that may take long: questions to the account databases (a directory service can take
// seconds), files under /proc whose size or locks are a client's, a sync to a disk. Nothing of the
// kind runs in the loop. It runs on threads beside it, and what it found is handed to the loop.
//
// Whoever waits for an answer has a deadline of its own: work that hangs is never waited for, not
// at the end either.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "broker/daemon/loop.h"

namespace sluice::daemon {

class SlowWork {
 public:
  /// Runs beside the loop and must touch nothing of the loop's; what it returns runs in the loop,
  /// unless it is empty.
  using Work = std::function<Loop::Handler()>;
  virtual ~SlowWork() = default;
  /// Work whose `wanted_by` has expired before it was begun is not done.
  virtual void run(Work work, std::weak_ptr<const void> wanted_by) = 0;
  /// Work that is wanted until the broker ends.
  void run(Work work) {
    static const auto broker = std::make_shared<int>();
    run(std::move(work), broker);
  }
};

/// A few threads, started when they are wanted. Work that cannot be started because the kernel
/// gives no thread waits for the next call of run().
class SlowThreads : public SlowWork {
 public:
  explicit SlowThreads(Loop& loop);
  /// Threads that are at work end by themselves; nothing of theirs reaches the loop any more.
  ~SlowThreads() override;
  SlowThreads(const SlowThreads&) = delete;
  SlowThreads& operator=(const SlowThreads&) = delete;
  using SlowWork::run;
  void run(Work work, std::weak_ptr<const void> wanted_by) override;

 private:
  struct Shared;
  void collect();
  Loop& loop_;
  std::shared_ptr<Shared> shared_;
  Loop::Key key_ = 0;
};

}  // namespace sluice::daemon
