// See graph_plan.h.
#include "softgpu/driver/graph_plan.h"

#include <algorithm>

#include "softgpu/driver/launch_attribute.h"

namespace softgpu::driver {
namespace {

/// A node of the flattened graph; without `node` it only joins edges.
struct Flat {
  const Node* node = nullptr;
  std::vector<std::size_t> after;
};

class Flattener {
 public:
  /// Appends `graph`, whose roots come after `entry`; returns what comes last in it.
  std::vector<std::size_t> append(const Graph& graph, const std::vector<std::size_t>& entry) {
    std::map<const Node*, std::vector<std::size_t>> ends;
    std::set<const Node*> inner;  // nodes that something depends on
    for (const Node* node : graph.ordered()) {
      std::vector<std::size_t> after = node->after.empty() ? entry : std::vector<std::size_t>{};
      for (const Node* before : node->after) {
        inner.insert(before);
        after.insert(after.end(), ends[before].begin(), ends[before].end());
      }
      const GraphRef child = node->child();
      ends[node] = child == nullptr ? place(node, std::move(after))
                                    : joined(append(*child, joined(std::move(after))));
    }
    std::vector<std::size_t> last;
    for (const auto& [node, end] : ends)
      if (!inner.contains(node)) last.insert(last.end(), end.begin(), end.end());
    return graph.nodes.empty() ? entry : last;
  }
  std::vector<Flat> flats;

 private:
  std::vector<std::size_t> place(const Node* node, std::vector<std::size_t> after) {
    flats.push_back({node, std::move(after)});
    return {flats.size() - 1};
  }
  /// One place that stands for several: edges would multiply otherwise.
  std::vector<std::size_t> joined(std::vector<std::size_t> places) {
    return places.size() <= 1 ? places : place(nullptr, std::move(places));
  }
};

bool of_event(const Flat& flat) {
  return flat.node != nullptr && (flat.node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ||
                                  flat.node->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

/// Everything but what only has a place in the order.
bool works(const Flat& flat) {
  return flat.node != nullptr && flat.node->enabled && !flat.node->of_memory() &&
         !std::holds_alternative<EmptyCommand>(flat.node->command);
}

class Planner {
 public:
  Planner(std::vector<Flat> flats, bool node_priorities)
      : flats_(std::move(flats)), node_priorities_(node_priorities), dependents_(flats_.size()) {
    for (const Flat& flat : flats_)
      for (const std::size_t before : flat.after) ++dependents_[before];
  }

  void segments_make(std::vector<GraphSegment>& segments) {
    std::vector<std::size_t> segment_of(flats_.size());
    for (std::size_t i = 0; i < flats_.size(); ++i) {
      const Flat& flat = flats_[i];
      const GraphSegment own = segment_new(flat);
      if (continues(flat, own, segments, segment_of)) {
        segment_of[i] = segment_of[flat.after[0]];
      } else {
        segment_of[i] = segments.size();
        segments.push_back(own);
        connect(flat, i, segments, segment_of);
      }
      if (works(flat)) segments[segment_of[i]].tasks.push_back(task(*flat.node));
    }
  }

 private:
  GraphSegment segment_new(const Flat& flat) const {
    GraphSegment segment;
    if (flat.node == nullptr) return segment;
    const ContextRef context = node_context(flat.node->command, flat.node->detail);
    segment.context = context;
    if (context != nullptr) segment.context_id = context->id;
    return segment;
  }
  /// A kernel has its stream's priority, or the one of its node if the instance goes by those.
  Command task(const Node& node) const {
    Command command = node.command;
    if (auto* kernel = std::get_if<KernelCommand>(&command)) {
      kernel->priority.reset();
      if (node_priorities_) kernel->priority = priority_clamp(node_priority(node.detail));
    }
    return command;
  }
  bool continues(const Flat& flat, const GraphSegment& own,
                 const std::vector<GraphSegment>& segments,
                 const std::vector<std::size_t>& segment_of) const {
    if (flat.after.size() != 1 || dependents_[flat.after[0]] != 1) return false;
    if (of_event(flat) || of_event(flats_[flat.after[0]])) return false;
    return segments[segment_of[flat.after[0]]].context_id == own.context_id;
  }
  static void connect(const Flat& flat, std::size_t i, std::vector<GraphSegment>& segments,
                      const std::vector<std::size_t>& segment_of) {
    std::set<std::size_t> before;
    for (const std::size_t other : flat.after) before.insert(segment_of[other]);
    for (const std::size_t other : before) segments[other].next.push_back(segment_of[i]);
    segments[segment_of[i]].waits = before.size();
  }

  const std::vector<Flat> flats_;
  const bool node_priorities_;
  std::vector<std::size_t> dependents_;
};

/// What any thread that waits for it may do, not the worker of its stream alone.
bool device_alone(const Command& task) {
  return std::holds_alternative<KernelCommand>(task) || std::holds_alternative<CopyCommand>(task) ||
         std::holds_alternative<SetCommand>(task);
}

void memory_collect(const std::vector<Flat>& flats, GraphMemoryUse& memory) {
  for (const Flat& flat : flats) {
    if (flat.node == nullptr || !flat.node->of_memory()) continue;
    const GraphAllocationRef& allocation = flat.node->detail.allocation;
    if (flat.node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
      memory.allocated.push_back(allocation);
    else if (allocation->freed_by_owner)
      memory.freed_within.insert(allocation.get());
    else
      memory.freed.push_back(allocation);
  }
}

}  // namespace

GraphPlanRef GraphPlan::make(const Graph& graph, unsigned long long flags) {
  Flattener flattener;
  (void)flattener.append(graph, {});
  const auto plan = std::make_shared<GraphPlan>();
  memory_collect(flattener.flats, plan->memory);
  plan->memory.free_on_launch = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  const bool node_priorities = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) != 0;
  plan->events = std::any_of(flattener.flats.begin(), flattener.flats.end(), of_event);
  Planner(std::move(flattener.flats), node_priorities).segments_make(plan->segments);
  plan->plain =
      plan->segments.size() == 1 &&
      std::all_of(plan->segments[0].tasks.begin(), plan->segments[0].tasks.end(), device_alone);
  return plan;
}

}  // namespace softgpu::driver
