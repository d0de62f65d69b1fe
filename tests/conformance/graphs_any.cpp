// Rows of family `graphs`: nodes by their description of any kind, and attributes of kernel nodes.
#include "tests/conformance/graphs.h"

namespace conformance {
namespace {

ROW(graphs, params_of_another_type_refused) {
  const Context context;
  const Word word;
  Build graph(context);
  const CUgraphNode set = graph.set(word.device(), 1), empty = graph.empty();
  CUDA_KERNEL_NODE_PARAMS kernel{};
  CUDA_MEMSET_NODE_PARAMS memset_told{};
  CUgraph child = nullptr;
  CUevent event = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeGetParams(set, &kernel));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphMemsetNodeGetParams(empty, &memset_told));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphChildGraphNodeGetGraph(set, &child));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphEventWaitNodeGetEvent(set, &event));
}

ROW(graphs, any_node_is_added_by_its_description) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  CUgraphNode set = nullptr, kernel = nullptr;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset.dst = word.device() + 4;
  params.memset.value = 6;
  params.memset.elementSize = 4;
  params.memset.width = params.memset.height = 1;
  params.memset.ctx = context;
  MUST(cuGraphAddNode(&set, graph, nullptr, nullptr, 0, &params));
  CUdeviceptr to = word.device();
  unsigned value = 7;
  void* arguments[] = {&to, &value};
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel.func = store.function();
  params.kernel.gridDimX = params.kernel.gridDimY = params.kernel.gridDimZ = 1;
  params.kernel.blockDimX = params.kernel.blockDimY = params.kernel.blockDimZ = 1;
  params.kernel.kernelParams = arguments;
  MUST(cuGraphAddNode(&kernel, graph, &set, nullptr, 1, &params));
  value = 8;
  MUST(cuGraphNodeSetParams(kernel, &params));
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 8U);
  EXPECT_EQ(word.value64() >> 32, 6U);
}

ROW(graphs, description_of_another_type_refused) {
  const Context context;
  Build graph(context);
  const CUgraphNode empty = graph.empty();
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  params.host.fn = [](void*) {};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetParams(empty, &params));
  CUgraphNode node = nullptr;
  params.type = no_such<CUgraphNodeType>(99);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
}

ROW(graphs, description_must_be_zero_beyond_its_type) {
  const Context context;
  Build graph(context);
  CUgraphNode node = nullptr;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  params.host.fn = [](void*) {};
  params.reserved2 = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  params.reserved2 = 0;
  params.reserved1[28] = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  params.reserved1[28] = 0;
  ANSWERS(CUDA_SUCCESS, cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
}

ROW(graphs, kernel_attributes_are_kept) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  const CUgraphNode node = graph.store(store.function(), word.device(), 1);
  CUkernelNodeAttrValue value{}, told{};
  MUST(cuGraphKernelNodeGetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &told));
  EXPECT_EQ(told.cooperative, 0);
  value.cooperative = 1;
  MUST(cuGraphKernelNodeSetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
  MUST(cuGraphKernelNodeGetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &told));
  EXPECT_EQ(told.cooperative, 1);
  value = {};
  value.priority = -1;
  MUST(cuGraphKernelNodeSetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value));
  MUST(cuGraphKernelNodeGetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &told));
  EXPECT_EQ(told.priority, -1);
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 1U);
}

ROW(graphs, kernel_attributes_are_copied) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  const CUgraphNode from = graph.store(store.function(), word.device(), 1);
  const CUgraphNode to = graph.store(store.function(), word.device(), 2);
  CUkernelNodeAttrValue value{}, told{};
  value.cooperative = 1;
  MUST(cuGraphKernelNodeSetAttribute(from, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
  MUST(cuGraphKernelNodeCopyAttributes(to, from));
  MUST(cuGraphKernelNodeGetAttribute(to, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &told));
  EXPECT_EQ(told.cooperative, 1);
}

ROW(graphs, kernel_attributes_are_of_kernels) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  const CUgraphNode kernel = graph.store(store.function(), word.device(), 1);
  const CUgraphNode empty = graph.empty();
  CUkernelNodeAttrValue value{};
  EXPECT_NE(cuGraphKernelNodeGetAttribute(empty, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value),
            CUDA_SUCCESS);
  EXPECT_NE(cuGraphKernelNodeSetAttribute(empty, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value),
            CUDA_SUCCESS);
  ANSWERS(
      CUDA_ERROR_INVALID_VALUE,
      cuGraphKernelNodeGetAttribute(kernel, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
}

ROW(graphs, captured_kernel_has_the_priority_of_its_stream) {
  const Context context;
  const Store store;
  const Word word;
  int least = 0, greatest = 0, told = 0;
  MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
  const CUstream stream = stream_new(CU_STREAM_NON_BLOCKING, greatest);
  MUST(cuStreamGetPriority(stream, &told));
  CUgraph graph = nullptr;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(store(word, 4, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  const Nodes nodes = nodes_of(graph);
  ASSERT_EQ(nodes.size(), 1U);
  CUkernelNodeAttrValue value{};
  MUST(cuGraphKernelNodeGetAttribute(nodes[0], CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value));
  EXPECT_EQ(value.priority, told);
  MUST(cuGraphDestroy(graph));
}

}  // namespace
}  // namespace conformance
