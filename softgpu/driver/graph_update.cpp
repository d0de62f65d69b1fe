// See graph_update.h.
#include "softgpu/driver/graph_update.h"

#include <algorithm>

#include "softgpu/driver/memory.h"

namespace softgpu::driver {
namespace {

/// What a copy or fill touches, as far as an instance is made for it.
struct Operand {
  bool device = false;
  const Gpu* gpu = nullptr;
  CUcontext context = nullptr;
};

Operand operand(const std::byte* p) {
  const DormantVisible visible;
  const auto allocation = MemoryMap::get().find(address_of(p));
  if (!allocation) return {};
  return {allocation->on_device(), allocation->on_device() ? allocation->gpu : nullptr,
          allocation->on_device() ? allocation->context : nullptr};
}

bool alike(const std::byte* a, const std::byte* b) {
  const Operand before = operand(a), after = operand(b);
  // Memory of pools belongs to no context.
  const bool contexts =
      before.context == nullptr || after.context == nullptr || before.context == after.context;
  return before.device == after.device && before.gpu == after.gpu && contexts;
}

bool linear(const CopyCommand& c) { return c.height <= 1 && c.depth <= 1 && c.width > 0; }

CUgraphExecUpdateResult check(const KernelCommand& before, const KernelCommand& after) {
  if (&before.module->owner() != &after.module->owner())
    return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
  return before.cooperative == after.cooperative ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                                 : CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
}

CUgraphExecUpdateResult check(const CopyCommand& before, const CopyCommand& after) {
  return alike(before.to, after.to) && alike(before.from, after.from)
             ? CU_GRAPH_EXEC_UPDATE_SUCCESS
             : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
}

CUgraphExecUpdateResult check(const SetCommand& before, const SetCommand& after) {
  const bool sizes = before.height == 1
                         ? after.height == 1
                         : before.width == after.width && before.height == after.height &&
                               before.element == after.element && before.pitch == after.pitch;
  return sizes && alike(before.to, after.to) ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                             : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
}

template <typename T>
CUgraphExecUpdateResult check(const T&, const T&) {
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUgraphExecUpdateResult check_commands(const Command& before, const Command& after) {
  if (before.index() != after.index()) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  return std::visit(
      [&](const auto& command) {
        return check(command, std::get<std::decay_t<decltype(command)>>(after));
      },
      before);
}

/// Number and kind of the operations stay, and whether a wait flushes.
bool operations_alike(const NodeDetail& before, const NodeDetail& after) {
  return std::equal(before.operations.begin(), before.operations.end(), after.operations.begin(),
                    after.operations.end(), [](const auto& a, const auto& b) {
                      if (a.operation != b.operation) return false;
                      const bool waits = a.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
                                         a.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
                      return !waits || ((a.waitValue.flags ^ b.waitValue.flags) &
                                        CU_STREAM_WAIT_VALUE_FLUSH) == 0;
                    });
}

bool copies_alike(const NodeDetail& before, const NodeDetail& after) {
  if (!before.copy || !after.copy) return true;
  return before.copy->srcMemoryType == after.copy->srcMemoryType &&
         before.copy->dstMemoryType == after.copy->dstMemoryType;
}

CUgraphExecUpdateResult check_details(const NodeDetail& before, const NodeDetail& after,
                                      unsigned long long flags) {
  if (!operations_alike(before, after) || !copies_alike(before, after))
    return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) != 0 &&
      node_priority(before) != node_priority(after))
    return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/// Finds for each node of the instance the one it is to become: from the exit nodes, in their
/// order, along the edges, in theirs.
class Pairing {
 public:
  Pairing(const Graph& target, const Graph& source) : target_(target), source_(source) {}

  UpdateFailure run() {
    if (target_.nodes.size() != source_.nodes.size()) return topology();
    const std::vector<Node*> exits = exits_of(target_), wanted = exits_of(source_);
    if (wanted.size() > exits.size()) return topology(wanted[exits.size()]);
    if (wanted.size() < exits.size()) return topology();
    for (std::size_t i = 0; i < exits.size(); ++i)
      if (!meet(exits[i], wanted[i])) return topology(wanted[i]);
    while (!open_.empty()) {
      const auto [target, source] = open_.front();
      open_.pop_front();
      if (target->after.size() != source->after.size()) return topology(source);
      for (std::size_t i = 0; i < target->after.size(); ++i)
        if (!meet(target->after[i], source->after[i])) return topology(source, source->after[i]);
    }
    return {};
  }
  /// In the order of the target's nodes: which of several failures is told must not depend on where
  /// nodes happen to lie.
  std::vector<std::pair<Node*, Node*>> pairs() const {
    std::vector<std::pair<Node*, Node*>> pairs;
    for (const Node& node : target_.nodes) {
      const auto known = pairs_.find(const_cast<Node*>(&node));
      if (known != pairs_.end()) pairs.emplace_back(*known);
    }
    return pairs;
  }

