// What a job does against loss: its checkpoints, how it looks after its ranks, and what it does
// without one. A part of the options (options.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::train {

class CommandLine;
struct TrainOptions;

struct FaultOptions {
  std::string checkpoint;              // directory; empty = none
  std::uint64_t checkpoint_every = 0;  // steps; 0 = only at the end
  int checkpoint_keep = 2;
  bool resume = false;
  int elastic = 0;  // go on while there are at least so many ranks; 0 = end when one is lost
  bool replace = false;
  std::uint64_t commit_every = 10;  // steps between states in memory, with elastic
  /// A rank without a sign of life for longer is lost. 0 = the usual, for processes alone: a rank
  /// that shares its GPU may have to wait for it.
  double heartbeat_timeout_s = 0;
  std::string split;               // "", "auto" or "3,1"
  std::vector<int> split_weights;  // of "3,1"
  bool exclusive = false;
  std::uint64_t hang_step = 0;  // planted: the last rank hangs in this step; 0 = none

  bool is_elastic() const { return elastic > 0; }
  /// The step after which a rank takes a state in memory.
  bool commit_due(std::uint64_t steps) const { return is_elastic() && steps % commit_every == 0; }
};

inline constexpr double kHeartbeatUsual_s = 30;
inline constexpr int kSplitWeightMax = 1000;

void fault_options_add(CommandLine& line, FaultOptions& faults);
/// What of them goes with what, also with the other options. Throws Failure.
void fault_options_check(TrainOptions& options);

}  // namespace sluice::train
