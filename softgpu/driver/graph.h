// Graphs: nodes are commands, edges say what must be before. A captured stream appends nodes; an
// executable graph is a copy whose nodes run one after another in an order that respects the edges.
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

/// A capture in progress: the streams that take part and the graph they build.
class Capture {
 public:
  GraphRef graph = std::make_shared<Graph>();
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  Stream* origin = nullptr;
  const void* thread = nullptr;  // the one that began it
  std::uint64_t id = 0;
  bool invalid = false;
  std::map<Stream*, std::vector<Node*>> ends;  // per stream: what the next node depends on
};

/// One lock for all captures: they are short and rare.
std::mutex& capture_mutex();

/// Adds `command` to the stream's capture; the caller holds the capture lock.
Node* capture_add(Stream& stream, CUgraphNodeType type, Command command);

}  // namespace softgpu::driver
