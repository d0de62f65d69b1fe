// The blackboard between launcher and ranks: one shared page where each rank writes how far it is.
// The launcher shows, sums up and reports from it, so ranks never print over each other. A memfd,
// inherited by number; plain atomics, each written by one rank only.
#pragma once

#include <atomic>
#include <cstdint>

#include "trainer/train/options.h"

namespace sluice::train {

struct RankLine {
  std::atomic<std::uint64_t> steps;            // of the job, with those of earlier runs
  std::atomic<std::uint64_t> own_steps;        // that this process has made; what sums go over
  std::atomic<std::uint64_t> samples;          // this rank's
  std::atomic<std::int64_t> communication_ns;  // sum over steps, waiting for others included
  std::atomic<std::int64_t> collective_ns;     // these: sums over steps, in the device's time
  std::atomic<std::int64_t> exposed_ns;        // (see ReductionTimes)
  std::atomic<std::int64_t> tensor_ns;         // parts of both
  std::atomic<std::int64_t> stage_wait_ns;
  std::atomic<double> bus_bytes;
  std::atomic<std::uint64_t> sent_bytes;   // for gradients and weights, as the transport counted
  std::atomic<std::uint64_t> state_bytes;  // of the optimizer on the device
  std::atomic<std::int64_t> pipeline_busy_ns;  // of a stage: computing, and how long all stages
  std::atomic<std::int64_t> pipeline_span_ns;  // took; sums over steps, in the device's time
  std::atomic<std::int64_t> stall_ns;          // sum over steps of waiting for data
  std::atomic<std::int64_t>
      compute_median_ns;                       // of the last steps' wall time outside communication
  std::atomic<std::int64_t> device_median_ns;  // of the last steps' own work on the device
  std::atomic<std::int64_t> step_median_ns;    // the same with what of communication nothing hid
  std::atomic<double> loss;                    // of the last step, all ranks' mean
  std::atomic<double> accuracy;                // of the last evaluation, -1 = none
  // With --sharing scatter: how many samples there are, which only rank 0 knows by itself. The
  // second is written last, and is not 0 then.
  std::atomic<std::uint32_t> test_samples;
  std::atomic<std::uint32_t> train_samples;
  std::atomic<std::uint64_t> skipped;  // steps left out because gradients overflowed
  std::atomic<double> test_loss;       // of the last evaluation
  std::atomic<double> recall;          // these three: of the evaluation at the end
  std::atomic<double> f1;
  std::atomic<double> roc_auc;
  std::atomic<std::int64_t> begin_ns;        // first step's start
  std::atomic<std::int64_t> end_ns;          // last step's end
  std::atomic<std::uint64_t> steps_planned;  // 0 = until its time is up
  std::atomic<double> peak_flops;            // of this rank's GPU (flops.h); 0 = not known
  // --strategy async: what a worker has sent, or is about to; and of the server, in updates and
  // steps (async.h).
  std::atomic<std::uint64_t> pushes;
  std::atomic<double> age_mean;
  std::atomic<std::uint64_t> age_max;
  std::atomic<std::uint64_t> ahead_max;
  // --offload optimizer: what its copies moved and took, in the device's time.
  std::atomic<std::uint64_t> host_state_bytes;
  std::atomic<std::uint64_t> offload_bytes;
  std::atomic<std::int64_t> offload_ns;
  std::atomic<bool> stopped;   // was asked to stop before its time
  std::atomic<bool> finished;  // needs the other ranks no more
  // Signs of life (heartbeat.h).
  std::atomic<std::int64_t> alive_ns;     // when a thread of its own last ran; 0 = not yet
  std::atomic<std::int64_t> progress_ns;  // when the training thread last came forward
  std::atomic<bool> waits;                // the training thread may wait: for others, or for a disk
  // Membership (membership.h).
  std::atomic<std::uint64_t> ready_for;     // the epoch that it waits for; 0 = none
  std::atomic<std::uint64_t> trains_in;     // the last epoch in which it began to train, + 1
  std::atomic<std::uint64_t> commit_steps;  // steps of its state in memory, + 1; 0 = it has none
  std::atomic<std::uint64_t> job_samples;   // all ranks', in the weights as they are
};

/// Who the ranks of the job are. The launcher writes it while nobody trains, `epoch` last.
struct BoardMembers {
  std::atomic<std::uint64_t> epoch;   // counts from 0, what the ranks were started with
  std::atomic<std::uint64_t> broken;  // epochs below this are over: whoever is in one leaves it
  int rank_count;
  int slots[kRanksMax];  // by rank
  int root;              // the rank whose state is the newest
  char directory[256];   // where they meet
};

struct Board {
  RankLine ranks[kRanksMax];  // by slot
  BoardMembers members;
};
static_assert(std::atomic<double>::is_always_lock_free);

/// Owns the mapping (and in the launcher the descriptor, for the ranks to inherit).
class BoardMap {
 public:
  /// The launcher's: a new board.
  BoardMap();
  /// A rank's: the board behind an inherited descriptor.
  explicit BoardMap(int fd);
  /// A new board in an empty file, which it owns.
  struct Fresh {};
  BoardMap(int fd, Fresh);
  ~BoardMap();
  BoardMap(const BoardMap&) = delete;
  BoardMap& operator=(const BoardMap&) = delete;

  RankLine& line(int slot) { return board_->ranks[slot]; }
  BoardMembers& members() { return board_->members; }
  int fd() const { return fd_; }

 private:
  void map();
  int fd_ = -1;
  Board* board_ = nullptr;
};

}  // namespace sluice::train
