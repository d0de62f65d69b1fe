// Entry points: what a node of a graph does, asked and changed; attributes of kernel nodes.
#include <cstring>

#include "softgpu/driver/api_graph.h"
#include "softgpu/driver/event.h"

using namespace softgpu::driver;

namespace {

template <typename Params>
CUresult params_get(CUgraphNode handle, CUgraphNodeType type, Params* params,
                    const char* name = __builtin_FUNCTION()) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, type, node, name);
  if (result != CUDA_SUCCESS) return result;
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  node_tell(*node, *params);
  return CUDA_SUCCESS;
}

CUresult event_get(CUgraphNode handle, CUgraphNodeType type, CUevent* event,
                   const char* name = __builtin_FUNCTION()) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, type, node, name);
  if (result != CUDA_SUCCESS) return result;
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *event = type == CU_GRAPH_NODE_TYPE_EVENT_RECORD
               ? std::get<RecordCommand>(node->command).event->handle()
               : std::get<WaitCommand>(node->command).event->handle();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  CUDA_KERNEL_NODE_PARAMS_v2 newer{};
  const CUresult result =
      params_get(node, CU_GRAPH_NODE_TYPE_KERNEL, params == nullptr ? nullptr : &newer);
  if (result != CUDA_SUCCESS) return result;
  // Who asks this way knows functions only.
  std::memcpy(params, &newer, sizeof *params);
  if (params->func == nullptr) params->func = reinterpret_cast<CUfunction>(newer.kern);
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return params_get(node, CU_GRAPH_NODE_TYPE_KERNEL, params);
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* params) {
  return params_get(node, CU_GRAPH_NODE_TYPE_MEMCPY, params);
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
  return params_get(node, CU_GRAPH_NODE_TYPE_MEMSET, params);
}
CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return params_get(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, params);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS* params) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, CU_GRAPH_NODE_TYPE_HOST, node);
  if (result != CUDA_SUCCESS) return result;
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& host = std::get<HostCommand>(node->command);
  *params = {host.function, host.data};
  return CUDA_SUCCESS;
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return event_get(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return event_get(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* graph) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, CU_GRAPH_NODE_TYPE_GRAPH, node);
  if (result != CUDA_SUCCESS) return result;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphRef child = node->child();
  Registry<Graph>::all().add(child);
  *graph = child->handle();
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return node_set(node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE
                             : node_describe(kernel_params(*params), spec);
  });
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return node_set(node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE
                             : node_describe(kernel_params(*params), spec);
  });
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  return node_set(node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, nullptr, spec);
  });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  return node_set(node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, nullptr, spec);
  });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return node_set(node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return node_set(node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return node_set(node, [&](NodeSpec& spec) {
    return node_describe_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, spec);
  });
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return node_set(node, [&](NodeSpec& spec) {
    return node_describe_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, spec);
  });
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  return node_set(node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                       CUkernelNodeAttrValue* value) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, CU_GRAPH_NODE_TYPE_KERNEL, node);
  if (result != CUDA_SUCCESS) return result;
  return value == nullptr ? CUDA_ERROR_INVALID_VALUE : attribute_get(*node, attribute, *value);
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                       const CUkernelNodeAttrValue* value) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, CU_GRAPH_NODE_TYPE_KERNEL, node);
  if (result != CUDA_SUCCESS) return result;
  return value == nullptr ? CUDA_ERROR_INVALID_VALUE : attribute_set(*node, attribute, *value);
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to_handle, CUgraphNode from_handle) {
  Node *to = nullptr, *from = nullptr;
  CUresult result = node_enter(to_handle, CU_GRAPH_NODE_TYPE_KERNEL, to);
  if (result == CUDA_SUCCESS) result = node_enter(from_handle, CU_GRAPH_NODE_TYPE_KERNEL, from);
  if (result != CUDA_SUCCESS) return result;
  if (node_context(to->command, to->detail) != node_context(from->command, from->detail))
    return CUDA_ERROR_INVALID_VALUE;
  to->detail.attributes = from->detail.attributes;
  std::get<KernelCommand>(to->command).cooperative =
      std::get<KernelCommand>(from->command).cooperative;
  return CUDA_SUCCESS;
}
