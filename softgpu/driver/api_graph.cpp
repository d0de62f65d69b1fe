// Entry points: graphs as wholes - creating, cloning, their nodes and edges. Nodes by kind are in
// api_graph_nodes.cpp, instances in api_graph_exec.cpp.
#include "softgpu/driver/api_graph.h"

#include <algorithm>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/graph_dot.h"

using namespace softgpu::driver;

namespace {

/// The two ends of each of `count` edges, nodes of the graph.
CUresult ends_find(const Graph& graph, const CUgraphNode* from, const CUgraphNode* to,
                   std::size_t count) {
  if (count > 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i)
    if (from[i] == to[i] || !graph.owns(reinterpret_cast<const Node*>(from[i])) ||
        !graph.owns(reinterpret_cast<const Node*>(to[i])))
      return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

bool depends(const Node& node, const Node* before) {
  return std::find(node.after.begin(), node.after.end(), before) != node.after.end();
}

CUresult dependencies_add(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                          const CUgraphEdgeData* edges, std::size_t count, const char* name) {
  GraphRef graph;
  CUresult result = graph_enter(handle, graph, name);
  if (result == CUDA_SUCCESS) result = ends_find(*graph, from, to, count);
  if (result == CUDA_SUCCESS) result = edges_check(edges, count);
  if (result != CUDA_SUCCESS) return result;
  std::size_t added = 0;
  for (; added < count; ++added) {
    auto* node = reinterpret_cast<Node*>(to[added]);
    auto* before = reinterpret_cast<Node*>(from[added]);
    if (depends(*node, before)) break;
    node->after.push_back(before);
  }
  if (added == count) return CUDA_SUCCESS;
  while (added-- > 0) reinterpret_cast<Node*>(to[added])->after.pop_back();
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult dependencies_remove(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                             const CUgraphEdgeData* edges, std::size_t count, const char* name) {
  GraphRef graph;
  CUresult result = graph_enter(handle, graph, name);
  if (result == CUDA_SUCCESS && count > 0 && graph->has_memory_nodes())
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = ends_find(*graph, from, to, count);
  // No edge with other data exists.
  if (result == CUDA_SUCCESS && edges_check(edges, count) != CUDA_SUCCESS)
    result = CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) return result;
  const auto there = [&](std::size_t i) {
    return depends(*reinterpret_cast<Node*>(to[i]), reinterpret_cast<Node*>(from[i]));
  };
  for (std::size_t i = 0; i < count; ++i)
    if (!there(i)) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i)
    std::erase(reinterpret_cast<Node*>(to[i])->after, reinterpret_cast<Node*>(from[i]));
  return CUDA_SUCCESS;
}

CUresult edges_give(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges,
                    std::size_t* count, const char* name) {
  GraphRef graph;
  CUresult result = graph_enter(handle, graph, name);
  if (result != CUDA_SUCCESS) return result;
  if ((from == nullptr) != (to == nullptr) || (edges != nullptr && from == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> begins, ends;
  for (Node& node : graph->nodes) {
    for (Node* before : node.after) {
      begins.push_back(before);
      ends.push_back(&node);
    }
  }
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::size_t room = *count;
  if (edges != nullptr) std::fill_n(edges, room, CUgraphEdgeData{});
  result = handles_give(begins, from, count);
  return result == CUDA_SUCCESS ? handles_give(ends, to, &room) : result;
}

/// Dependencies or dependents of a node; all edges are plain.
CUresult neighbours_give(CUgraphNode handle, bool before, CUgraphNode* out, CUgraphEdgeData* edges,
                         std::size_t* count, const char* name) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, node, name);
  if (result != CUDA_SUCCESS) return result;
  if (count == nullptr || (edges != nullptr && out == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (edges != nullptr) std::fill_n(edges, *count, CUgraphEdgeData{});
  return handles_give(before ? node->after : node->graph->dependents(*node), out, count);
}

}  // namespace

CUresult cuGraphCreate(CUgraph* out, unsigned int flags) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto graph = std::make_shared<Graph>();
  Registry<Graph>::all().add(graph);
  *out = graph->handle();
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  // A child graph goes with its node; what a capture builds is in its hands.
  if (graph->parent != nullptr || capture_builds(*graph)) return CUDA_ERROR_INVALID_VALUE;
  Registry<Graph>::all().take(handle);
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* out, CUgraph handle) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (graph->has_memory_nodes()) return CUDA_ERROR_NOT_SUPPORTED;
  const GraphRef twin = graph->copy();
  Registry<Graph>::all().add(twin);
  *out = twin->handle();
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  GraphRef graph;
  Node* node = nullptr;
  CUresult result = graph_enter(clone, graph);
  if (result == CUDA_SUCCESS) result = node_enter(original, node);
  if (result != CUDA_SUCCESS) return result;
  const Node* twin = graph->cloned_from == 0 ? nullptr : graph->copy_of(node->id);
  if (out == nullptr || twin == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = const_cast<Node*>(twin)->handle();
  return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                std::size_t count) {
  return dependencies_add(graph, from, to, nullptr, count, __func__);
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* edges, std::size_t count) {
  return dependencies_add(graph, from, to, edges, count, __func__);
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   std::size_t count) {
  return dependencies_remove(graph, from, to, nullptr, count, __func__);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData* edges, std::size_t count) {
  return dependencies_remove(graph, from, to, edges, count, __func__);
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, node);
  if (result != CUDA_SUCCESS) return result;
  if (node->graph->has_memory_nodes() || capture_builds(*node->graph))
    return CUDA_ERROR_INVALID_VALUE;
  node->graph->remove(node);
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, node);
  if (result != CUDA_SUCCESS) return result;
  if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->type;
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* out, std::size_t* count) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  std::vector<Node*> nodes;
  for (Node& node : graph->nodes) nodes.push_back(&node);
  return handles_give(nodes, out, count);
}

CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* out, std::size_t* count) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  std::vector<Node*> nodes;
  for (Node& node : graph->nodes)
    if (node.after.empty()) nodes.push_back(&node);
  return handles_give(nodes, out, count);
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, std::size_t* count) {
  return edges_give(graph, from, to, nullptr, count, __func__);
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* edges, std::size_t* count) {
  return edges_give(graph, from, to, edges, count, __func__);
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* out, std::size_t* count) {
  return neighbours_give(node, true, out, nullptr, count, __func__);
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* edges,
                                       std::size_t* count) {
  return neighbours_give(node, true, out, edges, count, __func__);
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* out, std::size_t* count) {
  return neighbours_give(node, false, out, nullptr, count, __func__);
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* edges,
                                         std::size_t* count) {
  return neighbours_give(node, false, out, edges, count, __func__);
}

CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int flags) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  return path == nullptr ? CUDA_ERROR_INVALID_VALUE : graph_dot_write(*graph, path, flags);
}
