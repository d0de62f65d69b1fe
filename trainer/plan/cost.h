// What a training step takes, for any way of spreading it over ranks: from the work of its layers
// (layers.h), the rates of a GPU (rates.h) and of the links (links.h). Pure functions.
//
//   step = input + compute + exposed communication + update (docs/training-plan.md)
//
// The time is the device's, as the step lines of a run's log have it: `device_ns` (input, forward,
// backward, update) plus `exposed_ns`, which also has the sums within layers and the waits for
// other stages. On software GPUs both are modelled time.
#pragma once

#include <vector>

#include "trainer/plan/layers.h"
#include "trainer/plan/links.h"
#include "trainer/train/plan.h"

namespace sluice::train::planner {

/// A way to spread a job: data x tensor x pipeline ranks, tensor innermost.
struct Candidate {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int micro_batches = 1;  // of a replica's step; more than 1 with pipelines, or to accumulate
  Strategy strategy = Strategy::kData;
  std::size_t bucket_bytes = 1 << 20;
  Algorithm algorithm = Algorithm::kRing;
  bool overlap = true;

  int ranks() const { return data * tensor * pipeline; }
  /// "data 4, ring, buckets of 64 KiB"
  std::string text() const;
};

/// What is trained; no candidate changes it.
struct Job {
  ModelShape shape;
  int global_batch = 1;  // samples of a step, of all ranks together
  Precision precision = Precision::kFp32;
  OptimizerSettings optimizer;
  CompressionSettings compression;
};

struct Machine {
  KernelRates kernels;
  LinkRates links;
  int ranks_per_gpu = 1;  // take turns on it
  // Messages pass through the host's memory, in the device's time, and the links' rates are without
  // that: Gloo on software GPUs.
  bool staged = false;
};

struct Prediction {
  double input_ns = 0;       // copies to the device
  double compute_ns = 0;     // forward and backward of the rank that ends last
  double tensor_ns = 0;      // all-reduces inside of layers; nothing hides them
  double bubble_ns = 0;      // waiting for other stages, and sending to them
  double collective_ns = 0;  // of gradients and weights
  double exposed_ns = 0;     // the part of it that the backward pass does not hide
  double update_ns = 0;
  double memory_bytes = 0;  // of the rank that needs most, without its context

  double step_ns() const {
    return input_ns + compute_ns + tensor_ns + bubble_ns + exposed_ns + update_ns;
  }
};

/// Throws Failure where the candidate cannot be, or the machine has not been measured for it.
Prediction predict(const Job& job, const Candidate& candidate, const Machine& machine);

/// A stretch of the gradients, down to `begin`, is final at `ns`.
struct FinalMark {
  double ns;
  std::size_t begin;
};
/// How much longer than the backward pass the reduction takes: bucket after bucket on one link,
/// each when its last gradient is final (or, without overlap, all are) and the link is free.
double reduction_exposed_ns(const std::vector<FinalMark>& marks, const std::vector<Bucket>& buckets,
                            const std::vector<double>& bucket_ns, double backward_ns, bool overlap);

}  // namespace sluice::train::planner
