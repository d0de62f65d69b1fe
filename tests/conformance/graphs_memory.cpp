// Rows of family `graphs`: memory nodes - addresses, lifetimes, and the device's memory for graphs.
#include "tests/conformance/graphs.h"

namespace conformance {
namespace {

CUDA_MEM_ALLOC_NODE_PARAMS alloc_params(const Context& context, std::size_t bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, context.device()};
  params.bytesize = bytes;
  return params;
}

struct Allocated {
  CUgraphNode node = nullptr;
  CUdeviceptr address = 0;
};

Allocated allocate(CUgraph graph, const Context& context, std::size_t bytes = 1 << 20,
                   const Nodes& after = {}) {
  auto params = alloc_params(context, bytes);
  Allocated made;
  EXPECT_EQ(cuGraphAddMemAllocNode(&made.node, graph, after.data(), after.size(), &params),
            CUDA_SUCCESS);
  made.address = params.dptr;
  EXPECT_NE(made.address, 0U);
  return made;
}

CUgraphNode release(CUgraph graph, CUdeviceptr address, const Nodes& after) {
  CUgraphNode node = nullptr;
  EXPECT_EQ(cuGraphAddMemFreeNode(&node, graph, after.data(), after.size(), address), CUDA_SUCCESS);
  return node;
}

cuuint64_t amount(const Context& context, CUgraphMem_attribute attribute) {
  cuuint64_t value = 0;
  EXPECT_EQ(cuDeviceGetGraphMemAttribute(context.device(), attribute, &value), CUDA_SUCCESS);
  return value;
}

ROW(graphs, memory_address_is_known_at_once) {
  const Context context;
  Build graph(context);
  const Allocated made = allocate(graph, context, 4096);
  CUDA_MEM_ALLOC_NODE_PARAMS told{};
  MUST(cuGraphMemAllocNodeGetParams(made.node, &told));
  EXPECT_EQ(told.dptr, made.address);
  EXPECT_EQ(told.bytesize, 4096U);
  EXPECT_EQ(told.poolProps.location.id, context.device());
  const CUgraphNode freed = release(graph, made.address, {made.node});
  CUdeviceptr address = 0;
  MUST(cuGraphMemFreeNodeGetParams(freed, &address));
  EXPECT_EQ(address, made.address);
  CUgraphNodeType type{};
  MUST(cuGraphNodeGetType(made.node, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  MUST(cuGraphNodeGetType(freed, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEM_FREE);
}

ROW(graphs, memory_params_checked) {
  const Context context;
  Build graph(context);
  CUgraphNode node = nullptr;
  auto params = alloc_params(context, 0);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params));
  params = alloc_params(context, 64);
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params));
  params = alloc_params(context, 64);
  params.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_NE(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params), CUDA_SUCCESS);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&node, graph, nullptr, 0, nullptr));
}

ROW(graphs, memory_lives_between_its_nodes) {
  const Context context;
  const Word word;
  Build graph(context);
  const Allocated made = allocate(graph, context);
  const CUgraphNode set = graph.set(made.address, 6, {made.node});
  const CUgraphNode copy = graph.copy(made.address, word.device(), 4, {set});
  release(graph, made.address, {copy});
  const Instance instance(graph);
  for (int i = 0; i < 3; ++i) {
    MUST(cuMemsetD32(word.device(), 0, 1));
    MUST(instance.run());
    EXPECT_EQ(word.value(), 6U);
  }
}

ROW(graphs, memory_free_checked) {
  const Context context;
  Build graph(context);
  const Allocated made = allocate(graph, context);
  CUdeviceptr other = 0;
  MUST(cuMemAlloc(&other, 4096));
  CUgraphNode node = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, nullptr, 0, other));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, nullptr, 0, 0));
  release(graph, made.address, {made.node});
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuGraphAddMemFreeNode(&node, graph, &made.node, 1, made.address));
  Build second(context);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, second, nullptr, 0, made.address));
}

