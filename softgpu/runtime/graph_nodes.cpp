// Nodes of graphs: kernels, copies, fills, host functions, events, frees, empty and child nodes;
// and setting the parameters of nodes afterwards, in the graph or in its executable form.
#include "softgpu/runtime/copy.h"
#include "softgpu/runtime/registry.h"

using namespace softgpu::runtime;

static_assert(sizeof(cudaHostNodeParams) == sizeof(CUDA_HOST_NODE_PARAMS),
              "one layout in both headers");

namespace {

cudaError_t to_driver(const cudaKernelNodeParams* parameters, CUDA_KERNEL_NODE_PARAMS* out) {
  if (parameters == nullptr) return cudaErrorInvalidValue;
  *out = {};
  if (const cudaError_t error = Registry::get().find_kernel(parameters->func, &out->kern);
      error != cudaSuccess) {
    return error;
  }
  out->gridDimX = parameters->gridDim.x;
  out->gridDimY = parameters->gridDim.y;
  out->gridDimZ = parameters->gridDim.z;
  out->blockDimX = parameters->blockDim.x;
  out->blockDimY = parameters->blockDim.y;
  out->blockDimZ = parameters->blockDim.z;
  out->sharedMemBytes = parameters->sharedMemBytes;
  out->kernelParams = parameters->kernelParams;
  out->extra = parameters->extra;
  return cudaSuccess;
}

cudaError_t to_driver(const cudaMemsetParams* parameters, CUDA_MEMSET_NODE_PARAMS* out) {
  if (parameters == nullptr) return cudaErrorInvalidValue;
  *out = {};
  out->dst = to_address(parameters->dst);
  out->pitch = parameters->pitch;
  out->value = parameters->value;
  out->elementSize = parameters->elementSize;
  out->width = parameters->width;
  out->height = parameters->height;
  return cudaSuccess;
}

cudaError_t to_driver(const cudaMemcpy3DParms* parameters, CUDA_MEMCPY3D* out) {
  return parameters == nullptr ? cudaErrorInvalidValue
                               : softgpu::runtime::to_driver(*parameters, out);
}

/// Translates a node's parameters, then runs `body(driver, translated, context)`.
template <class Translated, class Parameters, class Body>
cudaError_t with_parameters(const Parameters* parameters, Body&& body) {
  return in_context([&](const Driver& api) {
    Translated translated = {};
    CUcontext context = nullptr;
    if (const cudaError_t error = ::to_driver(parameters, &translated); error != cudaSuccess)
      return error;
    if (const CUresult result = api.CtxGetCurrent(&context); result != CUDA_SUCCESS)
      return to_error(result);
    return to_error(body(api, translated, context));
  });
}

const CUDA_HOST_NODE_PARAMS* host_parameters(const cudaHostNodeParams* parameters) {
  return reinterpret_cast<const CUDA_HOST_NODE_PARAMS*>(parameters);
}

}  // namespace

cudaError_t CUDARTAPI cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                             const cudaGraphNode_t* dependencies, size_t count,
                                             const struct cudaKernelNodeParams* parameters) {
  return with_parameters<CUDA_KERNEL_NODE_PARAMS>(
      parameters, [&](const Driver& api, const auto& kernel, CUcontext) {
        return api.GraphAddKernelNode(node, graph, dependencies, count, &kernel);
      });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                                   struct cudaKernelNodeParams* parameters) {
  return in_context([&](const Driver& api) {
    CUDA_KERNEL_NODE_PARAMS found = {};
    if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = api.GraphKernelNodeGetParams(node, &found);
    if (result != CUDA_SUCCESS) return result;
    // Setting the parameters takes what this tells. A function of the driver API has no name here.
    parameters->func = found.kern != nullptr
                           ? const_cast<void*>(Registry::get().name_of(found.kern))
                           : static_cast<void*>(found.func);
    parameters->gridDim = dim3(found.gridDimX, found.gridDimY, found.gridDimZ);
    parameters->blockDim = dim3(found.blockDimX, found.blockDimY, found.blockDimZ);
    parameters->sharedMemBytes = found.sharedMemBytes;
    parameters->kernelParams = found.kernelParams;
    parameters->extra = found.extra;
    return result;
  });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                   const struct cudaKernelNodeParams* parameters) {
  return with_parameters<CUDA_KERNEL_NODE_PARAMS>(
      parameters, [&](const Driver& api, const auto& kernel, CUcontext) {
        return api.GraphKernelNodeSetParams(node, &kernel);
      });
}

cudaError_t CUDARTAPI
cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                 const struct cudaKernelNodeParams* parameters) {
  return with_parameters<CUDA_KERNEL_NODE_PARAMS>(
      parameters, [&](const Driver& api, const auto& kernel, CUcontext) {
        return api.GraphExecKernelNodeSetParams(executable, node, &kernel);
      });
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                             const cudaGraphNode_t* dependencies, size_t count,
                                             const struct cudaMemcpy3DParms* parameters) {
  return with_parameters<CUDA_MEMCPY3D>(
      parameters, [&](const Driver& api, const auto& copy, CUcontext context) {
        return api.GraphAddMemcpyNode(node, graph, dependencies, count, &copy, context);
      });
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                               const cudaGraphNode_t* dependencies, size_t count,
                                               void* target, const void* source, size_t size_bytes,
                                               enum cudaMemcpyKind kind) {
  return with_linear(target, source, size_bytes, kind,
                     [&](const Driver& api, const auto& copy, CUcontext context) {
                       return api.GraphAddMemcpyNode(node, graph, dependencies, count, &copy,
                                                     context);
                     });
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node,
                                                   const struct cudaMemcpy3DParms* parameters) {
  return with_parameters<CUDA_MEMCPY3D>(parameters,
                                        [&](const Driver& api, const auto& copy, CUcontext) {
                                          return api.GraphMemcpyNodeSetParams(node, &copy);
                                        });
}

