// `--strategy async`: asynchronous SGD with a parameter server and bounded staleness (Li et al.,
// "Scaling Distributed Machine Learning with the Parameter Server", 2014; Ho et al., "More
// Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013). Rank 0
// serves: it has the weights and the optimizer's state and trains nothing itself; the other ranks
// are workers. A worker computes gradients with the weights it has, sends them (push), and gets new
// weights (pull) as soon as it is less than S + 1 steps ahead of the slowest worker. The server
// makes an update of every push as it comes.
//
// A gradient is the worker's part of the mean over a global batch, as in synchronous training: as
// many pushes as there are workers move the weights as far as one synchronous step does. With S = 0
// all workers are at the same step, and the server makes one update of their sum: synchronous SGD,
// up to the rounding of the sum.
//
// Who has pushed is said on the board, which is in every rank's memory; the data go through the
// Communicator's send and receive.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/job/log.h"
#include "trainer/model/network.h"
#include "trainer/train/board.h"
#include "trainer/train/reduction.h"
#include "trainer/train/schedule.h"
#include "trainer/train/update.h"

namespace sluice::train {

/// Who is at which step, who may go on, and how old gradients are when they are applied. Knows no
/// device. Workers are numbered from 0.
class StalenessBook {
 public:
  StalenessBook(int workers, std::uint64_t bound);
  /// Steps that workers made before; before anything else.
  void begin_at(const std::vector<std::uint64_t>& steps);

  /// Whether this worker may begin its next step: at most `bound` ahead of the slowest.
  bool may_begin(int worker) const { return ahead(worker) <= bound_; }
  /// Steps that this worker has made beyond the slowest.
  std::uint64_t ahead(int worker) const;
  std::uint64_t steps(int worker) const { return of(worker).steps; }
  std::vector<std::uint64_t> clocks() const;
  /// New weights go to this worker.
  void weights_given(int worker);
  /// An update is made of what `workers` have pushed: one push, or all of a step. Returns the age:
  /// the updates made since its weights were given, of the oldest.
  std::uint64_t updated(const std::vector<int>& workers);

  std::uint64_t updates() const { return updates_; }
  /// Updates by their age.
  const std::map<std::uint64_t, std::uint64_t>& ages() const { return ages_; }
  double age_mean() const;
  std::uint64_t age_max() const { return ages_.empty() ? 0 : ages_.rbegin()->first; }
  /// Most steps that a worker was ahead of the slowest when it was given weights.
  std::uint64_t ahead_max() const { return ahead_max_; }

 private:
  struct Worker {
    std::uint64_t steps = 0;
    std::uint64_t version = 0;  // updates in the weights it has
  };
  const Worker& of(int worker) const { return workers_[static_cast<std::size_t>(worker)]; }

  const std::uint64_t bound_;
  std::vector<Worker> workers_;
  std::uint64_t updates_ = 0;
  std::uint64_t ahead_max_ = 0;
  std::map<std::uint64_t, std::uint64_t> ages_;
};

/// What comes with new weights: floats.
inline constexpr std::size_t kReplyStop = 0;   // 1: these are the last
inline constexpr std::size_t kReplyAge = 1;    // of the gradients that were pushed
inline constexpr std::size_t kReplyAhead = 2;  // steps of this worker beyond the slowest, now
inline constexpr std::size_t kReplyCount = 3;

/// A worker's side. Everything must outlive it.
class AsyncWorker {
 public:
  AsyncWorker(Communicator& comm, Stream& stream, Network& model, RankLine& line);
  /// Sends the gradients, with the sum of losses and the wish to stop, and takes new weights; waits
  /// for them. Nothing hides any of it.
  ReductionTimes exchange();
  bool stops() const { return said_[kReplyStop] > 0; }
  std::uint64_t age() const { return static_cast<std::uint64_t>(said_[kReplyAge]); }
  std::uint64_t ahead() const { return static_cast<std::uint64_t>(said_[kReplyAhead]); }

 private:
  Communicator& comm_;
  Stream& stream_;
  Network& model_;
  RankLine& line_;
  DeviceArray<float> reply_{kReplyCount};
  std::vector<float> said_;
};

struct ServerOptions {
  int workers;
  std::uint64_t bound;
  std::uint64_t steps;  // of every worker; UINT64_MAX = until somebody wishes to stop
  RatePlan rates;
  double timeout_s;                   // for all workers together to stay silent
  int batch;                          // of a worker's step, for the log
  std::vector<std::uint64_t> clocks;  // steps that workers made before
  /// After every update, before anybody gets its weights; the gradients may be lost.
  std::function<void(const StalenessBook&)> on_update;
};

/// Rank 0. Serves until every worker has had its last weights. `wants_stop` is the server's own
/// wish. Writes the ages of all updates to the log and the board.
class AsyncServer {
 public:
  AsyncServer(const ServerOptions& options, Communicator& comm, Stream& stream, Network& model,
              WeightUpdate& update, BoardMap& board, JobLog& log, std::function<bool()> wants_stop);
  /// Returns the steps that every worker has made.
  std::vector<std::uint64_t> run();

 private:
  int push_await();
  bool has_pushed(int worker);
  void push_take(int worker, CUdeviceptr to);
  void pushes_apply(const std::vector<int>& workers);
  void step_together();
  void replies_send();
  void note();
  void ages_log();

  const ServerOptions options_;
  Communicator& comm_;
  Stream& stream_;
  Network& model_;
  WeightUpdate& update_;
  BoardMap& board_;
  RankLine& line_;
  JobLog& log_;
  const std::function<bool()> wants_stop_;
  StalenessBook book_;
  std::vector<std::uint64_t> taken_;  // pushes, by worker
  std::vector<std::uint64_t> age_;    // of the last push, by worker
  std::vector<double> losses_;        // sum of the last step's, by worker
  std::vector<bool> waits_;           // for weights
  int left_;                          // workers that have not had their last weights
  int next_ = 0;                      // whose push is looked for first
  bool stopping_ = false;
  DeviceArray<float> inbox_;
  DeviceArray<float> reply_{kReplyCount};
};

}  // namespace sluice::train