ROW(graphs, memory_not_freed_outlives_the_launch) {
  const Context context;
  Build graph(context);
  const Allocated made = allocate(graph, context);
  graph.set(made.address, 8, {made.node});
  const Instance instance(graph);
  const CUstream stream = stream_new();
  MUST(cuGraphLaunch(instance, stream));
  MUST(cuMemsetD32Async(made.address + 4, 9, 1, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word_at(made.address), 8U);
  EXPECT_EQ(word_at(made.address + 4), 9U);
  MUST(cuMemFreeAsync(made.address, stream));
  MUST(cuGraphLaunch(instance, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word_at(made.address), 8U) << "the address is the same";
  MUST(cuMemFree(made.address));
}

ROW(graphs, memory_not_freed_forbids_a_launch) {
  const Context context;
  Build graph(context);
  const Allocated made = allocate(graph, context);
  const Instance instance(graph);
  MUST(instance.run());
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(instance, nullptr));
  MUST(cuMemFree(made.address));
  ANSWERS(CUDA_SUCCESS, instance.run());
  MUST(cuMemFree(made.address));
}

ROW(graphs, memory_is_not_freed_by_a_later_node) {
  const Context context;
  Build graph(context);
  const Allocated made = allocate(graph, context);
  const Instance instance(graph);
  CUgraphNode node = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuGraphAddMemFreeNode(&node, graph, &made.node, 1, made.address));
  MUST(instance.run());
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(instance, nullptr));
  ANSWERS(CUDA_SUCCESS, cuMemFree(made.address));
}

ROW(graphs, memory_is_freed_by_the_next_launch) {
  const Context context;
  Build graph(context);
  const Allocated made = allocate(graph, context);
  graph.set(made.address, 4, {made.node});
  const Instance instance(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  for (int i = 0; i < 3; ++i) MUST(instance.run());
  EXPECT_EQ(word_at(made.address), 4U);
  MUST(cuMemFree(made.address));
}

ROW(graphs, memory_is_freed_by_another_graph) {
  const Context context;
  const Word word;
  Build graph(context), other(context);
  const Allocated made = allocate(graph, context);
  graph.set(made.address, 3, {made.node});
  const CUgraphNode copy = other.copy(made.address, word.device(), 4);
  release(other, made.address, {copy});
  const Instance first(graph), second(other);
  for (int i = 0; i < 2; ++i) {
    MUST(first.run());
    MUST(second.run());
    EXPECT_EQ(word.value(), 3U);
  }
  EXPECT_NE(cuGraphLaunch(second, nullptr), CUDA_SUCCESS) << "there is nothing to free";
}

ROW(graphs, memory_freed_inside_is_not_freed_outside) {
  const Context context;
  Build graph(context);
  const Allocated made = allocate(graph, context);
  release(graph, made.address, {made.node});
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_NE(cuMemFree(made.address), CUDA_SUCCESS);
  EXPECT_NE(cuMemFreeAsync(made.address, nullptr), CUDA_SUCCESS);
}

ROW(graphs, memory_nodes_stay) {
  const Context context;
  Build graph(context);
  const Allocated made = allocate(graph, context);
  const CUgraphNode after = graph.empty({made.node});
  EXPECT_NE(cuGraphDestroyNode(after), CUDA_SUCCESS);
  EXPECT_NE(cuGraphDestroyNode(made.node), CUDA_SUCCESS);
  EXPECT_NE(cuGraphRemoveDependencies(graph, &made.node, &after, nullptr, 1), CUDA_SUCCESS);
  EXPECT_EQ(nodes_of(graph).size(), 2U);
}

ROW(graphs, memory_params_stay) {
  const Context context;
  Build graph(context);
  const Allocated made = allocate(graph, context);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, context.device()};
  params.alloc.bytesize = 64;
  EXPECT_NE(cuGraphNodeSetParams(made.node, &params), CUDA_SUCCESS);
  const Instance instance(graph);
  EXPECT_NE(cuGraphExecNodeSetParams(instance, made.node, &params), CUDA_SUCCESS);
}

