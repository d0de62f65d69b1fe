// Graphs: nodes are commands, edges say what must be before. An executable graph is a copy whose
// nodes run one after another in an order that respects the edges. Knows nothing of capture.
#pragma once

#include <list>

#include "softgpu/driver/command.h"

namespace softgpu::driver {

struct Node {
  Graph* graph = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Command command;
  std::vector<Node*> after;      // the nodes it depends on
  const Node* origin = nullptr;  // in a copy: the node it is a copy of
  bool enabled = true;
  CUgraphNode handle() { return reinterpret_cast<CUgraphNode>(this); }
};

class Graph : public std::enable_shared_from_this<Graph> {
 public:
  Node* add(CUgraphNodeType type, Command command, std::vector<Node*> after);
  void remove(Node* node);
  bool owns(const Node* node) const;
  std::shared_ptr<Graph> copy() const;
  /// Every node after those it depends on; empty for a graph with a cycle (and for one without
  /// nodes).
  std::vector<Node*> ordered() const;
  void run(Stream& stream, Op& op) const;
  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }

  std::list<Node> nodes;  // stable addresses: they are the handles
};
using GraphRef = std::shared_ptr<Graph>;

/// An instantiated graph.
struct GraphExec {
  GraphRef graph;
  unsigned long long flags = 0;
  CUgraphExec handle() { return reinterpret_cast<CUgraphExec>(this); }
};

/// The kind of node that a captured command becomes.
CUgraphNodeType node_type(const Command& command);

}  // namespace softgpu::driver
