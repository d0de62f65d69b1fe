// What the entry points of graphs share: finding what a handle stands for, and the three things
// that a description of a node is for - a new node, a node's new parameters, an instance's.
#pragma once

#include "softgpu/driver/graph_exec.h"
#include "softgpu/driver/graph_nodes.h"

namespace softgpu::driver {

/// INVALID_VALUE: there is no such graph, node, instance.
CUresult graph_enter(CUgraph handle, GraphRef& graph, const char* name = __builtin_FUNCTION());
CUresult node_enter(CUgraphNode handle, Node*& node, const char* name = __builtin_FUNCTION());
CUresult exec_enter(CUgraphExec handle, GraphExecRef& exec,
                    const char* name = __builtin_FUNCTION());
/// The node must be of this type.
CUresult node_enter(CUgraphNode handle, CUgraphNodeType type, Node*& node,
                    const char* name = __builtin_FUNCTION());

/// Where a new node goes.
struct NodePlace {
  CUgraphNode* out = nullptr;
  CUgraph graph = nullptr;
  const CUgraphNode* after = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
};
/// `describe` fills in the specification once the place has been found to be good.
CUresult node_add(const NodePlace& place, const std::function<CUresult(NodeSpec&)>& describe,
                  const char* name = __builtin_FUNCTION());
CUresult node_set(CUgraphNode handle, const std::function<CUresult(NodeSpec&)>& describe,
                  const char* name = __builtin_FUNCTION());
CUresult exec_set(CUgraphExec exec, CUgraphNode node,
                  const std::function<CUresult(NodeSpec&)>& describe,
                  const char* name = __builtin_FUNCTION());

/// Edges other than "all of this one before all of that one" are of programmatic launches, which
/// this device lacks: NOT_SUPPORTED, or INVALID_VALUE when no device has them.
CUresult edges_check(const CUgraphEdgeData* edges, std::size_t count);

/// Kernel parameters of before kernels and contexts could be named.
CUDA_KERNEL_NODE_PARAMS_v3 kernel_params(const CUDA_KERNEL_NODE_PARAMS_v1& params);
CUDA_KERNEL_NODE_PARAMS_v3 kernel_params(const CUDA_KERNEL_NODE_PARAMS_v2& params);

/// Hands out up to *count handles, clears the places that are left, and tells how many there are.
CUresult handles_give(const std::vector<Node*>& nodes, CUgraphNode* out, std::size_t* count);

}  // namespace softgpu::driver
