// One model on one GPU that answers requests in batches: whatever has arrived when the GPU is free,
// up to batch_max.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/data/dataset.h"
#include "trainer/infer/arrivals.h"
#include "trainer/job/log.h"
#include "trainer/job/progress.h"
#include "trainer/job/stop.h"
#include "trainer/model/weights.h"

namespace sluice::train {

class Server {
 public:
  /// `images` are what the requests ask about, in turn.
  Server(const Weights& weights, int batch_max, const ImageSet& images);

  /// Serves the schedule: request i arrives at begin_ns + arrivals[i]. Returns those served; fewer
  /// when asked to stop or when draining the queue takes longer than drain_ns after the last
  /// arrival.
  std::vector<Request> serve(const std::vector<Nanos>& arrivals, Nanos begin_ns, Nanos drain_ns,
                             StopSignal& stop, JobLog& log, Progress& progress);

  /// Answers one batch of requests (ids) and waits for the GPU; answers()[i] is the class of
  /// request ids[i].
  void answer(const std::vector<std::uint32_t>& ids);
  const std::vector<int>& answers() const { return answers_; }
  const Device& device() const { return device_; }

 private:
  Device device_{0};
  Stream stream_{device_};
  const ImageSet& images_;
  const std::unique_ptr<Network> model_;
  PinnedArray<float> inputs_;
  PinnedArray<int> labels_;
  PinnedArray<float> logits_;
  std::vector<int> answers_;
};

}  // namespace sluice::train
