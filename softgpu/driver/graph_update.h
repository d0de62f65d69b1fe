// What of an instance may change: one node's parameters, or those of all nodes after the example of
// another graph of the same shape. The limits are those that cuda.h lists at cuGraphExecUpdate and
// at the cuGraphExec*NodeSetParams.
#pragma once

#include "softgpu/driver/graph_nodes.h"

namespace softgpu::driver {

/// Where an update stopped.
struct UpdateFailure {
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  Node* node = nullptr;  // of the graph with the new parameters
  Node* from = nullptr;  // the dependency that does not match
};

/// Gives `target`, a graph of an instance, the parameters of `source`, or nothing.
UpdateFailure graph_update(Graph& target, const Graph& source, unsigned long long flags);

/// Gives one node of an instance new parameters. INVALID_VALUE: not these.
CUresult node_update(Node& node, const NodeSpec& spec, unsigned long long flags);

}  // namespace softgpu::driver
