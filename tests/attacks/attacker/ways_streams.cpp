// Ways to take memory in stream order: pools of every kind, graphs with allocations, captures.
#include <unistd.h>

#include "tests/attacks/attacker/attack.h"

namespace attacks {
namespace {

constexpr std::uint64_t kKeepAll = ~std::uint64_t{0};

CUresult pool_create(CUmemoryPool& pool, bool shared, bool keeps = true) {
  CUmemPoolProps wish{};
  wish.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}};
  if (shared) wish.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUresult result = cuMemPoolCreate(&pool, &wish);
  cuuint64_t threshold = kKeepAll;
  if (result == CUDA_SUCCESS && keeps)
    (void)cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  return result;
}

CUresult take_async(std::size_t bytes) {
  CUdeviceptr at = 0;
  const CUresult result = cuMemAllocAsync(&at, bytes, nullptr);
  return result == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : result;
}

/// Every attempt in a stream of its own, and nothing is waited for.
CUresult take_async_unwaited(std::size_t bytes) {
  static thread_local CUstream streams[8] = {};
  static thread_local unsigned turn = 0;
  CUstream& stream = streams[turn++ % 8];
  if (stream == nullptr) (void)cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  CUdeviceptr at = 0;
  return cuMemAllocAsync(&at, bytes, stream);
}

CUresult take_pool(std::size_t bytes) {
  static CUmemoryPool pool = [] {
    CUmemoryPool made = nullptr;
    (void)pool_create(made, false);
    return made;
  }();
  CUdeviceptr at = 0;
  return cuMemAllocFromPoolAsync(&at, bytes, pool, nullptr);
}

CUresult take_many_pools(std::size_t bytes) {
  CUmemoryPool pool = nullptr;
  CUdeviceptr at = 0;
  const CUresult result = pool_create(pool, false);
  return result == CUDA_SUCCESS ? cuMemAllocFromPoolAsync(&at, bytes, pool, nullptr) : result;
}

/// What was freed lies in the pool in pieces that serve nothing larger.
CUresult take_pool_pieces(std::size_t bytes) {
  static CUmemoryPool pool = [] {
    CUmemoryPool made = nullptr;
    (void)pool_create(made, false);
    return made;
  }();
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  CUdeviceptr large = 0;
  CUresult result = cuMemAllocFromPoolAsync(&first, bytes, pool, nullptr);
  if (result == CUDA_SUCCESS)
    result = cuMemAllocFromPoolAsync(&second, bytes / 2 + 1, pool, nullptr);
  if (result == CUDA_SUCCESS) result = cuMemFreeAsync(first, nullptr);
  return result == CUDA_SUCCESS ? cuMemAllocFromPoolAsync(&large, bytes + bytes / 2, pool, nullptr)
                                : result;
}

CUresult take_pool_exported(std::size_t bytes) {
  CUmemoryPool pool = nullptr;
  CUdeviceptr at = 0;
  int descriptor = -1;
  CUresult result = pool_create(pool, true);
  if (result == CUDA_SUCCESS) result = cuMemAllocFromPoolAsync(&at, bytes, pool, nullptr);
  if (result == CUDA_SUCCESS) result = cuStreamSynchronize(nullptr);
  CUmemPoolPtrExportData data{};
  if (result == CUDA_SUCCESS)
    result = cuMemPoolExportToShareableHandle(&descriptor, pool,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return result == CUDA_SUCCESS ? cuMemPoolExportPointer(&data, at) : result;
}

/// The pool is destroyed while an allocation of it is in use.
CUresult take_pool_destroyed(std::size_t bytes) {
  CUmemoryPool pool = nullptr;
  CUdeviceptr at = 0;
  CUresult result = pool_create(pool, false);
  if (result == CUDA_SUCCESS) result = cuMemAllocFromPoolAsync(&at, bytes, pool, nullptr);
  if (result == CUDA_SUCCESS) result = cuStreamSynchronize(nullptr);
  (void)cuMemPoolDestroy(pool);
  return result;
}

/// The device's own pool is exchanged before every allocation.
CUresult take_pool_exchanged(std::size_t bytes) {
  CUmemoryPool pool = nullptr;
  CUresult result = pool_create(pool, false);
  if (result == CUDA_SUCCESS) result = cuDeviceSetMemPool(options.device, pool);
  return result == CUDA_SUCCESS ? take_async(bytes) : result;
}

/// Freed in one stream, and asked for again in another before that has happened.
CUresult take_pool_unordered(std::size_t bytes) {
  static thread_local CUstream streams[2] = {};
  for (CUstream& stream : streams)
    if (stream == nullptr) (void)cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  CUdeviceptr at = 0;
  CUdeviceptr next = 0;
  CUresult result = cuMemAllocAsync(&at, bytes, streams[0]);
  if (result == CUDA_SUCCESS) result = cuMemFreeAsync(at, streams[0]);
  return result == CUDA_SUCCESS ? cuMemAllocAsync(&next, bytes, streams[1]) : result;
}

CUresult node_add(CUgraph graph, std::size_t bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS wish{};
  wish.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}};
  wish.bytesize = bytes;
  CUgraphNode node = nullptr;
  return cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &wish);
}

CUresult graph_exec(CUgraph graph, CUgraphExec& exec, unsigned long long flags = 0) {
  return cuGraphInstantiate(&exec, graph, flags);
}

