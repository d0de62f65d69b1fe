// A step's forward and backward passes on one rank: by as many micro-batches as its samples need,
// one after the other or through a pipeline's stages.
#pragma once

#include "trainer/data/loader.h"
#include "trainer/train/heartbeat.h"
#include "trainer/train/pipeline.h"
#include "trainer/train/timeline.h"

namespace sluice::train {

/// Everything must outlive it.
struct PassParts {
  int batch;  // most samples of a micro-batch
  Network& network;
  Pipeline* pipeline;  // null where the model has one stage
  Heartbeat& heartbeat;
  Timeline& timeline;
};

/// Puts the passes over `batch` on the network's stream, with gradients times `scale`; the last
/// micro-batch lets the reduction of gradients go.
void passes_run(const PassParts& parts, const LoadedBatch& batch, float scale);

}  // namespace sluice::train
