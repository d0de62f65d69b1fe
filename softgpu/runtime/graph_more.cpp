// Nodes of graphs that are rarer: allocations, events afterwards, child graphs afterwards, and the
// attributes of kernel nodes. Both headers lay these structures out alike.
#include "softgpu/runtime/call.h"

using namespace softgpu::runtime;

static_assert(sizeof(cudaMemAllocNodeParams) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v1) &&
                  sizeof(cudaKernelNodeAttrValue) == sizeof(CUkernelNodeAttrValue),
              "one layout in both headers");

cudaError_t CUDARTAPI cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                               const cudaGraphNode_t* dependencies, size_t count,
                                               struct cudaMemAllocNodeParams* parameters) {
  return in_context([&](const Driver& api) {
    return api.GraphAddMemAllocNode(node, graph, dependencies, count,
                                    reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS_v1*>(parameters));
  });
}

cudaError_t CUDARTAPI cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node,
                                                     struct cudaMemAllocNodeParams* parameters) {
  return in_context([&](const Driver& api) {
    return api.GraphMemAllocNodeGetParams(
        node, reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS_v1*>(parameters));
  });
}

cudaError_t CUDARTAPI cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* address) {
  return in_context([&](const Driver& api) {
    return api.GraphMemFreeNodeGetParams(node, static_cast<CUdeviceptr*>(address));
  });
}

cudaError_t CUDARTAPI cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return in_context(
      [&](const Driver& api) { return api.GraphEventRecordNodeGetEvent(node, event); });
}

cudaError_t CUDARTAPI cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return in_context(
      [&](const Driver& api) { return api.GraphEventRecordNodeSetEvent(node, event); });
}

cudaError_t CUDARTAPI cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return in_context([&](const Driver& api) { return api.GraphEventWaitNodeGetEvent(node, event); });
}

cudaError_t CUDARTAPI cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return in_context([&](const Driver& api) { return api.GraphEventWaitNodeSetEvent(node, event); });
}

cudaError_t CUDARTAPI cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t executable,
                                                           cudaGraphNode_t node,
                                                           cudaEvent_t event) {
  return in_context([&](const Driver& api) {
    return api.GraphExecEventRecordNodeSetEvent(executable, node, event);
  });
}

cudaError_t CUDARTAPI cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t executable,
                                                         cudaGraphNode_t node, cudaEvent_t event) {
  return in_context([&](const Driver& api) {
    return api.GraphExecEventWaitNodeSetEvent(executable, node, event);
  });
}

cudaError_t CUDARTAPI cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t executable,
                                                           cudaGraphNode_t node,
                                                           cudaGraph_t child) {
  return in_context([&](const Driver& api) {
    return api.GraphExecChildGraphNodeSetParams(executable, node, child);
  });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeCopyAttributes(cudaGraphNode_t target,
                                                        cudaGraphNode_t source) {
  return in_context(
      [&](const Driver& api) { return api.GraphKernelNodeCopyAttributes(target, source); });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeGetAttribute(cudaGraphNode_t node,
                                                      cudaKernelNodeAttrID attribute,
                                                      cudaKernelNodeAttrValue* value) {
  return in_context([&](const Driver& api) {
    return api.GraphKernelNodeGetAttribute(node, static_cast<CUkernelNodeAttrID>(attribute),
                                           reinterpret_cast<CUkernelNodeAttrValue*>(value));
  });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeSetAttribute(cudaGraphNode_t node,
                                                      cudaKernelNodeAttrID attribute,
                                                      const cudaKernelNodeAttrValue* value) {
  return in_context([&](const Driver& api) {
    return api.GraphKernelNodeSetAttribute(node, static_cast<CUkernelNodeAttrID>(attribute),
                                           reinterpret_cast<const CUkernelNodeAttrValue*>(value));
  });
}
