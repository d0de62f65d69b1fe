// Where the ranks of a job find each other: a directory for the job alone, and the board. The
// launcher that starts all ranks makes both; ranks that somebody else starts (environment.h) meet
// in a directory whose name follows from the job, which rank 0 makes.
#pragma once

#include <memory>
#include <string>

#include "trainer/train/board.h"
#include "trainer/train/environment.h"

namespace sluice::train {

class Meeting {
 public:
  /// For a launcher that starts all ranks.
  static std::unique_ptr<Meeting> own();
  /// For each of those that start one rank of a job. Rank 0 makes the place, the others wait for
  /// it. Throws Failure when it is not made in time, or is there from an earlier job.
  static std::unique_ptr<Meeting> shared(const ExternalStart& start, double timeout_s);
  /// For each of the launchers of a job on several machines: a board of its own, and a place in the
  /// network for the ranks.
  static std::unique_ptr<Meeting> network(const std::string& place);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  BoardMap& board() { return *board_; }
  /// Of a job on several machines a place in the network (comm/store.h).
  const std::string& directory() const { return directory_; }
  /// Another directory, empty, for those that meet next. Only of own().
  void renew();
  /// Once the ranks have met the directory is of no use; gone early, it cannot outlive a launcher
  /// that is killed. Who did not make it does nothing.
  void remove();

 private:
  Meeting() = default;
  std::string directory_;
  bool made_ = false;
  std::unique_ptr<BoardMap> board_;
};

}  // namespace sluice::train
