// See passes.h.
#include "trainer/train/passes.h"

#include <algorithm>

namespace sluice::train {

void passes_run(const PassParts& parts, const LoadedBatch& batch, float scale) {
  Network& network = parts.network;
  const SampleShape& sample = network.sample();
  const int all = static_cast<int>(batch.count);
  const int micros = std::max(1, (all + parts.batch - 1) / parts.batch);
  const auto count_of = [&](int micro) { return std::min(parts.batch, all - micro * parts.batch); };
  const auto forward = [&](int micro) {
    const auto from = static_cast<std::size_t>(micro * parts.batch);
    network.batch_upload(static_cast<const std::uint32_t*>(batch.inputs) + from * sample.inputs,
                         batch.targets + from * sample.targets, count_of(micro));
    if (count_of(micro) > 0) network.forward(count_of(micro));
  };
  const auto backward = [&](int micro) {
    parts.timeline.backward_begin();
    network.backward(count_of(micro), static_cast<int>(batch.global_count),
                     {.first = micro == 0, .last = micro == micros - 1}, scale);
  };
  if (parts.pipeline != nullptr) {
    parts.pipeline->step({all > 0 ? micros : 0, count_of, forward, backward});
    if (all > 0) return;
  }
  for (int micro = 0; micro < micros; ++micro) {
    forward(micro);
    backward(micro);
    parts.heartbeat.progress();
  }
}

}  // namespace sluice::train
