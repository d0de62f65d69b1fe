// Signs of life of a rank, and a look at the job's members for it: a thread that writes the time to
// the board every few milliseconds, and, when the launcher says there that the members of the job
// have changed, ends what the training thread waits for in a collective. The training thread itself
// says when it comes forward, and when it may wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "trainer/comm/communicator.h"
#include "trainer/train/board.h"

namespace sluice::train {

inline constexpr Nanos kBeatGap = 10 * kNanosPerMilli;
/// A process that gives no sign of life is given up so much before its time is over: that it is
/// noticed, killed and reaped belongs to the time in which a loss is to be detected.
inline constexpr Nanos kNoticeLead = 2 * kBeatGap;

/// When a rank that gives no further sign counts as lost. `patience`: how long it may be silent;
/// `watches_training`: the training thread must come forward too, unless it says that it waits;
/// signs older than `listen_from` are nobody's fault.
Nanos silence_due(const RankLine& line, Nanos patience, bool watches_training, Nanos listen_from);

class Heartbeat {
 public:
  /// Beats from here to its end.
  Heartbeat(BoardMap& board, int slot);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// The training thread has come forward.
  void progress() { line_.progress_ns = now_ns(); }
  /// While this lives the training thread may wait.
  class Waiting {
   public:
    explicit Waiting(Heartbeat& heartbeat) : line_(heartbeat.line_) { line_.waits = true; }
    ~Waiting() {
      line_.progress_ns = now_ns();
      line_.waits = false;
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    RankLine& line_;
  };

  /// This rank is a member in this epoch.
  void epoch_set(std::uint64_t epoch) { epoch_ = epoch; }
  /// The epoch is over: somebody is lost.
  bool is_broken() const { return members_.broken > epoch_; }
  /// Throws PeerFailure where it is.
  void broken_check() const;

  /// `comm` is aborted as soon as the epoch is over, as long as this lives.
  class Guard {
   public:
    Guard(Heartbeat& heartbeat, Communicator& comm);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Heartbeat& heartbeat_;
  };

 private:
  void run();

  RankLine& line_;
  const BoardMembers& members_;
  std::atomic<std::uint64_t> epoch_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  Communicator* guarded_ = nullptr;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace sluice::train
