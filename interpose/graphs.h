// What executable graphs cost: one record for each handle, with the GPU time of a launch as the
// fences around launches showed it. The time stays through updates of the graph (it is learned anew
// from what follows) and goes with the handle, which the driver gives again. Knows the handles,
// nothing of fences or streams.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// A launch this often is measured alone, between two fences of its own, if it has other company
/// between the fences.
inline constexpr int32_t kGraphMeasureEvery = 256;

struct GraphCost {
  CUgraphExec exec;         // nobody's handle = free
  Shared<uint32_t> serial;  // of the handle; another one after its destruction
  int32_t until_measured;   // launches before one is measured alone again; written by launching
                            // threads without a lock, a lost count does no harm
  double mean_ns;           // learned GPU time of one launch; 0 = not measured yet
  GraphCost* next;
};

/// Means no executable graph; what threads remember instead of a record.
extern GraphCost graph_none;

/// The record of an executable graph, made on first sight; nullptr when there is no memory: such
/// graphs stay unmeasured, and each of their launches goes between two fences of its own.
GraphCost* graph_cost(CUgraphExec exec);
/// The handle is about to be destroyed, or was just made.
void graph_forget(CUgraphExec exec);
/// A launch of it took so long, if the record still means the handle of that serial.
void graph_learn(GraphCost& graph, uint32_t serial, double sample_ns);
/// The learned time; 0 = not measured yet.
inline double graph_mean_ns(const GraphCost& graph) {
  double mean_ns;
  __atomic_load(&graph.mean_ns, &mean_ns, __ATOMIC_RELAXED);
  return mean_ns;
}
/// What a measured launch takes at least: a device's clock may not have moved between its fences,
/// and 0 means that nothing was measured.
inline constexpr double kMeasuredNsMin = 1;
/// The learned time moves up at once and down slowly: a window filled by an estimate that is too
/// small cannot be taken back.
double mean_learned(double mean_ns, double sample_ns);

void graphs_reset_after_fork();

}  // namespace sluice::interpose
