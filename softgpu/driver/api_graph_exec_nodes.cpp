// Entry points: single nodes of an instance, named by the nodes that they were made from.
#include "softgpu/driver/api_graph.h"

using namespace softgpu::driver;

namespace {

/// "Currently only kernel, memset and memcpy nodes are supported." (cuda.h, cuGraphNodeSetEnabled)
bool can_rest(const Node& node) {
  return node.type == CU_GRAPH_NODE_TYPE_KERNEL || node.type == CU_GRAPH_NODE_TYPE_MEMSET ||
         node.type == CU_GRAPH_NODE_TYPE_MEMCPY;
}

}  // namespace

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE
                             : node_describe(kernel_params(*params), spec);
  });
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE
                             : node_describe(kernel_params(*params), spec);
  });
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMCPY3D* params, CUcontext context) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, context, spec);
  });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, context, spec);
  });
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                      const CUDA_HOST_NODE_PARAMS* params) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    return node_describe_child(child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, spec);
  });
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    return node_describe_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, spec);
  });
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    return node_describe_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, spec);
  });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  return exec_set(exec, node, [&](NodeSpec& spec) {
    if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool memory =
        params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    return memory ? CUDA_ERROR_NOT_SUPPORTED : node_describe(*params, spec);
  });
}

CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int enabled) {
  GraphExecRef exec;
  const CUresult result = exec_enter(handle, exec);
  if (result != CUDA_SUCCESS) return result;
  return exec->change(node, [&](Node& copy) {
    if (!can_rest(copy)) return CUDA_ERROR_INVALID_VALUE;
    copy.enabled = enabled != 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int* enabled) {
  GraphExecRef exec;
  const CUresult result = exec_enter(handle, exec);
  if (result != CUDA_SUCCESS) return result;
  if (enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return exec->change(node, [&](const Node& copy) {
    if (!can_rest(copy)) return CUDA_ERROR_INVALID_VALUE;
    *enabled = copy.enabled ? 1 : 0;
    return CUDA_SUCCESS;
  });
}
