// Who the ranks of a job are, when that may change (`--elastic`). An epoch of membership is a list
// of workers, by rank; a worker is a process with a line of its own on the board, its slot. When
// one is lost the launcher says that the epoch is over. Every other rank leaves its collective (its
// connections are closed, or fail), gives up its communicator, and says on the board that it is
// ready for the next epoch, and how new the state is that it has in memory. When all that are left
// are ready, and replacements with them, the launcher writes down the next epoch: its ranks in the
// order of slots, where they meet, and whose state is the newest. That one gives its state to all,
// and they go on from it.
//
// The launcher is the only one that decides; it lives as long as the job, since ranks end with it.
#pragma once

#include <string>
#include <vector>

#include "trainer/train/board.h"
#include "trainer/train/heartbeat.h"

namespace sluice::train {

/// A rank's place in an epoch.
struct Member {
  std::uint64_t epoch = 0;
  int rank = 0;
  int rank_count = 1;
  int root = 0;  // the rank that has the newest state
  std::string directory;
};

/// For a rank: waits for the epoch after `epoch`, and takes its place in it. `commit_steps`: of the
/// state that it has in memory, + 1; 0 = none.
Member member_await(BoardMap& board, Heartbeat& heartbeat, int slot, std::uint64_t epoch,
                    std::uint64_t commit_steps);

/// For a rank that is done: waits on the board until all of the present epoch are. Not a barrier of
/// the communicator: the first to pass that would close its connections while the others are still
/// in it. If a rank is lost here, the launcher ends us.
void members_leave(BoardMap& board, Heartbeat& heartbeat, RankLine& line, int rank_count);

/// For the launcher: the epochs of a job.
class Membership {
 public:
  Membership(BoardMap& board, int rank_count);

  /// Slots, by rank.
  const std::vector<int>& members() const { return members_; }
  std::uint64_t epoch() const { return board_.members().epoch; }

  /// The present epoch is over.
  void breaks();
  bool is_changing() const { return board_.members().broken > epoch(); }
  bool is_ready(int slot) const { return board_.line(slot).ready_for == epoch() + 1; }
  /// The next epoch has these, who are all ready, and begins. `directory` is empty and theirs.
  void form(const std::vector<int>& slots, const std::string& directory);
  /// The present epoch's ranks train.
  bool trains() const;

 private:
  BoardMap& board_;
  std::vector<int> members_;
};

}  // namespace sluice::train