ROW(graphs, memory_forbids_copies_of_the_graph) {
  const Context context;
  Build graph(context), parent(context);
  allocate(graph, context);
  CUgraph clone = nullptr;
  EXPECT_NE(cuGraphClone(&clone, graph), CUDA_SUCCESS);
  CUgraphNode node = nullptr;
  EXPECT_NE(cuGraphAddChildGraphNode(&node, parent, nullptr, 0, graph), CUDA_SUCCESS);
}

ROW(graphs, memory_forbids_a_second_instance) {
  const Context context;
  Build graph(context);
  allocate(graph, context);
  CUgraphExec second = nullptr;
  {
    const Instance first(graph);
    EXPECT_NE(cuGraphInstantiate(&second, graph, 0), CUDA_SUCCESS);
  }
  ANSWERS(CUDA_SUCCESS, cuGraphInstantiate(&second, graph, 0));
  MUST(cuGraphExecDestroy(second));
}

ROW(graphs, memory_graph_moves_into_its_parent) {
  const Context context;
  const Word word;
  Build parent(context);
  CUgraph child = nullptr;
  MUST(cuGraphCreate(&child, 0));
  const Allocated made = allocate(child, context);
  CUgraphNode set = nullptr, copy = nullptr, node = nullptr;
  const auto value = set_params(made.address, 2);
  const auto out = copy_params(made.address, word.device(), 4);
  MUST(cuGraphAddMemsetNode(&set, child, &made.node, 1, &value, context));
  MUST(cuGraphAddMemcpyNode(&copy, child, &set, 1, &out, context));
  release(child, made.address, {copy});
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = child;
  params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  MUST(cuGraphAddNode(&node, parent, nullptr, nullptr, 0, &params));
  CUgraph told = nullptr;
  MUST(cuGraphChildGraphNodeGetGraph(node, &told));
  EXPECT_EQ(told, child);
  CUgraphExec exec = nullptr;
  EXPECT_NE(cuGraphInstantiate(&exec, child, 0), CUDA_SUCCESS);
  EXPECT_NE(cuGraphDestroy(child), CUDA_SUCCESS);
  const Instance instance(parent);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 2U);
}

