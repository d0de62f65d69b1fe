// See api_graph.h.
#include <algorithm>
#include <cstring>

#include "softgpu/driver/api_graph.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/graph_update.h"

namespace softgpu::driver {
namespace {

/// Takes what a description names into the graph that has the node now.
CUresult spec_settle(Node& node, const NodeSpec& spec) {
  if (spec.child != nullptr)
    node.graph->adopt(node, spec.child, spec.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
  if (node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) spec.detail.allocation->owner = node.graph->id;
  if (node.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    GraphAllocation& allocation = *spec.detail.allocation;
    (allocation.owner == node.graph->id ? allocation.freed_by_owner : allocation.freed_by_other) =
        true;
  }
  return CUDA_SUCCESS;
}

/// Whether `graph` is `other` or contains it.
bool contains(const Graph& graph, const Graph& other) {
  if (&graph == &other) return true;
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    const GraphRef child = node.child();
    return child != nullptr && contains(*child, other);
  });
}

bool unique(std::vector<Node*> nodes) {
  std::sort(nodes.begin(), nodes.end());
  return std::adjacent_find(nodes.begin(), nodes.end()) == nodes.end();
}

}  // namespace

CUresult graph_enter(CUgraph handle, GraphRef& graph, const char* name) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  graph = Registry<Graph>::all().find(handle);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult node_enter(CUgraphNode handle, Node*& node, const char* name) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  node = node_find(handle);
  return node == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult node_enter(CUgraphNode handle, CUgraphNodeType type, Node*& node, const char* name) {
  const CUresult result = node_enter(handle, node, name);
  if (result != CUDA_SUCCESS) return result;
  return node->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult exec_enter(CUgraphExec handle, GraphExecRef& exec, const char* name) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  exec = Registry<GraphExec>::all().find(handle);
  return exec == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult edges_check(const CUgraphEdgeData* edges, std::size_t count) {
  CUresult result = CUDA_SUCCESS;
  for (std::size_t i = 0; edges != nullptr && i < count; ++i) {
    const CUgraphEdgeData& edge = edges[i];
    const bool known = edge.to_port == 0 && edge.type <= CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC &&
                       edge.from_port <= CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER &&
                       std::all_of(std::begin(edge.reserved), std::end(edge.reserved),
                                   [](unsigned char byte) { return byte == 0; });
    if (!known) return CUDA_ERROR_INVALID_VALUE;
    if (edge.from_port != 0 || edge.type != CU_GRAPH_DEPENDENCY_TYPE_DEFAULT)
      result = CUDA_ERROR_NOT_SUPPORTED;
  }
  return result;
}

CUresult node_add(const NodePlace& place, const std::function<CUresult(NodeSpec&)>& describe,
                  const char* name) {
  GraphRef graph;
  CUresult result = graph_enter(place.graph, graph, name);
  if (result != CUDA_SUCCESS) return result;
  if (place.out == nullptr || (place.count > 0 && place.after == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> after;
  for (std::size_t i = 0; i < place.count; ++i) {
    after.push_back(reinterpret_cast<Node*>(place.after[i]));
    if (!graph->owns(after.back())) return CUDA_ERROR_INVALID_VALUE;
  }
  if (!unique(after)) return CUDA_ERROR_INVALID_VALUE;
  result = edges_check(place.edges, place.count);
  NodeSpec spec;
  if (result == CUDA_SUCCESS) result = describe(spec);
  if (result != CUDA_SUCCESS) return result;
  if (spec.child != nullptr && contains(*spec.child, *graph)) return CUDA_ERROR_INVALID_VALUE;
  // A graph that is part of another has the memory nodes that it came with.
  if (spec.detail.allocation != nullptr && graph->parent != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  // Nor does it free its own memory later than its instance knows of.
  if (spec.type == CU_GRAPH_NODE_TYPE_MEM_FREE && spec.detail.allocation->owner == graph->id &&
      graph->instance.lock() != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  Node* node = graph->add(spec.type, std::move(spec.command), std::move(after));
  node->detail = spec.detail;
  *place.out = node->handle();
  return spec_settle(*node, spec);
}

CUresult node_set(CUgraphNode handle, const std::function<CUresult(NodeSpec&)>& describe,
                  const char* name) {
  Node* node = nullptr;
  CUresult result = node_enter(handle, node, name);
  NodeSpec spec;
  if (result == CUDA_SUCCESS && node->of_memory()) return CUDA_ERROR_NOT_SUPPORTED;
  if (result == CUDA_SUCCESS) result = describe(spec);
  if (result != CUDA_SUCCESS) return result;
  if (spec.type != node->type) return CUDA_ERROR_INVALID_VALUE;
  // The graph of a child node is changed through its own handle.
  if (spec.child != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  spec.detail.attributes = node->detail.attributes;
  node->command = std::move(spec.command);
  node->detail = std::move(spec.detail);
  if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) attributes_apply(*node);
  return CUDA_SUCCESS;
}

CUresult exec_set(CUgraphExec handle, CUgraphNode node,
                  const std::function<CUresult(NodeSpec&)>& describe, const char* name) {
  GraphExecRef exec;
  CUresult result = exec_enter(handle, exec, name);
  NodeSpec spec;
  if (result == CUDA_SUCCESS) result = describe(spec);
  if (result != CUDA_SUCCESS) return result;
  return exec->change(node, [&](Node& copy) { return node_update(copy, spec, exec->flags()); });
}

CUDA_KERNEL_NODE_PARAMS_v3 kernel_params(const CUDA_KERNEL_NODE_PARAMS_v1& p) {
  CUDA_KERNEL_NODE_PARAMS_v3 params{};
  static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS_v3, kern) == sizeof p, "the old is the beginning");
  std::memcpy(&params, &p, sizeof p);
  return params;
}

CUDA_KERNEL_NODE_PARAMS_v3 kernel_params(const CUDA_KERNEL_NODE_PARAMS_v2& p) {
  CUDA_KERNEL_NODE_PARAMS_v3 params{};
  static_assert(sizeof params == sizeof p, "one layout under two names");
  std::memcpy(&params, &p, sizeof p);
  return params;
}

CUresult handles_give(const std::vector<Node*>& nodes, CUgraphNode* out, std::size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out == nullptr) {
    *count = nodes.size();
    return CUDA_SUCCESS;
  }
  for (std::size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i]->handle() : nullptr;
  *count = std::min(*count, nodes.size());
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
