// Nodes of graphs by one description for all kinds: translated where the runtime says it otherwise
// than the driver (kernels by host address, copies by kind), handed on as it is elsewhere.
#include <cstring>

#include "softgpu/runtime/copy.h"
#include "softgpu/runtime/registry.h"

using namespace softgpu::runtime;

static_assert(static_cast<int>(cudaGraphNodeTypeKernel) == CU_GRAPH_NODE_TYPE_KERNEL &&
                  static_cast<int>(cudaGraphNodeTypeConditional) ==
                      CU_GRAPH_NODE_TYPE_CONDITIONAL &&
                  sizeof(cudaMemAllocNodeParamsV2) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2),
              "one numbering in both headers");

namespace {

cudaError_t kernel_fill(const cudaKernelNodeParamsV2& from, CUDA_KERNEL_NODE_PARAMS_v3* to) {
  to->gridDimX = from.gridDim.x;
  to->gridDimY = from.gridDim.y;
  to->gridDimZ = from.gridDim.z;
  to->blockDimX = from.blockDim.x;
  to->blockDimY = from.blockDim.y;
  to->blockDimZ = from.blockDim.z;
  to->sharedMemBytes = from.sharedMemBytes;
  to->kernelParams = from.kernelParams;
  to->extra = from.extra;
  return Registry::get().find_kernel(from.func, &to->kern);
}

void memset_fill(const cudaMemsetParamsV2& from, CUDA_MEMSET_NODE_PARAMS_v2* to) {
  to->dst = to_address(from.dst);
  to->pitch = from.pitch;
  to->value = from.value;
  to->elementSize = from.elementSize;
  to->width = from.width;
  to->height = from.height;
}

void conditional_fill(const cudaConditionalNodeParams& from, CUDA_CONDITIONAL_NODE_PARAMS* to) {
  to->handle = from.handle;
  to->type = static_cast<CUgraphConditionalNodeType>(from.type);
  to->size = from.size;
}

/// The driver's description of a node, and what it answers put back into the runtime's.
class NodeTranslation {
 public:
  cudaError_t read(const Driver& api, const cudaGraphNodeParams* from) {
    if (from == nullptr) return cudaErrorInvalidValue;
    params_ = {};
    params_.type = static_cast<CUgraphNodeType>(from->type);
    CUcontext context = nullptr;
    if (const CUresult result = api.CtxGetCurrent(&context); result != CUDA_SUCCESS)
      return to_error(result);
    switch (from->type) {
      case cudaGraphNodeTypeKernel:
        params_.kernel.ctx = context;
        return kernel_fill(from->kernel, &params_.kernel);
      case cudaGraphNodeTypeMemcpy:
        params_.memcpy.flags = from->memcpy.flags;
        params_.memcpy.copyCtx = context;
        return softgpu::runtime::to_driver(from->memcpy.copyParams, &params_.memcpy.copyParams);
      case cudaGraphNodeTypeMemset:
        params_.memset.ctx = context;
        memset_fill(from->memset, &params_.memset);
        return cudaSuccess;
      case cudaGraphNodeTypeConditional:
        params_.conditional.ctx = context;
        conditional_fill(from->conditional, &params_.conditional);
        return cudaSuccess;
      default:  // one layout in both headers
        std::memcpy(params_.reserved1, from->reserved1, sizeof params_.reserved1);
        return cudaSuccess;
    }
  }

  void write(cudaGraphNodeParams* to) const {
    if (to->type == cudaGraphNodeTypeMemAlloc) to->alloc.dptr = to_pointer(params_.alloc.dptr);
    if (to->type == cudaGraphNodeTypeConditional)
      to->conditional.phGraph_out = params_.conditional.phGraph_out;
  }

  CUgraphNodeParams* params() { return &params_; }

 private:
  CUgraphNodeParams params_ = {};
};

/// Translates, runs `body(driver, params)` and puts the answers back.
template <class Body>
cudaError_t with_node(cudaGraphNodeParams* given, Body&& body) {
  return in_context([&](const Driver& api) {
    NodeTranslation translation;
    if (const cudaError_t error = translation.read(api, given); error != cudaSuccess) return error;
    const CUresult result = body(api, translation.params());
    if (result == CUDA_SUCCESS) translation.write(given);
    return to_error(result);
  });
}

}  // namespace

cudaError_t CUDARTAPI cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                       const cudaGraphNode_t* dependencies,
                                       const cudaGraphEdgeData* edges, size_t count,
                                       struct cudaGraphNodeParams* parameters) {
  return with_node(parameters, [&](const Driver& api, CUgraphNodeParams* translated) {
    return api.GraphAddNode(node, graph, dependencies,
                            reinterpret_cast<const CUgraphEdgeData*>(edges), count, translated);
  });
}

cudaError_t CUDARTAPI cudaGraphNodeSetParams(cudaGraphNode_t node,
                                             struct cudaGraphNodeParams* parameters) {
  return with_node(parameters, [&](const Driver& api, CUgraphNodeParams* translated) {
    return api.GraphNodeSetParams(node, translated);
  });
}

cudaError_t CUDARTAPI cudaGraphExecNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                                 struct cudaGraphNodeParams* parameters) {
  return with_node(parameters, [&](const Driver& api, CUgraphNodeParams* translated) {
    return api.GraphExecNodeSetParams(executable, node, translated);
  });
}

cudaError_t CUDARTAPI cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle,
                                                       cudaGraph_t graph, unsigned int first_value,
                                                       unsigned int flags) {
  return in_context([&](const Driver& api) {
    CUcontext context = nullptr;
    const CUresult result = api.CtxGetCurrent(&context);
    if (result != CUDA_SUCCESS) return result;
    return api.GraphConditionalHandleCreate(reinterpret_cast<CUgraphConditionalHandle*>(handle),
                                            graph, context, first_value, flags);
  });
}