 private:
  static UpdateFailure topology(Node* node = nullptr, Node* from = nullptr) {
    return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node, from};
  }
  static std::vector<Node*> exits_of(const Graph& graph) {
    std::set<const Node*> inner;
    for (const Node& node : graph.nodes) inner.insert(node.after.begin(), node.after.end());
    std::vector<Node*> exits;
    for (const Node& node : graph.nodes)
      if (!inner.contains(&node)) exits.push_back(const_cast<Node*>(&node));
    return exits;
  }
  bool meet(Node* target, Node* source) {
    const auto known = pairs_.find(target);
    if (known != pairs_.end()) return known->second == source;
    if (!met_.insert(source).second) return false;
    pairs_[target] = source;
    open_.emplace_back(target, source);
    return true;
  }

  const Graph& target_;
  const Graph& source_;
  std::map<Node*, Node*> pairs_;
  std::set<const Node*> met_;
  std::deque<std::pair<Node*, Node*>> open_;
};

UpdateFailure graph_check(const Graph& target, const Graph& source, unsigned long long flags);

UpdateFailure node_check(const Node& target, Node& source, unsigned long long flags) {
  if (target.type != source.type) return {CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, &source};
  if (target.of_memory()) return {CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, &source};
  if (const GraphRef child = target.child()) {
    const UpdateFailure inside = graph_check(*child, *source.child(), flags);
    return {inside.result, inside.result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? nullptr : &source};
  }
  CUgraphExecUpdateResult result = check_commands(target.command, source.command);
  if (result == CU_GRAPH_EXEC_UPDATE_SUCCESS)
    result = check_details(target.detail, source.detail, flags);
  return {result, result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? nullptr : &source};
}

UpdateFailure graph_check(const Graph& target, const Graph& source, unsigned long long flags) {
  Pairing pairing(target, source);
  const UpdateFailure shape = pairing.run();
  if (shape.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return shape;
  for (const auto& [before, after] : pairing.pairs()) {
    const UpdateFailure failure = node_check(*before, *after, flags);
    if (failure.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return failure;
  }
  return {};
}

void graph_apply(Graph& target, const Graph& source) {
  Pairing pairing(target, source);
  (void)pairing.run();
  target.objects.replace(source.objects);
  for (const auto& [before, after] : pairing.pairs()) {
    if (const GraphRef child = before->child()) {
      graph_apply(*child, *after->child());
      continue;
    }
    before->command = after->command;
    before->detail = after->detail;
  }
}

}  // namespace

UpdateFailure graph_update(Graph& target, const Graph& source, unsigned long long flags) {
  const UpdateFailure failure = graph_check(target, source, flags);
  if (failure.result == CU_GRAPH_EXEC_UPDATE_SUCCESS) graph_apply(target, source);
  return failure;
}

CUresult node_update(Node& node, const NodeSpec& spec, unsigned long long flags) {
  if (node.type != spec.type) return CUDA_ERROR_INVALID_VALUE;
  if (node.of_memory()) return CUDA_ERROR_NOT_SUPPORTED;
  if (spec.child != nullptr)
    return graph_update(*node.child(), *spec.child, flags).result == CU_GRAPH_EXEC_UPDATE_SUCCESS
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  NodeDetail detail = spec.detail;
  detail.attributes = node.detail.attributes;  // parameters do not speak of them
  Command command = spec.command;
  if (auto* kernel = std::get_if<KernelCommand>(&command))
    kernel->cooperative = std::get<KernelCommand>(node.command).cooperative;
  if (const auto* copy = std::get_if<CopyCommand>(&command))
    if (!linear(*copy) || !linear(std::get<CopyCommand>(node.command)))
      return CUDA_ERROR_INVALID_VALUE;
  if (check_commands(node.command, command) != CU_GRAPH_EXEC_UPDATE_SUCCESS ||
      check_details(node.detail, detail, flags) != CU_GRAPH_EXEC_UPDATE_SUCCESS)
    return CUDA_ERROR_INVALID_VALUE;
  node.command = std::move(command);
  node.detail = std::move(detail);
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
