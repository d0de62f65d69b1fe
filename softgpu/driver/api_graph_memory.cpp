// Entry points: allocation and free nodes, and the device's memory for graphs.
#include "softgpu/driver/api_graph.h"
#include "softgpu/driver/graph_memory.h"

using namespace softgpu::driver;

namespace {

CUresult pool_enter(CUdevice device, GraphPool*& pool, const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  Gpu* gpu = Process::get().gpu(device);
  if (gpu == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  pool = &GraphPool::of(*gpu);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                                std::size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return node_add({out, graph, after, nullptr, count}, [&](NodeSpec& spec) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : node_describe(*params, spec);
  });
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, CU_GRAPH_NODE_TYPE_MEM_ALLOC, node);
  if (result != CUDA_SUCCESS) return result;
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *params = node->detail.allocation->params();
  return CUDA_SUCCESS;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after,
                               std::size_t count, CUdeviceptr address) {
  return node_add({out, graph, after, nullptr, count},
                  [&](NodeSpec& spec) { return node_describe_free(address, spec); });
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr* address) {
  Node* node = nullptr;
  const CUresult result = node_enter(handle, CU_GRAPH_NODE_TYPE_MEM_FREE, node);
  if (result != CUDA_SUCCESS) return result;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *address = node->detail.allocation->address();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  GraphPool* pool = nullptr;
  const CUresult result = pool_enter(device, pool);
  if (result == CUDA_SUCCESS) pool->trim();
  return result;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                      void* value) {
  GraphPool* pool = nullptr;
  const CUresult result = pool_enter(device, pool);
  if (result != CUDA_SUCCESS) return result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pool->attribute_get(attribute, *static_cast<cuuint64_t*>(value));
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                      void* value) {
  GraphPool* pool = nullptr;
  const CUresult result = pool_enter(device, pool);
  if (result != CUDA_SUCCESS) return result;
  if (value == nullptr || *static_cast<const cuuint64_t*>(value) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return pool->attribute_reset(attribute);
}
