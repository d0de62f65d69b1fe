// See server.h.
#include "trainer/infer/server.h"

#include <algorithm>

namespace sluice::train {

Server::Server(const std::vector<Weights>& models, int batch_max, const ImageSet& images)
    : images_(images),
      inputs_(static_cast<std::size_t>(batch_max) * kImagePixels),
      labels_(static_cast<std::size_t>(batch_max)),
      logits_(static_cast<std::size_t>(batch_max) * kClassCount) {
  for (const Weights& weights : models) {
    if (weights.shape.sample().inputs != kImagePixels) {
      throw Failure("the weights are of " + weights.shape.text() +
                    "; requests are images: train --model mlp or cnn");
    }
    models_.push_back(weights.shape.make(stream_, {.batch_max = batch_max, .trains = false}));
    models_.back()->parameters_upload(weights.values);
  }
}

void Server::answer(std::uint32_t model, std::span<const std::uint32_t> ids) {
  Network& network = *models_.at(model);
  const int count = static_cast<int>(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::span<const std::uint8_t> image = images_.image(ids[i] % images_.size());
    std::transform(image.begin(), image.end(), inputs_.data() + i * kImagePixels, pixel_value);
    labels_[i] = 0;
  }
  network.batch_upload(inputs_.data(), labels_.data(), count);
  network.forward(count);
  stream_.download(logits_.data(), network.logits(), ids.size() * kClassCount * sizeof(float));
  stream_.synchronize();
  answers_.clear();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const float* row = logits_.data() + i * kClassCount;
    answers_.push_back(static_cast<int>(std::max_element(row, row + kClassCount) - row));
  }
}

}  // namespace sluice::train
