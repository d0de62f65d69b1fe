// Graphs as data: nodes are commands, edges say what must be before. Building and copying only; how
// an instance runs is in graph_exec.h. A graph is not synchronised inside (cuda.h: graph objects
// are not thread-safe); only finding a node by its handle is.
#pragma once

#include <array>
#include <list>
#include <optional>

#include "softgpu/driver/command.h"
#include "softgpu/driver/user_object.h"

namespace softgpu::driver {

class GraphAllocation;
class GraphExec;

/// What a program said of a node that its command does not keep. Nodes that a capture made have
/// none of it: what is asked of them is found out from the command.
struct NodeDetail {
  std::weak_ptr<Context> context;  // where it runs; none: where the graph is launched
  bool packed = false;             // its arguments came as one buffer (`extra`)
  std::map<CUlaunchAttributeID, CUlaunchAttributeValue> attributes;
  std::optional<CUDA_MEMCPY3D> copy;
  std::vector<CUstreamBatchMemOpParams> operations;
  std::shared_ptr<GraphAllocation> allocation;  // of a memory node, which has an empty command
};

struct Node {
  Graph* graph = nullptr;
  std::uint64_t id = 0;  // never given again
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Command command;
  std::vector<Node*> after;  // the nodes it depends on, in the order in which that was said
  NodeDetail detail;
  std::uint64_t origin = 0;  // in a copy: the id of the node it is a copy of
  bool enabled = true;

  // What the getters hand out pointers to: the node's until it is changed or destroyed.
  std::vector<void*> arguments;
  std::size_t argument_bytes = 0;
  std::array<void*, 5> extra{};

  CUgraphNode handle() { return reinterpret_cast<CUgraphNode>(this); }
  bool of_memory() const {
    return type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE;
  }
  /// The graph of a child graph node.
  std::shared_ptr<Graph> child() const;
};

class Graph : public std::enable_shared_from_this<Graph> {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Node* add(CUgraphNodeType type, Command command, std::vector<Node*> after);
  /// `child` becomes this node's own; without `move` a copy of it does.
  void adopt(Node& node, const std::shared_ptr<Graph>& child, bool move);
  void remove(Node* node);
  bool owns(const Node* node) const;
  /// With everything in it, child graphs and references to user objects included.
  std::shared_ptr<Graph> copy() const;
  /// Every node after those it depends on; fewer than there are when the graph has a cycle.
  std::vector<Node*> ordered() const;
  std::vector<Node*> dependents(const Node& node) const;
  /// Also in child graphs.
  bool has_memory_nodes() const;
  /// The copy of a node, here or in a child graph. nullptr: there is none.
  Node* copy_of(std::uint64_t origin) const;
  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }

  const std::uint64_t id;
  std::list<Node> nodes;          // stable addresses: they are the handles
  Node* parent = nullptr;         // the child graph node that owns this graph
  bool moved = false;             // it became the parent's own instead of a copy of it
  std::uint64_t cloned_from = 0;  // the id of the graph it is a copy of
  UserReferences objects;
  std::weak_ptr<GraphExec> instance;  // the one instance that a graph with memory nodes may have

 private:
  void forget(Node& node);
};
using GraphRef = std::shared_ptr<Graph>;

/// The living node behind a handle, in whichever graph. nullptr: there is none.
Node* node_find(CUgraphNode handle);

/// A node that a capture of `stream` has made: it runs in the context of that stream, a kernel with
/// its priority.
void node_captured(Node& node, Stream& stream);

/// The kind of node that a captured command becomes.
CUgraphNodeType node_type(const Command& command);

}  // namespace softgpu::driver
