// Graphs as data, their execution, and captures; see graph.h.
#include "softgpu/driver/graph.h"

#include <algorithm>
#include <set>

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

std::mutex& capture_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

Node* capture_add(Stream& stream, CUgraphNodeType type, Command command) {
  auto& ends = stream.capture->ends[&stream];
  Node* node = stream.capture->graph->add(type, std::move(command), ends);
  ends = {node};
  return node;
}

namespace {

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

/// The captures in progress, of all threads.
std::vector<std::shared_ptr<Capture>> captures_locked() {
  std::vector<std::shared_ptr<Capture>> result;
  for (const StreamRef& stream : Registry<Stream>::all().list()) {
    if (stream->capture == nullptr) continue;
    if (std::find(result.begin(), result.end(), stream->capture) == result.end())
      result.push_back(stream->capture);
  }
  return result;
}

/// Work in the legacy stream would have to wait for the captured work of a blocking stream: it has
/// no place in time.
bool legacy_conflicts_locked(const Context& context) {
  bool conflict = false;
  for (const auto& capture : captures_locked()) {
    for (const auto& [stream, ends] : capture->ends) {
      if (&stream->owner() != &context || !stream->blocking()) continue;
      capture->invalid = true;
      conflict = true;
    }
  }
  return conflict;
}

}  // namespace

CUresult command_submit(const StreamRef& stream, Command command, OpRef* done) {
  {
    const std::lock_guard lock(capture_mutex());
    if (stream->capture != nullptr) {
      if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      const CUgraphNodeType type = node_type(command);
      capture_add(*stream, type, std::move(command));
      return CUDA_SUCCESS;
    }
    if (stream->kind == Stream::kLegacy && legacy_conflicts_locked(stream->owner()))
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  auto shared = std::make_shared<Command>(std::move(command));
  OpRef op = stream->submit([shared](Stream& on, Op& self) { command_run(*shared, on, self); });
  if (done != nullptr) *done = std::move(op);
  return CUDA_SUCCESS;
}

CUresult capture_refuses(const ContextRef& context) {
  const std::lock_guard lock(capture_mutex());
  const auto captures = captures_locked();
  if (captures.empty()) return CUDA_SUCCESS;
  if (context != nullptr) {  // waiting for a context waits for its capturing streams
    bool refused = false;
    for (const auto& capture : captures) {
      for (const auto& [stream, ends] : capture->ends) {
        if (&stream->owner() != context.get()) continue;
        capture->invalid = true;
        refused = true;
      }
    }
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
  }
  // An unsafe call: forbidden to a thread that captures, and to every thread while someone captures
  // globally, unless the thread has said that it knows what it does.
  const Thread& thread = thread_state();
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool refused = false;
  for (const auto& capture : captures) {
    const bool mine = capture->thread == &thread && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !global) continue;
    capture->invalid = true;
    refused = true;
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

}  // namespace softgpu::driver
