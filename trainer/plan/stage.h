// A rank's part of a step: a run of layers (all of them without a pipeline), with its times on one
// machine. See cost.h.
#pragma once

#include "trainer/plan/cost.h"
#include "trainer/plan/pipeline.h"

namespace sluice::train::planner {

class Stage {
 public:
  /// Layers [first, end) of the model.
  Stage(const Job& job, const Candidate& candidate, const Machine& machine, const ModelCost& model,
        std::size_t first, std::size_t end);

  std::size_t parameters() const { return parameters_; }
  /// Without pauses: all of these are of one micro-batch.
  StageTime time() const { return time_; }
  double busy_ns() const { return time_.forward_ns + time_.backward_ns; }
  double input_ns() const { return input_ns_; }
  double compute_ns() const { return busy_ns() - tensor_ns_ - input_ns_; }
  double tensor_ns() const { return tensor_ns_; }
  /// Adding up gradients of micro-batches, in the whole step, beyond what busy_ns() has.
  double accumulate_ns() const { return accumulate_ns_; }
  /// The backward pass of the last micro-batch, and when its gradients are final.
  double last_backward_ns() const { return last_backward_ns_; }
  const std::vector<FinalMark>& marks() const { return marks_; }
  /// The token embedding's gradient, where the first stage and the last both have it.
  double tied_ns() const { return tied_ns_; }

  double kept_floats() const { return kept_floats_; }  // of a micro-batch
  double scratch_floats() const { return scratch_floats_; }
  double message_floats() const {
    return message_floats_;
  }  // of messages to other stages, and from

 private:
  void backward_time(const Candidate& candidate, const Machine& machine, const ModelCost& model,
                     std::size_t first, std::size_t end);
  void boundary_time(const Candidate& candidate, const Machine& machine, const LayerCost& before);

  StageTime time_;
  std::size_t parameters_ = 0;
  std::vector<FinalMark> marks_;
  double input_ns_ = 0, tensor_ns_ = 0, accumulate_ns_ = 0, last_backward_ns_ = 0, tied_ns_ = 0;
  std::size_t tied_floats_ = 0;  // of the token embedding, where two stages have it
  double kept_floats_ = 0, scratch_floats_ = 0, message_floats_ = 0;
};

/// The stages of a candidate, of about equal times.
std::vector<Stage> stages_make(const Job& job, const Candidate& candidate, const Machine& machine);

/// As trainer/train/plan.cpp cuts them.
std::vector<Bucket> stage_buckets(const Job& job, const Candidate& candidate,
                                  std::size_t parameters);

/// The optimizer over this rank's weights, and what comes before it.
double update_ns(const Job& job, const Candidate& candidate, const Machine& machine,
                 std::size_t parameters);

}  // namespace sluice::train::planner
