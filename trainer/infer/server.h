// One or several models on one GPU that answer requests in batches: one process, one context, one
// stream for all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/data/dataset.h"
#include "trainer/infer/serving.h"
#include "trainer/model/weights.h"

namespace sluice::train {

class Server {
 public:
  /// `images` are what the requests ask about, in turn.
  Server(const std::vector<Weights>& models, int batch_max, const ImageSet& images);

  /// Answers one batch of requests (ids) with one model and waits for the GPU; answers()[i] is the
  /// class of request ids[i].
  void answer(std::uint32_t model, std::span<const std::uint32_t> ids);
  const std::vector<int>& answers() const { return answers_; }
  const Device& device() const { return device_; }

 private:
  Device device_{0};
  Stream stream_{device_};
  const ImageSet& images_;
  std::vector<std::unique_ptr<Network>> models_;
  PinnedArray<float> inputs_;
  PinnedArray<int> labels_;
  PinnedArray<float> logits_;
  std::vector<int> answers_;
};

}  // namespace sluice::train
