// Memory of graphs and streams: freeing what a launch left allocated, and allocations and frees
// that a capture turns into nodes. See graph_memory.h.
#include "softgpu/driver/capture.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/graph_memory.h"

namespace softgpu::driver {

CUresult graph_memory_free(CUdeviceptr address, const StreamRef& stream) {
  GraphAllocationRef allocation;
  CUresult result = capture_order_check(*stream);
  if (result == CUDA_SUCCESS) result = GraphMemoryUse::free_begin(address, allocation);
  if (result != CUDA_SUCCESS) return result;
  return command_submit_return(stream, [allocation] { GraphMemoryUse::free_end(allocation); });
}

CUresult graph_memory_free(CUdeviceptr address, const ContextRef& context) {
  context_idle(context);
  GraphAllocationRef allocation;
  const CUresult result = GraphMemoryUse::free_begin(address, allocation);
  if (result == CUDA_SUCCESS) GraphMemoryUse::free_end(allocation);
  return result;
}

CUresult graph_memory_capture(const StreamRef& stream, const Gpu& gpu, std::size_t bytes,
                              CUdeviceptr& address) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.ordinal};
  params.bytesize = bytes;
  GraphAllocationRef allocation;
  CUresult result = GraphAllocation::create(params, allocation);
  if (result != CUDA_SUCCESS) return result;
  Command nothing = EmptyCommand{};
  Node* node = nullptr;
  result = capture_node(*stream, nothing, node);
  if (result != CUDA_SUCCESS) return result;
  if (node == nullptr) return CUDA_ERROR_ILLEGAL_STATE;  // the capture has just ended
  node->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  node->detail.allocation = allocation;
  allocation->owner = node->graph->id;
  allocation->show(true);
  address = allocation->address();
  return CUDA_SUCCESS;
}

CUresult graph_memory_capture_free(const StreamRef& stream, CUdeviceptr address) {
  const GraphAllocationRef allocation = GraphAllocation::find(address);
  if (allocation == nullptr || allocation->freed_by_owner || allocation->freed_by_other)
    return CUDA_ERROR_INVALID_VALUE;
  Command nothing = EmptyCommand{};
  Node* node = nullptr;
  const CUresult result = capture_node(*stream, nothing, node);
  if (result != CUDA_SUCCESS) return result;
  if (node == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  node->type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  node->detail.allocation = allocation;
  (allocation->owner == node->graph->id ? allocation->freed_by_owner : allocation->freed_by_other) =
      true;
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
