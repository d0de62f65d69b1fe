// See graph.h.
#include "softgpu/driver/graph.h"

#include <algorithm>
#include <deque>

#include "softgpu/driver/capture.h"

namespace softgpu::driver {
namespace {

/// The living nodes of all graphs: a handle that is not here is refused instead of followed.
struct NodeIndex {
  std::shared_mutex mutex;
  std::unordered_map<const Node*, Graph*> graphs;
};

NodeIndex& node_index() {
  static auto* index = new NodeIndex;  // never destroyed: threads may still run at exit
  return *index;
}

std::uint64_t id_next() {
  static std::atomic<std::uint64_t> id{1};
  return id++;
}

}  // namespace

GraphRef Node::child() const {
  const auto* command_of_child = std::get_if<GraphCommand>(&command);
  return command_of_child == nullptr ? nullptr : command_of_child->graph;
}

Graph::Graph() : id(id_next()) {}

Graph::~Graph() {
  for (Node& node : nodes) forget(node);
}

void Graph::forget(Node& node) {
  if (const GraphRef child = node.child()) {
    child->parent = nullptr;
    Registry<Graph>::all().take(child.get());
  }
  const std::unique_lock lock(node_index().mutex);
  node_index().graphs.erase(&node);
}

Node* Graph::add(CUgraphNodeType type, Command command, std::vector<Node*> after) {
  Node& node = nodes.emplace_back();
  node.graph = this;
  node.id = id_next();
  node.type = type;
  node.command = std::move(command);
  node.after = std::move(after);
  if (const GraphRef child = node.child(); child != nullptr && child->parent == nullptr)
    child->parent = &node;
  const std::unique_lock lock(node_index().mutex);
  node_index().graphs[&node] = this;
  return &node;
}

void Graph::adopt(Node& node, const GraphRef& child, bool move) {
  const GraphRef own = move ? child : child->copy();
  own->parent = &node;
  own->moved = move;
  node.command = GraphCommand{own};
}

void Graph::remove(Node* node) {
  for (Node& other : nodes) std::erase(other.after, node);
  forget(*node);
  nodes.remove_if([node](const Node& other) { return &other == node; });
}

bool Graph::owns(const Node* node) const {
  const std::shared_lock lock(node_index().mutex);
  const auto found = node_index().graphs.find(node);
  return found != node_index().graphs.end() && found->second == this;
}

Node* node_find(CUgraphNode handle) {
  auto* node = reinterpret_cast<Node*>(handle);
  const std::shared_lock lock(node_index().mutex);
  return node_index().graphs.contains(node) ? node : nullptr;
}

GraphRef Graph::copy() const {
  auto result = std::make_shared<Graph>();
  result->cloned_from = id;
  result->objects.add(objects);
  std::map<const Node*, Node*> twins;
  for (const Node& node : nodes) {
    Node* twin = result->add(node.type, node.command, {});
    if (const GraphRef child = node.child()) result->adopt(*twin, child, false);
    twin->detail = node.detail;
    twin->origin = node.id;
    twin->enabled = node.enabled;
    twins[&node] = twin;
  }
  for (const Node& node : nodes)
    for (Node* before : node.after) twins[&node]->after.push_back(twins[before]);
  return result;
}

std::vector<Node*> Graph::ordered() const {
  std::unordered_map<const Node*, std::size_t> missing;
  std::unordered_map<const Node*, std::vector<Node*>> next;
  std::deque<Node*> ready;
  for (const Node& node : nodes) {
    missing[&node] = node.after.size();
    for (const Node* before : node.after) next[before].push_back(const_cast<Node*>(&node));
    if (node.after.empty()) ready.push_back(const_cast<Node*>(&node));
  }
  std::vector<Node*> result;
  while (!ready.empty()) {
    Node* node = ready.front();
    ready.pop_front();
    result.push_back(node);
    for (Node* dependent : next[node])
      if (--missing[dependent] == 0) ready.push_back(dependent);
  }
  return result;
}

std::vector<Node*> Graph::dependents(const Node& node) const {
  std::vector<Node*> result;
  for (const Node& other : nodes)
    if (std::find(other.after.begin(), other.after.end(), &node) != other.after.end())
      result.push_back(const_cast<Node*>(&other));
  return result;
}

bool Graph::has_memory_nodes() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const Node& node) {
    const GraphRef child = node.child();
    return node.of_memory() || (child != nullptr && child->has_memory_nodes());
  });
}

Node* Graph::copy_of(std::uint64_t origin) const {
  for (const Node& node : nodes) {
    if (node.origin == origin) return const_cast<Node*>(&node);
    const GraphRef child = node.child();
    Node* inside = child == nullptr ? nullptr : child->copy_of(origin);
    if (inside != nullptr) return inside;
  }
  return nullptr;
}

void node_captured(Node& node, Stream& stream) {
  node.detail.context = stream.context();
  if (const auto* kernel = std::get_if<KernelCommand>(&node.command))
    node.detail.attributes[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority =
        kernel->priority.value_or(stream.priority);
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
    CUgraphNodeType operator()(const WordsCommand&) const {
      return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    }
    CUgraphNodeType operator()(const GraphCommand&) const { return CU_GRAPH_NODE_TYPE_GRAPH; }
  };
  return std::visit(Type{}, command);
}

CUresult command_submit(const StreamRef& stream, Command command, OpRef* done) {
  bool captured = false;
  const CUresult result = capture_command(*stream, command, captured);
  if (result != CUDA_SUCCESS || captured) return result;
  auto op = std::make_shared<CommandOp>(std::move(command));
  stream->submit(op);
  if (done != nullptr) *done = std::move(op);
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