cudaError_t CUDARTAPI cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t executable,
                                                       cudaGraphNode_t node,
                                                       const struct cudaMemcpy3DParms* parameters) {
  return with_parameters<CUDA_MEMCPY3D>(
      parameters, [&](const Driver& api, const auto& copy, CUcontext context) {
        return api.GraphExecMemcpyNodeSetParams(executable, node, &copy, context);
      });
}

cudaError_t CUDARTAPI cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t executable,
                                                         cudaGraphNode_t node, void* target,
                                                         const void* source, size_t size_bytes,
                                                         enum cudaMemcpyKind kind) {
  return with_linear(target, source, size_bytes, kind,
                     [&](const Driver& api, const auto& copy, CUcontext context) {
                       return api.GraphExecMemcpyNodeSetParams(executable, node, &copy, context);
                     });
}

cudaError_t CUDARTAPI cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                             const cudaGraphNode_t* dependencies, size_t count,
                                             const struct cudaMemsetParams* parameters) {
  return with_parameters<CUDA_MEMSET_NODE_PARAMS>(
      parameters, [&](const Driver& api, const auto& fill, CUcontext context) {
        return api.GraphAddMemsetNode(node, graph, dependencies, count, &fill, context);
      });
}

cudaError_t CUDARTAPI cudaGraphMemsetNodeGetParams(cudaGraphNode_t node,
                                                   struct cudaMemsetParams* parameters) {
  return in_context([&](const Driver& api) {
    CUDA_MEMSET_NODE_PARAMS found = {};
    if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = api.GraphMemsetNodeGetParams(node, &found);
    if (result != CUDA_SUCCESS) return result;
    *parameters = {};
    parameters->dst = to_pointer(found.dst);
    parameters->pitch = found.pitch;
    parameters->value = found.value;
    parameters->elementSize = found.elementSize;
    parameters->width = found.width;
    parameters->height = found.height;
    return result;
  });
}

cudaError_t CUDARTAPI cudaGraphMemsetNodeSetParams(cudaGraphNode_t node,
                                                   const struct cudaMemsetParams* parameters) {
  return with_parameters<CUDA_MEMSET_NODE_PARAMS>(
      parameters, [&](const Driver& api, const auto& fill, CUcontext) {
        return api.GraphMemsetNodeSetParams(node, &fill);
      });
}

cudaError_t CUDARTAPI cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t executable,
                                                       cudaGraphNode_t node,
                                                       const struct cudaMemsetParams* parameters) {
  return with_parameters<CUDA_MEMSET_NODE_PARAMS>(
      parameters, [&](const Driver& api, const auto& fill, CUcontext context) {
        return api.GraphExecMemsetNodeSetParams(executable, node, &fill, context);
      });
}

cudaError_t CUDARTAPI cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                           const cudaGraphNode_t* dependencies, size_t count,
                                           const struct cudaHostNodeParams* parameters) {
  return in_context([&](const Driver& api) {
    return api.GraphAddHostNode(node, graph, dependencies, count, host_parameters(parameters));
  });
}

cudaError_t CUDARTAPI cudaGraphHostNodeGetParams(cudaGraphNode_t node,
                                                 struct cudaHostNodeParams* parameters) {
  return in_context([&](const Driver& api) {
    return api.GraphHostNodeGetParams(node, reinterpret_cast<CUDA_HOST_NODE_PARAMS*>(parameters));
  });
}

cudaError_t CUDARTAPI cudaGraphHostNodeSetParams(cudaGraphNode_t node,
                                                 const struct cudaHostNodeParams* parameters) {
  return in_context([&](const Driver& api) {
    return api.GraphHostNodeSetParams(node, host_parameters(parameters));
  });
}

cudaError_t CUDARTAPI cudaGraphExecHostNodeSetParams(cudaGraphExec_t executable,
                                                     cudaGraphNode_t node,
                                                     const struct cudaHostNodeParams* parameters) {
  return in_context([&](const Driver& api) {
    return api.GraphExecHostNodeSetParams(executable, node, host_parameters(parameters));
  });
}

cudaError_t CUDARTAPI cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                            const cudaGraphNode_t* dependencies, size_t count) {
  return in_context(
      [&](const Driver& api) { return api.GraphAddEmptyNode(node, graph, dependencies, count); });
}

cudaError_t CUDARTAPI cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                 const cudaGraphNode_t* dependencies, size_t count,
                                                 cudaGraph_t child) {
  return in_context([&](const Driver& api) {
    return api.GraphAddChildGraphNode(node, graph, dependencies, count, child);
  });
}

cudaError_t CUDARTAPI cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* graph) {
  return in_context(
      [&](const Driver& api) { return api.GraphChildGraphNodeGetGraph(node, graph); });
}

cudaError_t CUDARTAPI cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                  const cudaGraphNode_t* dependencies, size_t count,
                                                  cudaEvent_t event) {
  return in_context([&](const Driver& api) {
    return api.GraphAddEventRecordNode(node, graph, dependencies, count, event);
  });
}

cudaError_t CUDARTAPI cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                const cudaGraphNode_t* dependencies, size_t count,
                                                cudaEvent_t event) {
  return in_context([&](const Driver& api) {
    return api.GraphAddEventWaitNode(node, graph, dependencies, count, event);
  });
}

cudaError_t CUDARTAPI cudaGraphAddMemFreeNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                              const cudaGraphNode_t* dependencies, size_t count,
                                              void* pointer) {
  return in_context([&](const Driver& api) {
    return api.GraphAddMemFreeNode(node, graph, dependencies, count, to_address(pointer));
  });
}
