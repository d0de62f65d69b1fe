// Graphs as wholes: creation, topology, instantiation, update and launch. Their nodes are in
// graph_nodes.cpp.
#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

static_assert(sizeof(cudaGraphInstantiateParams) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) &&
                  sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo) &&
                  sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData),
              "one layout in both headers");

namespace {
CUgraphEdgeData* edges_of(cudaGraphEdgeData* edges) {
  return reinterpret_cast<CUgraphEdgeData*>(edges);
}
const CUgraphEdgeData* edges_of(const cudaGraphEdgeData* edges) {
  return reinterpret_cast<const CUgraphEdgeData*>(edges);
}
}  // namespace

cudaError_t CUDARTAPI cudaGraphCreate(cudaGraph_t* graph, unsigned int flags) {
  return in_context([&](const Driver& api) { return api.GraphCreate(graph, flags); });
}

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
  return in_context([&](const Driver& api) { return api.GraphDestroy(graph); });
}

cudaError_t CUDARTAPI cudaGraphClone(cudaGraph_t* clone, cudaGraph_t original) {
  return in_context([&](const Driver& api) { return api.GraphClone(clone, original); });
}

cudaError_t CUDARTAPI cudaGraphNodeFindInClone(cudaGraphNode_t* node, cudaGraphNode_t original,
                                               cudaGraph_t clone) {
  return in_context(
      [&](const Driver& api) { return api.GraphNodeFindInClone(node, original, clone); });
}

cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return in_context([&](const Driver& api) { return api.GraphGetNodes(graph, nodes, count); });
}

cudaError_t CUDARTAPI cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                            size_t* count) {
  return in_context([&](const Driver& api) { return api.GraphGetRootNodes(graph, nodes, count); });
}

cudaError_t CUDARTAPI cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from,
                                        cudaGraphNode_t* to, cudaGraphEdgeData* edges,
                                        size_t* count) {
  return in_context([&](const Driver& api) {
    return api.GraphGetEdges(graph, from, to, edges_of(edges), count);
  });
}

cudaError_t CUDARTAPI cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType* type) {
  return in_context([&](const Driver& api) {
    return api.GraphNodeGetType(node, reinterpret_cast<CUgraphNodeType*>(type));
  });
}

cudaError_t CUDARTAPI cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                   cudaGraphNode_t* dependencies,
                                                   cudaGraphEdgeData* edges, size_t* count) {
  return in_context([&](const Driver& api) {
    return api.GraphNodeGetDependencies(node, dependencies, edges_of(edges), count);
  });
}

cudaError_t CUDARTAPI cudaGraphNodeGetDependentNodes(cudaGraphNode_t node,
                                                     cudaGraphNode_t* dependents,
                                                     cudaGraphEdgeData* edges, size_t* count) {
  return in_context([&](const Driver& api) {
    return api.GraphNodeGetDependentNodes(node, dependents, edges_of(edges), count);
  });
}

cudaError_t CUDARTAPI cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                               const cudaGraphNode_t* to,
                                               const cudaGraphEdgeData* edges, size_t count) {
  return in_context([&](const Driver& api) {
    return api.GraphAddDependencies(graph, from, to, edges_of(edges), count);
  });
}

cudaError_t CUDARTAPI cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                  const cudaGraphNode_t* to,
                                                  const cudaGraphEdgeData* edges, size_t count) {
  return in_context([&](const Driver& api) {
    return api.GraphRemoveDependencies(graph, from, to, edges_of(edges), count);
  });
}

cudaError_t CUDARTAPI cudaGraphDestroyNode(cudaGraphNode_t node) {
  return in_context([&](const Driver& api) { return api.GraphDestroyNode(node); });
}

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                           unsigned long long flags) {
  return in_context(
      [&](const Driver& api) { return api.GraphInstantiateWithFlags(executable, graph, flags); });
}

cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                    unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t CUDARTAPI cudaGraphInstantiateWithParams(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                     cudaGraphInstantiateParams* parameters) {
  return in_context([&](const Driver& api) {
    return api.GraphInstantiateWithParams(
        executable, graph, reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(parameters));
  });
}

cudaError_t CUDARTAPI cudaGraphExecGetFlags(cudaGraphExec_t executable, unsigned long long* flags) {
  return in_context([&](const Driver& api) {
    cuuint64_t found = 0;
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = api.GraphExecGetFlags(executable, &found);
    if (result == CUDA_SUCCESS) *flags = found;
    return result;
  });
}

cudaError_t CUDARTAPI cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                          cudaGraphExecUpdateResultInfo* info) {
  return in_context([&](const Driver& api) {
    return api.GraphExecUpdate(executable, graph,
                               reinterpret_cast<CUgraphExecUpdateResultInfo*>(info));
  });
}

cudaError_t CUDARTAPI cudaGraphNodeSetEnabled(cudaGraphExec_t executable, cudaGraphNode_t node,
                                              unsigned int enabled) {
  return in_context(
      [&](const Driver& api) { return api.GraphNodeSetEnabled(executable, node, enabled); });
}

cudaError_t CUDARTAPI cudaGraphNodeGetEnabled(cudaGraphExec_t executable, cudaGraphNode_t node,
                                              unsigned int* enabled) {
  return in_context(
      [&](const Driver& api) { return api.GraphNodeGetEnabled(executable, node, enabled); });
}

cudaError_t CUDARTAPI cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return in_context([&](const Driver& api) { return api.GraphUpload(executable, stream); });
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return in_context([&](const Driver& api) { return api.GraphLaunch(executable, stream); });
}

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return in_context([&](const Driver& api) { return api.GraphExecDestroy(executable); });
}

cudaError_t CUDARTAPI cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path,
                                             unsigned int flags) {
  return in_context([&](const Driver& api) { return api.GraphDebugDotPrint(graph, path, flags); });
}

cudaError_t CUDARTAPI cudaUserObjectCreate(cudaUserObject_t* object, void* pointer,
                                           cudaHostFn_t destroy, unsigned int references,
                                           unsigned int flags) {
  return in_context([&](const Driver& api) {
    return api.UserObjectCreate(object, pointer, destroy, references, flags);
  });
}

cudaError_t CUDARTAPI cudaUserObjectRetain(cudaUserObject_t object, unsigned int count) {
  return in_context([&](const Driver& api) { return api.UserObjectRetain(object, count); });
}

cudaError_t CUDARTAPI cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  return in_context([&](const Driver& api) { return api.UserObjectRelease(object, count); });
}

cudaError_t CUDARTAPI cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                unsigned int count, unsigned int flags) {
  return in_context(
      [&](const Driver& api) { return api.GraphRetainUserObject(graph, object, count, flags); });
}

cudaError_t CUDARTAPI cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                 unsigned int count) {
  return in_context(
      [&](const Driver& api) { return api.GraphReleaseUserObject(graph, object, count); });
}
