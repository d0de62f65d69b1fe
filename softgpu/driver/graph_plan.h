// A plan is an instance flattened once: child graphs dissolved, nodes that follow one another
// without a branch joined to segments. It is what a launch runs (graph_run.h).
#pragma once

#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/graph_nodes.h"

namespace softgpu::driver {

struct GraphSegment {
  std::vector<Command> tasks;
  std::vector<std::size_t> next;  // segments that wait for this one
  std::size_t waits = 0;          // for how many it waits itself
  std::uint64_t context_id = 0;   // where it runs; 0: where the graph is launched
  std::weak_ptr<Context> context;
};

/// Immutable once made, so that launches in flight keep theirs while the instance is changed.
struct GraphPlan {
  std::vector<GraphSegment> segments;
  GraphMemoryUse memory;
  bool events = false;  // some node records or waits for one
  bool plain = false;   // one segment, of work for the device alone

  /// `graph` has no cycle.
  static std::shared_ptr<const GraphPlan> make(const Graph& graph, unsigned long long flags);
};
using GraphPlanRef = std::shared_ptr<const GraphPlan>;

}  // namespace softgpu::driver
