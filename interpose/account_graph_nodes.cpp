// What the allocation nodes of a graph take on each device, those of the graphs within it among
// them.
#include <string.h>

#include "interpose/account.h"

namespace sluice::interpose {
namespace {

// What the driver takes physical memory in. A guess too small shows in the account right after the
// call.
constexpr uint64_t kGrain = 2u << 20;
// Of graphs within graphs, which are walked on the program's stack.
constexpr int kDepthMax = 128;

bool node_add(CUgraphNode node, uint64_t* bytes, int depth);

// False when part of the graph could not be looked at.
bool graph_add(CUgraph graph, uint64_t* bytes, int depth) {
  size_t count = 0;
  if (depth == kDepthMax) return false;
  if (driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return true;
  auto* nodes = static_cast<CUgraphNode*>(pages_allocate(count * sizeof(CUgraphNode)));
  if (nodes == nullptr) return false;
  const size_t room = count;
  bool whole = true;
  if (driver.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS) {
    for (size_t i = 0; i < count && i < room; ++i) whole &= node_add(nodes[i], bytes, depth);
  }
  pages_free(nodes, room * sizeof(CUgraphNode));
  return whole;
}

// There the number of the place is none of a device's.
bool is_of_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

void allocation_add(CUgraphNode node, uint64_t* bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  memset(&params, 0, sizeof params);
  if (driver.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS) return;
  if (is_of_host(params.poolProps.location.type)) return;
  const int device = params.poolProps.location.id;
  if (device < 0 || device >= kDevicesMax) return;
  bytes[device] += (params.bytesize + kGrain - 1) / kGrain * kGrain;
}

bool node_add(CUgraphNode node, uint64_t* bytes, int depth) {
  CUgraphNodeType type;
  if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return true;
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) allocation_add(node, bytes);
  CUgraph child = nullptr;
  return type != CU_GRAPH_NODE_TYPE_GRAPH ||
         driver.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS ||
         graph_add(child, bytes, depth + 1);
}

}  // namespace

bool graph_nodes_sum(CUgraph graph, uint64_t* bytes_by_device) {
  return graph_add(graph, bytes_by_device, 0);
}

}  // namespace sluice::interpose
