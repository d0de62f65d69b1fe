// What is said of a step that is over: a line in the log, and sums and medians on the board; and
// before the first of them, what the rank goes by.
#pragma once

#include <vector>

#include "trainer/train/async.h"
#include "trainer/train/pipeline.h"
#include "trainer/train/replica.h"
#include "trainer/train/worker.h"

namespace sluice::train {

/// The last values of something, of which the board has the median.
class Recent {
 public:
  void put(Nanos value);
  Nanos median() const;

 private:
  std::vector<Nanos> values_;
  std::size_t next_ = 0;
};

/// A line `executes`: the plan as this rank follows it, for comparison with what was planned.
void executes_log(JobLog& log, const TrainOptions& options, const TrainPlan& plan,
                  const char* engine, bool overlaps);

struct StepFacts {
  std::uint64_t step;  // the first is 0
  Nanos begin;
  Nanos device_ns;  // of this rank's own work
  Nanos stall_ns;
  ReductionTimes reduced;
  double loss;
  double rate;
  int counted;                // samples that this rank speaks for
  std::uint64_t job_samples;  // of the step, all ranks'
};

class StepLog {
 public:
  /// What does not exist on this rank is null. Everything must outlive the log.
  struct Parts {
    Worker& worker;
    int rank;
    double bus_bytes;  // of a step's gradients and weights
    bool offload;
    bool tensor;  // layers are split
    Replica& replica;
    WeightUpdate* update;
    const LossScaler* scaler;
    Pipeline* pipeline;
    const AsyncWorker* async;
  };
  explicit StepLog(const Parts& parts) : parts_(parts) {}

  /// Returns the step's end. A collective of the replica where there is a pipeline.
  Nanos note(const StepFacts& facts);
  /// What the optimizer's copies took since this was asked last.
  Nanos offload_note();

 private:
  void pipeline_add(JsonLine& json);
  void board_add(const StepFacts& facts, Nanos end);

  const Parts parts_;
  Recent compute_, device_, step_;
};

}  // namespace sluice::train
