// Graphs as data, and their execution; see graph.h.
#include "softgpu/driver/graph.h"

#include <algorithm>
#include <set>

#include "softgpu/driver/capture.h"

namespace softgpu::driver {

Node* Graph::add(CUgraphNodeType type, Command command, std::vector<Node*> after) {
  Node& node = nodes.emplace_back();
  node.graph = this;
  node.type = type;
  node.command = std::move(command);
  node.after = std::move(after);
  return &node;
}

void Graph::remove(Node* node) {
  for (Node& other : nodes) std::erase(other.after, node);
  nodes.remove_if([node](const Node& other) { return &other == node; });
}

bool Graph::owns(const Node* node) const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [node](const Node& other) { return &other == node; });
}

GraphRef Graph::copy() const {
  auto result = std::make_shared<Graph>();
  std::map<const Node*, Node*> twins;
  for (const Node& node : nodes) {
    Command command = node.command;
    if (auto* child = std::get_if<GraphCommand>(&command)) child->graph = child->graph->copy();
    Node* twin = result->add(node.type, std::move(command), {});
    twin->origin = &node;
    twin->enabled = node.enabled;
    twins[&node] = twin;
  }
  for (const Node& node : nodes)
    for (Node* before : node.after) twins[&node]->after.push_back(twins[before]);
  return result;
}

std::vector<Node*> Graph::ordered() const {
  std::vector<Node*> result;
  std::set<const Node*> placed;
  while (result.size() < nodes.size()) {
    const std::size_t before = result.size();
    for (const Node& node : nodes) {
      if (placed.contains(&node)) continue;
      if (!std::all_of(node.after.begin(), node.after.end(),
                       [&](Node* n) { return placed.contains(n); }))
        continue;
      placed.insert(&node);
      result.push_back(const_cast<Node*>(&node));
    }
    if (result.size() == before) return {};  // a cycle
  }
  return result;
}

void Graph::run(Stream& stream, Op& op) const {
  for (const Node* node : ordered())
    if (node->enabled) command_run(node->command, stream, op);
}

CUgraphNodeType node_type(const Command& command) {
  struct Type {
    CUgraphNodeType operator()(const EmptyCommand&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const KernelCommand&) const { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CopyCommand&) const { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const SetCommand&) const { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const HostCommand&) const { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const DelayCommand&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const FreeCommand&) const { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
    CUgraphNodeType operator()(const RecordCommand&) const {
      return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    }
    CUgraphNodeType operator()(const WaitCommand&) const { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const WordCommand&) const { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const GraphCommand&) const { return CU_GRAPH_NODE_TYPE_GRAPH; }
  };
  return std::visit(Type{}, command);
}

CUresult command_submit(const StreamRef& stream, Command command, OpRef* done) {
  bool captured = false;
  const CUresult result = capture_command(*stream, command, captured);
  if (result != CUDA_SUCCESS || captured) return result;
  auto shared = std::make_shared<Command>(std::move(command));
  OpRef op = stream->submit([shared](Stream& on, Op& self) { command_run(*shared, on, self); });
  if (done != nullptr) *done = std::move(op);
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
