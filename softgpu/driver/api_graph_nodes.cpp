// Entry points: adding nodes, kind by kind. Their parameters are in api_graph_params.cpp, memory
// nodes in api_graph_memory.cpp.
#include "softgpu/driver/api_graph.h"

using namespace softgpu::driver;

CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                             std::size_t count) {
  return node_add({out, graph, after, nullptr, count}, [](NodeSpec&) { return CUDA_SUCCESS; });
}

CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                              std::size_t count, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE
                             : node_describe(kernel_params(*params), spec);
  });
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                 std::size_t count, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE
                             : node_describe(kernel_params(*params), spec);
  });
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                              std::size_t count, const CUDA_MEMCPY3D* params, CUcontext context) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, context, spec);
  });
}

CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                              std::size_t count, const CUDA_MEMSET_NODE_PARAMS* params,
                              CUcontext context) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, context, spec);
  });
}

CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                            std::size_t count, const CUDA_HOST_NODE_PARAMS* params) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                  std::size_t count, CUgraph child) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return node_describe_child(child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, spec);
  });
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                   std::size_t count, CUevent event) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return node_describe_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, spec);
  });
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                 std::size_t count, CUevent event) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return node_describe_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, spec);
  });
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                  std::size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}

CUresult cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                        std::size_t count, CUgraphNodeParams* params) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}

CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                           const CUgraphEdgeData* edges, std::size_t count,
                           CUgraphNodeParams* params) {
  return node_add({out, graph, after, edges, count}, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}