CUresult take_graph(std::size_t bytes) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUresult result = cuGraphCreate(&graph, 0);
  if (result == CUDA_SUCCESS) result = node_add(graph, bytes);
  if (result == CUDA_SUCCESS) result = graph_exec(graph, exec);
  if (result == CUDA_SUCCESS) result = cuGraphLaunch(exec, nullptr);
  return result == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : result;
}

CUresult take_graph_many_nodes(std::size_t bytes) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUresult result = cuGraphCreate(&graph, 0);
  for (int n = 0; n < 8 && result == CUDA_SUCCESS; ++n) result = node_add(graph, bytes / 8 + 1);
  if (result == CUDA_SUCCESS) result = graph_exec(graph, exec);
  return result == CUDA_SUCCESS ? cuGraphLaunch(exec, nullptr) : result;
}

CUresult take_graph_uploaded(std::size_t bytes) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUresult result = cuGraphCreate(&graph, 0);
  if (result == CUDA_SUCCESS) result = node_add(graph, bytes);
  if (result == CUDA_SUCCESS) result = graph_exec(graph, exec);
  return result == CUDA_SUCCESS ? cuGraphUpload(exec, nullptr) : result;
}

CUresult take_graph_relaunched(std::size_t bytes) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUresult result = cuGraphCreate(&graph, 0);
  if (result == CUDA_SUCCESS) result = node_add(graph, bytes);
  if (result == CUDA_SUCCESS)
    result = graph_exec(graph, exec, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  for (int n = 0; n < 3 && result == CUDA_SUCCESS; ++n) result = cuGraphLaunch(exec, nullptr);
  return result == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : result;
}

/// The graph and what was made of it are destroyed; the allocation stays.
CUresult take_graph_destroyed(std::size_t bytes) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUresult result = cuGraphCreate(&graph, 0);
  if (result == CUDA_SUCCESS) result = node_add(graph, bytes);
  if (result == CUDA_SUCCESS) result = graph_exec(graph, exec);
  if (result == CUDA_SUCCESS) result = cuGraphLaunch(exec, nullptr);
  (void)cuStreamSynchronize(nullptr);
  if (exec != nullptr) (void)cuGraphExecDestroy(exec);
  if (graph != nullptr) (void)cuGraphDestroy(graph);
  return result;
}

CUresult take_graph_child(std::size_t bytes) {
  CUgraph inner = nullptr;
  CUgraph outer = nullptr;
  CUgraphExec exec = nullptr;
  CUresult result = cuGraphCreate(&inner, 0);
  if (result == CUDA_SUCCESS) result = node_add(inner, bytes);
  if (result == CUDA_SUCCESS) result = cuGraphCreate(&outer, 0);
  CUgraphNodeParams child{};
  child.type = CU_GRAPH_NODE_TYPE_GRAPH;
  child.graph.graph = inner;
  child.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;  // only a moved child may allocate
  CUgraphNode node = nullptr;
  if (result == CUDA_SUCCESS) result = cuGraphAddNode(&node, outer, nullptr, nullptr, 0, &child);
  if (result == CUDA_SUCCESS) result = graph_exec(outer, exec);
  return result == CUDA_SUCCESS ? cuGraphLaunch(exec, nullptr) : result;
}

CUresult take_captured(std::size_t bytes) {
  static thread_local CUstream stream = nullptr;
  if (stream == nullptr) (void)cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUdeviceptr at = 0;
  CUresult result = cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result == CUDA_SUCCESS) result = cuMemAllocAsync(&at, bytes, stream);
  const CUresult ended = cuStreamEndCapture(stream, &graph);
  if (result == CUDA_SUCCESS) result = ended;
  if (result == CUDA_SUCCESS) result = graph_exec(graph, exec);
  if (result == CUDA_SUCCESS) result = cuGraphLaunch(exec, stream);
  return result == CUDA_SUCCESS ? cuStreamSynchronize(stream) : result;
}

/// Plain memory is taken while the stream captures, where that is allowed.
CUresult take_while_capturing(std::size_t bytes) {
  static thread_local CUstream stream = nullptr;
  if (stream == nullptr) (void)cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  CUgraph graph = nullptr;
  CUdeviceptr at = 0;
  CUresult result = cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result == CUDA_SUCCESS) result = cuMemAlloc(&at, bytes);
  (void)cuStreamEndCapture(stream, &graph);
  return result;
}

}  // namespace

const Way kStreamWays[] = {{"async", take_async},
                           {"async_unwaited", take_async_unwaited},
                           {"pool", take_pool},
                           {"many_pools", take_many_pools},
                           {"pool_pieces", take_pool_pieces},
                           {"pool_exported", take_pool_exported},
                           {"pool_destroyed", take_pool_destroyed},
                           {"pool_exchanged", take_pool_exchanged},
                           {"pool_unordered", take_pool_unordered},
                           {"graph", take_graph},
                           {"graph_many_nodes", take_graph_many_nodes},
                           {"graph_uploaded", take_graph_uploaded},
                           {"graph_relaunched", take_graph_relaunched},
                           {"graph_destroyed", take_graph_destroyed},
                           {"graph_child", take_graph_child},
                           {"captured", take_captured},
                           {"while_capturing", take_while_capturing},
                           {nullptr, nullptr}};

}  // namespace attacks