ROW(graphs, memory_of_graphs_is_counted) {
  const Context context;
  const std::size_t bytes = 8 << 20;
  const cuuint64_t used = amount(context, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
  Build graph(context);
  const Allocated made = allocate(graph, context, bytes);
  EXPECT_EQ(amount(context, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), used) << "not launched";
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_GE(amount(context, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), used + bytes);
  EXPECT_GE(amount(context, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), used + bytes);
  EXPECT_GE(amount(context, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), used + bytes);
  MUST(cuMemFree(made.address));
}

ROW(graphs, memory_watermarks_go_back) {
  const Context context;
  const std::size_t bytes = 8 << 20;
  {
    Build graph(context);
    const Allocated made = allocate(graph, context, bytes);
    release(graph, made.address, {made.node});
    const Instance instance(graph);
    MUST(instance.run());
  }
  MUST(cuDeviceGraphMemTrim(context.device()));
  EXPECT_GE(amount(context, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), bytes);
  cuuint64_t value = 1;
  EXPECT_NE(
      cuDeviceSetGraphMemAttribute(context.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &value),
      CUDA_SUCCESS);
  value = 0;
  MUST(cuDeviceSetGraphMemAttribute(context.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &value));
  MUST(cuDeviceSetGraphMemAttribute(context.device(), CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value));
  EXPECT_LT(amount(context, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), bytes);
  EXPECT_LT(amount(context, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), bytes);
  EXPECT_NE(
      cuDeviceSetGraphMemAttribute(context.device(), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value),
      CUDA_SUCCESS);
}

ROW(graphs, memory_is_trimmed) {
  const Context context;
  const Word word;
  Build graph(context);
  const Allocated made = allocate(graph, context, 8 << 20);
  const CUgraphNode set = graph.set(made.address, 5, {made.node});
  const CUgraphNode copy = graph.copy(made.address, word.device(), 4, {set});
  release(graph, made.address, {copy});
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_GT(amount(context, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0U);
  MUST(cuDeviceGraphMemTrim(context.device()));
  EXPECT_EQ(amount(context, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0U);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 5U) << "a launch takes memory again";
}

ROW(graphs, memory_in_use_is_not_trimmed) {
  const Context context;
  const std::size_t bytes = 8 << 20;
  Build graph(context);
  const Allocated made = allocate(graph, context, bytes);
  graph.set(made.address, 7, {made.node});
  const Instance instance(graph);
  MUST(instance.run());
  MUST(cuDeviceGraphMemTrim(context.device()));
  EXPECT_GE(amount(context, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), bytes);
  EXPECT_EQ(word_at(made.address), 7U);
  MUST(cuMemFree(made.address));
}

ROW(graphs, memory_is_taken_from_the_device) {
  const Context context;
  const std::size_t bytes = 64 << 20;
  Build graph(context);
  const Allocated made = allocate(graph, context, bytes);
  release(graph, made.address, {made.node});
  const Instance instance(graph);
  std::size_t before = 0, after = 0, total = 0;
  MUST(cuMemGetInfo(&before, &total));
  MUST(cuGraphUpload(instance, nullptr));
  MUST(cuStreamSynchronize(nullptr));
  MUST(instance.run());
  MUST(cuMemGetInfo(&after, &total));
  EXPECT_LE(after + bytes, before);
  MUST(cuDeviceGraphMemTrim(context.device()));
  MUST(cuMemGetInfo(&after, &total));
  EXPECT_GT(after + bytes, before);
}

ROW(graphs, captured_allocation_becomes_nodes) {
  const Context context;
  const Word word;
  const CUstream stream = stream_new();
  CUdeviceptr address = 0;
  CUgraph graph = nullptr;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemAllocAsync(&address, 4096, stream));
  MUST(cuMemsetD32Async(address, 12, 1, stream));
  MUST(cuMemcpyDtoDAsync(word.device(), address, 4, stream));
  MUST(cuMemFreeAsync(address, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  std::vector<CUgraphNodeType> types;
  for (const CUgraphNode node : nodes_of(graph)) {
    CUgraphNodeType type{};
    MUST(cuGraphNodeGetType(node, &type));
    types.push_back(type);
  }
  EXPECT_EQ(std::count(types.begin(), types.end(), CU_GRAPH_NODE_TYPE_MEM_ALLOC), 1);
  EXPECT_EQ(std::count(types.begin(), types.end(), CU_GRAPH_NODE_TYPE_MEM_FREE), 1);
  {
    const Instance instance(graph);
    for (int i = 0; i < 2; ++i) MUST(instance.run(stream));
  }
  EXPECT_EQ(word.value(), 12U);
  MUST(cuGraphDestroy(graph));
}

ROW(graphs, captured_allocation_is_where_its_pool_is) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Context context;
  const CUstream stream = stream_new();
  for (const int device : {1, 0}) {
    CUmemoryPool pool = nullptr;
    CUdeviceptr address = 0;
    CUgraph graph = nullptr;
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    MUST(cuDeviceGetDefaultMemPool(&pool, device));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuMemAllocFromPoolAsync(&address, 4096, pool, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphMemAllocNodeGetParams(nodes_of(graph).at(0), &params));
    EXPECT_EQ(params.poolProps.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    EXPECT_EQ(params.poolProps.location.id, device);
    EXPECT_EQ(params.dptr, address);
    MUST(cuGraphDestroy(graph));
  }
}

}  // namespace
}  // namespace conformance
