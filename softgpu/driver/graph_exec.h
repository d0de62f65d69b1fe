// Instances of graphs: made from a graph, changed, launched. An instance has a copy of the graph as
// it was; a launch has a plan of that copy as it was at the call.
#pragma once

#include <functional>

#include "softgpu/driver/graph_plan.h"

namespace softgpu::driver {

/// Why there is no instance, as CUDA_GRAPH_INSTANTIATE_PARAMS tells it.
struct InstantiateFailure {
  CUgraphInstantiateResult result = CUDA_GRAPH_INSTANTIATE_ERROR;
  Node* node = nullptr;
};

class GraphExec : public std::enable_shared_from_this<GraphExec> {
 public:
  static CUresult make(const GraphRef& graph, unsigned long long flags,
                       std::shared_ptr<GraphExec>& exec, InstantiateFailure& failure);
  GraphExec(GraphRef graph, unsigned long long flags);

  CUresult upload();
  /// Behind everything in the stream and behind the launch before.
  CUresult launch(const StreamRef& stream);
  /// Calls `change` with the node that is the copy of `original`; the launches to come have what it
  /// leaves. INVALID_VALUE: there is no such node.
  CUresult change(CUgraphNode original, const std::function<CUresult(Node&)>& change);
  /// The same with the whole graph (graph_update.h).
  CUresult change(const std::function<CUresult(Graph&)>& change);
  unsigned long long flags() const { return flags_; }
  CUgraphExec handle() { return reinterpret_cast<CUgraphExec>(this); }

 private:
  GraphPlanRef plan_locked();
  void changed_locked();

  const unsigned long long flags_;
  std::mutex mutex_;  // of what follows
  const GraphRef graph_;
  std::unordered_map<std::uint64_t, Node*> nodes_;  // by the id of the node they are copies of
  UserReferences objects_;
  GraphPlanRef plan_;  // nullptr: changed since
  OpRef last_;         // the launch before
};
using GraphExecRef = std::shared_ptr<GraphExec>;

}  // namespace softgpu::driver
