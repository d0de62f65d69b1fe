// A job on several machines: each has a launcher, told here which node it is and where all of them
// meet. A part of the options (options.h).
#pragma once

#include <string>

namespace sluice::train {

class CommandLine;
struct TrainOptions;

struct NodeOptions {
  int count = 1;
  int node = 0;
  std::string rendezvous;  // HOST:PORT
  std::string address;     // by which other nodes reach this one; none = the one that reaches there
  double wait_s = 300;
  /// The job in words, a line for each option in which nodes must not differ.
  std::string job;

  bool are_many() const { return count > 1; }
};

inline constexpr int kNodesMax = 64;

void node_options_add(CommandLine& line, NodeOptions& nodes);
/// What of them goes with what, also with the other options; and takes down the job in words from
/// `line`, which has been parsed. Throws Failure.
void node_options_check(const CommandLine& line, TrainOptions& options);

}  // namespace sluice::train
