// All ways to spread a job over its ranks, each with its prediction, the quickest first. A search
// through everything: there are tens of candidates, and a prediction takes microseconds.
#pragma once

#include <vector>

#include "trainer/plan/cost.h"

namespace sluice::train::planner {

struct Ranked {
  Candidate candidate;
  Prediction prediction;
  bool fits = true;        // into a GPU's memory, with all ranks that share it
  bool executable = true;  // by this build
};

struct SearchOptions {
  int ranks = 1;
  PlanFixed fixed;     // what stays as in `given`
  Candidate given;     // what the options say
  int accumulate = 1;  // micro-batches of a step as given, for plans without a pipeline
  bool sharded_possible = true;
  bool split_possible = true;  // nothing needs ranks that have the whole model
  bool algorithms = true;      // the engine lets us choose
  std::uint64_t memory_bytes = 0;
};

/// Which candidates this build can execute: this function and nothing else says so.
bool executable(const Job& job, const SearchOptions& options, const Candidate& candidate);

/// Those that can be, whether this build executes them or not.
std::vector<Candidate> candidates(const Job& job, const SearchOptions& options);

/// All candidates that the machine has been measured for: what fits before what does not, then by
/// predicted time.
std::vector<Ranked> search(const Job& job, const Machine& machine, const SearchOptions& options);

/// The first that fits and can be executed; none where no candidate does.
const Ranked* best_of(const std::vector<Ranked>& ranked);

}  // namespace sluice::train::planner
