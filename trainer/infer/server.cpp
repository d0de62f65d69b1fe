// See server.h.
#include "trainer/infer/server.h"

#include <algorithm>

namespace sluice::train {

Server::Server(const Weights& weights, int batch_max, const ImageSet& images)
    : images_(images),
      model_(weights.shape.make(stream_, {.batch_max = batch_max, .trains = false})),
      inputs_(static_cast<std::size_t>(batch_max) * kImagePixels),
      labels_(static_cast<std::size_t>(batch_max)),
      logits_(static_cast<std::size_t>(batch_max) * kClassCount) {
  if (weights.shape.sample().inputs != kImagePixels) {
    throw Failure("the weights are of " + weights.shape.text() +
                  "; requests are images: train --model mlp or cnn");
  }
  model_->parameters_upload(weights.values);
}

void Server::answer(const std::vector<std::uint32_t>& ids) {
  const int count = static_cast<int>(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::span<const std::uint8_t> image = images_.image(ids[i] % images_.size());
    std::transform(image.begin(), image.end(), inputs_.data() + i * kImagePixels, pixel_value);
    labels_[i] = 0;
  }
  model_->batch_upload(inputs_.data(), labels_.data(), count);
  model_->forward(count);
  stream_.download(logits_.data(), model_->logits(), ids.size() * kClassCount * sizeof(float));
  stream_.synchronize();
  answers_.clear();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const float* row = logits_.data() + i * kClassCount;
    answers_.push_back(static_cast<int>(std::max_element(row, row + kClassCount) - row));
  }
}

std::vector<Request> Server::serve(const std::vector<Nanos>& arrivals, Nanos begin_ns,
                                   Nanos drain_ns, StopSignal& stop, JobLog& log,
                                   Progress& progress) {
  std::vector<Request> served;
  served.reserve(arrivals.size());
  const Nanos last_ns = begin_ns + (arrivals.empty() ? 0 : arrivals.back());
  std::vector<std::uint32_t> ids;
  while (served.size() < arrivals.size()) {
    const std::size_t next = served.size();
    if (stop.sleep_until(begin_ns + arrivals[next])) break;
    const Nanos start_ns = now_ns();
    if (start_ns > last_ns + drain_ns) break;
    ids.clear();
    for (std::size_t i = next; i < arrivals.size() && begin_ns + arrivals[i] <= start_ns; ++i) {
      if (ids.size() == labels_.size()) break;
      ids.push_back(static_cast<std::uint32_t>(i));
    }
    answer(ids);
    const Nanos done_ns = now_ns();
    for (const std::uint32_t id : ids) {
      served.push_back({id, begin_ns + arrivals[id], start_ns, done_ns});
      log.write(JsonLine("request", done_ns)
                    .add("id", static_cast<std::uint64_t>(id))
                    .add("arrival_ns", served.back().arrival_ns)
                    .add("start_ns", start_ns)
                    .add("done_ns", done_ns));
    }
    progress.show(text_format("%zu requests, last latency %.2f ms", served.size(),
                              millis_of(served.back().latency_ns())));
  }
  return served;
}

}  // namespace sluice::train
