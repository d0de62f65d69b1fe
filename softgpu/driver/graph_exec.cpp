// See graph_exec.h.
#include "softgpu/driver/graph_exec.h"

#include <algorithm>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/graph_run.h"

namespace softgpu::driver {
namespace {

constexpr unsigned long long kFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

void copies_index(const Graph& graph, std::unordered_map<std::uint64_t, Node*>& nodes) {
  for (const Node& node : graph.nodes) {
    nodes[node.origin] = const_cast<Node*>(&node);
    if (const GraphRef child = node.child()) copies_index(*child, nodes);
  }
}

/// Its own references and those of all child graphs.
void references_add(const Graph& graph, UserReferences& objects) {
  objects.add(graph.objects);
  for (const Node& node : graph.nodes)
    if (const GraphRef child = node.child()) references_add(*child, objects);
}

/// A node that lies on a cycle or behind one. nullptr: there is none.
Node* cycle_find(const Graph& graph) {
  const std::vector<Node*> ordered = graph.ordered();
  const std::set<const Node*> placed(ordered.begin(), ordered.end());
  for (const Node& node : graph.nodes) {
    if (!placed.contains(&node)) return const_cast<Node*>(&node);
    const GraphRef child = node.child();
    Node* inside = child == nullptr ? nullptr : cycle_find(*child);
    if (inside != nullptr) return inside;
  }
  return nullptr;
}

/// Allocations must come before what frees them. nullptr: they do.
Node* free_misplaced(const Graph& graph) {
  std::set<const GraphAllocation*> allocated;
  for (Node* node : graph.ordered()) {
    const GraphAllocation* allocation = node->detail.allocation.get();
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) allocated.insert(allocation);
    if (node->type != CU_GRAPH_NODE_TYPE_MEM_FREE || !allocation->freed_by_owner) continue;
    if (!allocated.contains(allocation)) return node;
  }
  return nullptr;
}

/// The code of every kernel is still loaded.
bool kernels_loaded(const GraphPlan& plan) {
  for (const GraphSegment& segment : plan.segments)
    for (const Command& task : segment.tasks)
      if (const auto* kernel = std::get_if<KernelCommand>(&task))
        if (Registry<Function>::all().find(kernel->function.get()) == nullptr) return false;
  return true;
}

}  // namespace

CUresult GraphExec::make(const GraphRef& graph, unsigned long long flags, GraphExecRef& exec,
                         InstantiateFailure& failure) {
  if ((flags & ~kFlags) != 0 || graph->moved) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0)
    return (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_ERROR_NOT_SUPPORTED;
  failure.node = cycle_find(*graph);
  if (failure.node == nullptr) failure.node = free_misplaced(*graph);
  if (failure.node != nullptr) {
    failure.result = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool memory = graph->has_memory_nodes();
  if (memory && graph->instance.lock() != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  // Uploading is something to do, not something to be.
  exec = std::make_shared<GraphExec>(graph->copy(), flags & ~CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  if (memory) graph->instance = exec;
  failure.result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return CUDA_SUCCESS;
}

GraphExec::GraphExec(GraphRef graph, unsigned long long flags)
    : flags_(flags), graph_(std::move(graph)) {
  copies_index(*graph_, nodes_);
  references_add(*graph_, objects_);
  plan_ = GraphPlan::make(*graph_, flags_);
  plan_->memory.capture_over();
}

GraphPlanRef GraphExec::plan_locked() {
  if (plan_ == nullptr) plan_ = GraphPlan::make(*graph_, flags_);
  return plan_;
}

CUresult GraphExec::upload() {
  const std::lock_guard lock(mutex_);
  return plan_locked()->memory.upload();
}

CUresult GraphExec::launch(const StreamRef& stream) {
  const std::lock_guard lock(mutex_);
  const GraphPlanRef plan = plan_locked();
  if (!kernels_loaded(*plan)) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = plan->memory.launch_begin();
  if (result != CUDA_SUCCESS) return result;
  last_ = std::make_shared<GraphRun>(plan, objects_)->submit(stream, last_);
  return CUDA_SUCCESS;
}

void GraphExec::changed_locked() {
  plan_ = nullptr;
  UserReferences objects;
  references_add(*graph_, objects);
  objects_.replace(objects);
}

CUresult GraphExec::change(CUgraphNode original, const std::function<CUresult(Node&)>& change) {
  const Node* node = node_find(original);
  const std::lock_guard lock(mutex_);
  const auto found = node == nullptr ? nodes_.end() : nodes_.find(node->id);
  if (found == nodes_.end()) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = change(*found->second);
  changed_locked();
  return result;
}

CUresult GraphExec::change(const std::function<CUresult(Graph&)>& change) {
  const std::lock_guard lock(mutex_);
  const CUresult result = change(*graph_);
  changed_locked();
  return result;
}

}  // namespace softgpu::driver
