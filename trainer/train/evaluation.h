// How good the model is on the test samples: each rank takes its part, the sums travel through the
// communicator, rank 0 writes the log.
#pragma once

#include <functional>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/job/log.h"
#include "trainer/model/network.h"
#include "trainer/train/board.h"
#include "trainer/train/feed.h"

namespace sluice::train {

/// Which part of the test samples a rank looks at, and what it does there.
struct EvaluationPlace {
  int rank = 0;  // of those that share out the samples
  int rank_count = 1;
  bool has_logits = true;  // they come out of this rank's part of the model
  bool speaks = true;      // of ranks that have the same logits, one does
  /// The batch that was uploaded, through the model.
  std::function<void(int batch)> forward;
};

class Evaluation {
 public:
  /// Everything must outlive this. Where samples are scattered, rank 0 has them all.
  Evaluation(const TrainOptions& options, Stream& stream, Network& network, const Feed& feed,
             EvaluationPlace place);

  /// After `step` steps: accuracy and loss, and of text the perplexity, to the board and the log.
  /// The last one of a classifier also gathers what the model says of every sample, for the scores
  /// that are no sums over samples.
  /// `comm` is between the ranks that share out the samples, `replica` between those that have one
  /// copy of the model.
  void run(Communicator& comm, Communicator& replica, std::uint64_t step, bool is_last,
           RankLine& line, JobLog& log);

 private:
  struct Sums {
    double loss = 0;
    double correct = 0;
  };
  /// Of test samples [begin, end).
  Sums part_run(std::size_t begin, std::size_t end, bool keep);
  void batch_run(std::size_t begin, int count);
  void logits_keep(std::size_t first, std::size_t count);
  void logits_gather(Communicator& comm);
  void scores_add(JsonLine& json, std::size_t total, RankLine& line);
  /// One answer a sample; a text has one for every token.
  bool is_classifier() const { return network_.sample().targets == 1; }
  std::size_t classes() const { return static_cast<std::size_t>(network_.sample().classes); }

  const TrainOptions& options_;
  Stream& stream_;
  Network& network_;
  const Feed& feed_;
  const EvaluationPlace place_;
  PinnedBatch batch_;
  PinnedArray<float> losses_;
  DeviceArray<float> sums_{2};
  std::vector<float> said_;  // logits of all test samples, in the last evaluation
};

}  // namespace sluice::train
