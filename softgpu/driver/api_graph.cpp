// Entry points: graphs built by hand or by capture, their instances, and launching them.
#include <algorithm>

#include "softgpu/driver/copy.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;

namespace {

CUresult graph_enter(CUgraph handle, GraphRef& graph, const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  graph = Registry<Graph>::all().find(handle);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/// The living node behind a handle, in whichever graph.
Node* node_find(CUgraphNode handle) {
  const auto* node = reinterpret_cast<const Node*>(handle);
  for (const GraphRef& graph : Registry<Graph>::all().list())
    if (graph->owns(node)) return const_cast<Node*>(node);
  return nullptr;
}

CUresult node_add(CUgraphNode* out, CUgraph handle, const CUgraphNode* after, std::size_t count,
                  CUgraphNodeType type, Command command, const char* name) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || (count > 0 && after == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < count; ++i) {
    auto* node = reinterpret_cast<Node*>(after[i]);
    if (!graph->owns(node)) return CUDA_ERROR_INVALID_VALUE;
    nodes.push_back(node);
  }
  *out = graph->add(type, std::move(command), std::move(nodes))->handle();
  return CUDA_SUCCESS;
}

CUresult kernel_describe(const CUDA_KERNEL_NODE_PARAMS_v2& p, KernelCommand& command) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  const CUfunction function = p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern);
  const LaunchRequest request{function,
                              {p.gridDimX, p.gridDimY, p.gridDimZ},
                              {p.blockDimX, p.blockDimY, p.blockDimZ},
                              p.sharedMemBytes,
                              p.kernelParams,
                              p.extra,
                              false};
  return launch_prepare(request, context, command);
}

CUresult set_describe(const CUDA_MEMSET_NODE_PARAMS& p, SetCommand& command) {
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4)
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = p.width * p.elementSize;
  if (row == 0 || p.height == 0 || (p.height > 1 && p.pitch < row)) return CUDA_ERROR_INVALID_VALUE;
  if (!MemoryMap::get().covers(p.dst, row + (p.height - 1) * p.pitch))
    return CUDA_ERROR_INVALID_VALUE;
  command = SetCommand{
      reinterpret_cast<std::byte*>(p.dst), p.pitch, p.width, p.height, p.value, p.elementSize};
  return CUDA_SUCCESS;
}

CUresult instantiate(CUgraphExec* out, CUgraph handle, unsigned long long flags, const char* name) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!graph->nodes.empty() && graph->ordered().empty()) return CUDA_ERROR_INVALID_VALUE;
  auto exec = std::make_shared<GraphExec>();
  exec->graph = graph->copy();
  exec->flags = flags;
  Registry<GraphExec>::all().add(exec);
  *out = exec->handle();
  return CUDA_SUCCESS;
}

/// The node of an instance that came from `handle`.
Node* exec_node(CUgraphExec exec_handle, CUgraphNode handle) {
  const auto exec = Registry<GraphExec>::all().find(exec_handle);
  if (exec == nullptr) return nullptr;
  const auto found = std::find_if(
      exec->graph->nodes.begin(), exec->graph->nodes.end(),
      [&](const Node& node) { return node.origin == reinterpret_cast<const Node*>(handle); });
  return found == exec->graph->nodes.end() ? nullptr : &*found;
}

template <typename T>
CUresult command_replace(Node* node, T command) {
  if (node == nullptr || !std::holds_alternative<T>(node->command)) return CUDA_ERROR_INVALID_VALUE;
  node->command = std::move(command);
  return CUDA_SUCCESS;
}

/// Hands out up to *count handles and stores how many there are.
CUresult handles_give(const std::vector<Node*>& nodes, CUgraphNode* out, std::size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out != nullptr)
    for (std::size_t i = 0; i < std::min(*count, nodes.size()); ++i) out[i] = nodes[i]->handle();
  *count = nodes.size();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphCreate(CUgraph* out, unsigned int flags) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto graph = std::make_shared<Graph>();
  Registry<Graph>::all().add(graph);
  *out = graph->handle();
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  return Registry<Graph>::all().take(handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphClone(CUgraph* out, CUgraph handle) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphRef twin = graph->copy();
  Registry<Graph>::all().add(twin);
  *out = twin->handle();
  return CUDA_SUCCESS;
}

CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                             std::size_t count) {
  return node_add(out, graph, after, count, CU_GRAPH_NODE_TYPE_EMPTY, EmptyCommand{}, __func__);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                 std::size_t count, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KernelCommand command;
  const CUresult result = kernel_describe(*params, command);
  if (result != CUDA_SUCCESS) return result;
  return node_add(out, graph, after, count, CU_GRAPH_NODE_TYPE_KERNEL, std::move(command),
                  __func__);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                              std::size_t count, const CUDA_MEMCPY3D* params, CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CopyCommand command;
  const CUresult result = copy_describe(*params, command);
  if (result != CUDA_SUCCESS) return result;
  return node_add(out, graph, after, count, CU_GRAPH_NODE_TYPE_MEMCPY, std::move(command),
                  __func__);
}

CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                              std::size_t count, const CUDA_MEMSET_NODE_PARAMS* params, CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SetCommand command;
  const CUresult result = set_describe(*params, command);
  if (result != CUDA_SUCCESS) return result;
  return node_add(out, graph, after, count, CU_GRAPH_NODE_TYPE_MEMSET, command, __func__);
}

CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                            std::size_t count, const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr || params->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_HOST_NODE_PARAMS kept = *params;
  return node_add(out, graph, after, count, CU_GRAPH_NODE_TYPE_HOST,
                  HostCommand{[kept] { kept.fn(kept.userData); }, kept.fn, kept.userData},
                  __func__);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                  std::size_t count, CUgraph child_handle) {
  GraphRef child;
  const CUresult result = graph_enter(child_handle, child);
  if (result != CUDA_SUCCESS) return result;
  return node_add(out, graph, after, count, CU_GRAPH_NODE_TYPE_GRAPH, GraphCommand{child->copy()},
                  __func__);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                   std::size_t count, CUevent handle) {
  const EventRef event = Registry<Event>::all().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return node_add(out, graph, after, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD, RecordCommand{event},
                  __func__);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                 std::size_t count, CUevent handle) {
  const EventRef event = Registry<Event>::all().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return node_add(out, graph, after, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT, WaitCommand{event},
                  __func__);
}

CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                std::size_t count) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  for (std::size_t i = 0; i < count; ++i) {
    auto *before = reinterpret_cast<Node*>(from[i]), *node = reinterpret_cast<Node*>(to[i]);
    if (before == node || !graph->owns(before) || !graph->owns(node))
      return CUDA_ERROR_INVALID_VALUE;
    if (std::find(node->after.begin(), node->after.end(), before) != node->after.end())
      return CUDA_ERROR_INVALID_VALUE;
    node->after.push_back(before);
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, std::size_t count) {
  return cuGraphAddDependencies(graph, from, to, count);
}

CUresult cuGraphRemoveDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                   std::size_t count) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  for (std::size_t i = 0; i < count; ++i) {
    auto* node = reinterpret_cast<Node*>(to[i]);
    if (!graph->owns(node) || std::erase(node->after, reinterpret_cast<Node*>(from[i])) == 0)
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, std::size_t count) {
  return cuGraphRemoveDependencies(graph, from, to, count);
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  Node* node = node_find(handle);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  node->graph->remove(node);
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const Node* node = node_find(handle);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->type;
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* out, std::size_t* count) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  std::vector<Node*> nodes;
  for (Node& node : graph->nodes) nodes.push_back(&node);
  return handles_give(nodes, out, count);
}

CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* out, std::size_t* count) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  std::vector<Node*> nodes;
  for (Node& node : graph->nodes)
    if (node.after.empty()) nodes.push_back(&node);
  return handles_give(nodes, out, count);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* out, std::size_t* count) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const Node* node = node_find(handle);
  return node == nullptr ? CUDA_ERROR_INVALID_VALUE : handles_give(node->after, out, count);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  return instantiate(out, graph, flags, __func__);
}
CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* error, char*,
                            std::size_t) {
  if (error != nullptr) *error = nullptr;
  return instantiate(out, graph, 0, __func__);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error, char* log,
                               std::size_t bytes) {
  return cuGraphInstantiate(out, graph, error, log, bytes);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = instantiate(out, graph, params->flags, __func__);
  params->hErrNode_out = nullptr;
  params->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  return Registry<GraphExec>::all().take(handle) != nullptr ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  const auto exec = Registry<GraphExec>::all().find(handle);
  if (exec == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  return Registry<GraphExec>::all().find(handle) != nullptr ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  ContextRef context;
  CUresult result = enter(context);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(stream_handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  const auto exec = Registry<GraphExec>::all().find(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // A copy: the instance may be updated while this launch is still queued.
  return command_submit(stream, GraphCommand{exec->graph->copy()});
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec_handle, CUgraph handle,
                              CUgraphExecUpdateResultInfo* info) {
  GraphRef graph;
  const CUresult result = graph_enter(handle, graph);
  if (result != CUDA_SUCCESS) return result;
  const auto exec = Registry<GraphExec>::all().find(exec_handle);
  if (exec == nullptr || info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *info = CUgraphExecUpdateResultInfo{};
  const std::vector<Node*> ours = exec->graph->ordered(), theirs = graph->ordered();
  const bool alike =
      ours.size() == theirs.size() &&
      std::equal(ours.begin(), ours.end(), theirs.begin(), [](const Node* a, const Node* b) {
        return a->type == b->type && a->after.size() == b->after.size();
      });
  if (!alike) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  exec->graph = graph->copy();
  return CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KernelCommand command;
  const CUresult result = kernel_describe(*params, command);
  return result == CUDA_SUCCESS ? command_replace(exec_node(exec, node), std::move(command))
                                : result;
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMCPY3D* params, CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CopyCommand command;
  const CUresult result = copy_describe(*params, command);
  return result == CUDA_SUCCESS ? command_replace(exec_node(exec, node), std::move(command))
                                : result;
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* params, CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SetCommand command;
  const CUresult result = set_describe(*params, command);
  return result == CUDA_SUCCESS ? command_replace(exec_node(exec, node), command) : result;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle,
                                       const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KernelCommand command;
  const CUresult result = kernel_describe(*params, command);
  return result == CUDA_SUCCESS ? command_replace(node_find(handle), std::move(command)) : result;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int enabled) {
  Node* node = exec_node(exec, handle);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  node->enabled = enabled != 0;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int* enabled) {
  const Node* node = exec_node(exec, handle);
  if (node == nullptr || enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *enabled = node->enabled ? 1 : 0;
  return CUDA_SUCCESS;
}
