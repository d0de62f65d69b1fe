// Copy nodes by other means than a 3D description: linear ones, to and from device variables; and
// the parameters of a copy node as the runtime describes them.
#include "softgpu/runtime/array.h"
#include "softgpu/runtime/copy.h"

using namespace softgpu::runtime;

namespace {

/// Runs `body(place)` with the address in a device variable that is one side of a copy.
template <class Body>
cudaError_t with_symbol(const void* symbol, size_t offset, size_t size_bytes, Body&& body) {
  return in_context([&](const Driver&) {
    void* place = nullptr;
    const cudaError_t error = symbol_place(symbol, offset, size_bytes, &place);
    return error != cudaSuccess ? error : body(place);
  });
}

cudaMemcpyKind kind_of(CUmemorytype source, CUmemorytype target) {
  if (source == CU_MEMORYTYPE_UNIFIED || target == CU_MEMORYTYPE_UNIFIED) return cudaMemcpyDefault;
  const bool from_host = source == CU_MEMORYTYPE_HOST, to_host = target == CU_MEMORYTYPE_HOST;
  if (from_host) return to_host ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice;
  return to_host ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
}

/// One side of the driver's description in the runtime's terms.
struct RuntimeSide {
  cudaArray_t array = nullptr;
  cudaPos position = {};
  cudaPitchedPtr memory = {};
};

RuntimeSide runtime_side(CUmemorytype type, CUarray array, const void* host, CUdeviceptr device,
                         size_t x_bytes, size_t y, size_t z, size_t pitch, size_t height,
                         size_t element) {
  RuntimeSide side;
  side.position = {x_bytes, y, z};
  if (type == CU_MEMORYTYPE_ARRAY) {
    side.array = reinterpret_cast<cudaArray_t>(array);
    side.position.x /= element;
    return side;
  }
  void* pointer = type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host) : to_pointer(device);
  side.memory = {pointer, pitch, pitch, height};
  return side;
}

}  // namespace

cudaError_t CUDARTAPI cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node,
                                                   struct cudaMemcpy3DParms* parameters) {
  return in_context([&](const Driver& api) {
    CUDA_MEMCPY3D copy = {};
    if (parameters == nullptr) return cudaErrorInvalidValue;
    const CUresult result = api.GraphMemcpyNodeGetParams(node, &copy);
    if (result != CUDA_SUCCESS) return to_error(result);
    size_t element = 1;
    const bool from_array = copy.srcMemoryType == CU_MEMORYTYPE_ARRAY;
    if (from_array || copy.dstMemoryType == CU_MEMORYTYPE_ARRAY) {
      const CUarray array = from_array ? copy.srcArray : copy.dstArray;
      const cudaError_t error = element_bytes(reinterpret_cast<cudaArray_t>(array), &element);
      if (error != cudaSuccess) return error;
    }
    const RuntimeSide from = runtime_side(copy.srcMemoryType, copy.srcArray, copy.srcHost,
                                          copy.srcDevice, copy.srcXInBytes, copy.srcY, copy.srcZ,
                                          copy.srcPitch, copy.srcHeight, element);
    const RuntimeSide to = runtime_side(copy.dstMemoryType, copy.dstArray, copy.dstHost,
                                        copy.dstDevice, copy.dstXInBytes, copy.dstY, copy.dstZ,
                                        copy.dstPitch, copy.dstHeight, element);
    *parameters = {from.array,
                   from.position,
                   from.memory,
                   to.array,
                   to.position,
                   to.memory,
                   {copy.WidthInBytes / element, copy.Height, copy.Depth},
                   kind_of(copy.srcMemoryType, copy.dstMemoryType)};
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* target,
                                                     const void* source, size_t size_bytes,
                                                     enum cudaMemcpyKind kind) {
  return with_linear(target, source, size_bytes, kind,
                     [&](const Driver& api, const CUDA_MEMCPY3D& copy, CUcontext) {
                       return api.GraphMemcpyNodeSetParams(node, &copy);
                     });
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNodeToSymbol(cudaGraphNode_t* node, cudaGraph_t graph,
                                                     const cudaGraphNode_t* dependencies,
                                                     size_t count, const void* symbol,
                                                     const void* source, size_t size_bytes,
                                                     size_t offset, enum cudaMemcpyKind kind) {
  return with_symbol(symbol, offset, size_bytes, [&](void* place) {
    return cudaGraphAddMemcpyNode1D(node, graph, dependencies, count, place, source, size_bytes,
                                    kind);
  });
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNodeFromSymbol(cudaGraphNode_t* node, cudaGraph_t graph,
                                                       const cudaGraphNode_t* dependencies,
                                                       size_t count, void* target,
                                                       const void* symbol, size_t size_bytes,
                                                       size_t offset, enum cudaMemcpyKind kind) {
  return with_symbol(symbol, offset, size_bytes, [&](void* place) {
    return cudaGraphAddMemcpyNode1D(node, graph, dependencies, count, target, place, size_bytes,
                                    kind);
  });
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeSetParamsToSymbol(cudaGraphNode_t node, const void* symbol,
                                                           const void* source, size_t size_bytes,
                                                           size_t offset,
                                                           enum cudaMemcpyKind kind) {
  return with_symbol(symbol, offset, size_bytes, [&](void* place) {
    return cudaGraphMemcpyNodeSetParams1D(node, place, source, size_bytes, kind);
  });
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeSetParamsFromSymbol(cudaGraphNode_t node, void* target,
                                                             const void* symbol, size_t size_bytes,
                                                             size_t offset,
                                                             enum cudaMemcpyKind kind) {
  return with_symbol(symbol, offset, size_bytes, [&](void* place) {
    return cudaGraphMemcpyNodeSetParams1D(node, target, place, size_bytes, kind);
  });
}

cudaError_t CUDARTAPI cudaGraphExecMemcpyNodeSetParamsToSymbol(
    cudaGraphExec_t executable, cudaGraphNode_t node, const void* symbol, const void* source,
    size_t size_bytes, size_t offset, enum cudaMemcpyKind kind) {
  return with_symbol(symbol, offset, size_bytes, [&](void* place) {
    return cudaGraphExecMemcpyNodeSetParams1D(executable, node, place, source, size_bytes, kind);
  });
}

cudaError_t CUDARTAPI cudaGraphExecMemcpyNodeSetParamsFromSymbol(cudaGraphExec_t executable,
                                                                 cudaGraphNode_t node, void* target,
                                                                 const void* symbol,
                                                                 size_t size_bytes, size_t offset,
                                                                 enum cudaMemcpyKind kind) {
  return with_symbol(symbol, offset, size_bytes, [&](void* place) {
    return cudaGraphExecMemcpyNodeSetParams1D(executable, node, target, place, size_bytes, kind);
  });
}
