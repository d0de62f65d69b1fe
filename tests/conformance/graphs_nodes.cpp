// Rows of family `graphs`: what nodes do and what they tell. Attributes and the forms that take any
// kind of node are in graphs_any.cpp.
#include "tests/conformance/graphs.h"

namespace conformance {
namespace {

CUDA_KERNEL_NODE_PARAMS kernel_params(CUfunction function, void** arguments) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = arguments;
  return params;
}

ROW(graphs, kernel_arguments_are_copied) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  CUdeviceptr to = word.device();
  unsigned value = 5;
  void* arguments[] = {&to, &value};
  graph.kernel(store.function(), arguments);
  value = 6;
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 5U);
}

ROW(graphs, kernel_params_are_told) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  CUdeviceptr to = word.device();
  unsigned value = 5;
  void* arguments[] = {&to, &value};
  auto given = kernel_params(store.function(), arguments);
  given.gridDimX = 3;
  given.blockDimY = 2;
  given.sharedMemBytes = 64;
  CUgraphNode node = nullptr;
  MUST(cuGraphAddKernelNode(&node, graph, nullptr, 0, &given));
  CUDA_KERNEL_NODE_PARAMS told{};
  MUST(cuGraphKernelNodeGetParams(node, &told));
  EXPECT_EQ(told.func, store.function());
  EXPECT_EQ(told.gridDimX, 3U);
  EXPECT_EQ(told.gridDimY, 1U);
  EXPECT_EQ(told.blockDimY, 2U);
  EXPECT_EQ(told.sharedMemBytes, 64U);
  ASSERT_NE(told.kernelParams, nullptr);
  EXPECT_NE(told.kernelParams, arguments) << "they are the node's";
  EXPECT_EQ(*static_cast<CUdeviceptr*>(told.kernelParams[0]), to);
  EXPECT_EQ(*static_cast<unsigned*>(told.kernelParams[1]), 5U);
  EXPECT_EQ(told.extra, nullptr);
}

ROW(graphs, kernel_buffer_is_told) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  struct {
    CUdeviceptr to;
    unsigned value;
  } buffer{word.device(), 8};
  std::size_t bytes = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  auto given = kernel_params(store.function(), nullptr);
  given.extra = extra;
  CUgraphNode node = nullptr;
  MUST(cuGraphAddKernelNode(&node, graph, nullptr, 0, &given));
  CUDA_KERNEL_NODE_PARAMS told{};
  MUST(cuGraphKernelNodeGetParams(node, &told));
  EXPECT_EQ(told.kernelParams, nullptr);
  EXPECT_NE(told.extra, nullptr);
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 8U);
}

ROW(graphs, kernel_arguments_in_both_forms_refused) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  CUdeviceptr to = word.device();
  unsigned value = 5;
  std::size_t bytes = 12;
  void* arguments[] = {&to, &value};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  auto given = kernel_params(store.function(), arguments);
  given.extra = extra;
  CUgraphNode node = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&node, graph, nullptr, 0, &given));
}

ROW(graphs, set_params_leave_instances_alone) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  const CUgraphNode node = graph.store(store.function(), word.device(), 1);
  const Instance before(graph);
  CUdeviceptr to = word.device();
  unsigned value = 2;
  void* arguments[] = {&to, &value};
  const auto params = kernel_params(store.function(), arguments);
  MUST(cuGraphKernelNodeSetParams(node, &params));
  const Instance after(graph);
  MUST(after.run());
  EXPECT_EQ(word.value(), 2U);
  MUST(before.run());
  EXPECT_EQ(word.value(), 1U);
}

ROW(graphs, captured_kernel_tells_its_params) {
  const Context context;
  const Store store;
  const Word word;
  const CUstream stream = stream_new();
  CUgraph graph = nullptr;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(store(word, 4, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  const Nodes nodes = nodes_of(graph);
  ASSERT_EQ(nodes.size(), 1U);
  CUDA_KERNEL_NODE_PARAMS told{};
  MUST(cuGraphKernelNodeGetParams(nodes[0], &told));
  EXPECT_EQ(told.func, store.function());
  EXPECT_EQ(told.blockDimX, 1U);
  ASSERT_NE(told.kernelParams, nullptr);
  EXPECT_EQ(*static_cast<unsigned*>(told.kernelParams[1]), 4U);
  MUST(cuGraphDestroy(graph));
}

ROW(graphs, memset_params_are_told) {
  const Context context;
  CUdeviceptr memory = 0;
  MUST(cuMemAlloc(&memory, 1024));
  Build graph(context);
  CUDA_MEMSET_NODE_PARAMS given{};
  given.dst = memory;
  given.pitch = 64;
  given.value = 0x1234;
  given.elementSize = 2;
  given.width = 3;
  given.height = 4;
  CUgraphNode node = nullptr;
  MUST(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &given, context));
  CUDA_MEMSET_NODE_PARAMS told{};
  MUST(cuGraphMemsetNodeGetParams(node, &told));
  EXPECT_EQ(told.dst, memory);
  EXPECT_EQ(told.pitch, 64U);
  EXPECT_EQ(told.value, 0x1234U);
  EXPECT_EQ(told.elementSize, 2U);
  EXPECT_EQ(told.width, 3U);
  EXPECT_EQ(told.height, 4U);
}

ROW(graphs, memset_element_size_checked) {
  const Context context;
  CUdeviceptr memory = 0;
  MUST(cuMemAlloc(&memory, 1024));
  Build graph(context);
  CUgraphNode node = nullptr;
  auto params = set_params(memory, 1);
  for (const unsigned size : {0U, 3U, 8U}) {
    params.elementSize = size;
    ANSWERS(CUDA_ERROR_INVALID_VALUE,
            cuGraphAddMemsetNode(&node, graph, nullptr, 0, &params, context));
  }
}

ROW(graphs, memcpy_params_are_told_and_set) {
  const Context context;
  const Word word;
  Build graph(context);
  const CUgraphNode node = graph.copy(word.device(), word.device() + 4, 4);
  CUDA_MEMCPY3D told{};
  MUST(cuGraphMemcpyNodeGetParams(node, &told));
  EXPECT_EQ(told.srcMemoryType, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(told.srcDevice, word.device());
  EXPECT_EQ(told.dstDevice, word.device() + 4);
  EXPECT_EQ(told.WidthInBytes, 4U);
  const auto other = copy_params(word.device() + 8, word.device(), 4);
  MUST(cuGraphMemcpyNodeSetParams(node, &other));
  MUST(cuGraphMemcpyNodeGetParams(node, &told));
  EXPECT_EQ(told.srcDevice, word.device() + 8);
  MUST(cuMemsetD32(word.device() + 8, 77, 1));
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 77U);
}

ROW(graphs, host_params_are_told_and_set) {
  const Context context;
  Build graph(context);
  int first = 0, second = 0;
  const CUhostFn count = [](void* data) { ++*static_cast<int*>(data); };
  const CUgraphNode node = graph.host(count, &first);
  CUDA_HOST_NODE_PARAMS told{};
  MUST(cuGraphHostNodeGetParams(node, &told));
  EXPECT_EQ(told.fn, count);
  EXPECT_EQ(told.userData, &first);
  const CUDA_HOST_NODE_PARAMS other{count, &second};
  MUST(cuGraphHostNodeSetParams(node, &other));
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
}

ROW(graphs, host_node_sees_what_is_before_it) {
  const Context context;
  const Store store;
  const Word word;
  struct Seen {
    const Word& word;
    unsigned value;
  } seen{word, 0};
  Build graph(context);
  const CUgraphNode before = graph.store(store.function(), word.device(), 3);
  const CUgraphNode host = graph.host(
      [](void* data) {
        auto* s = static_cast<Seen*>(data);
        s->value = s->word.value();
      },
      &seen, {before});
  graph.store(store.function(), word.device(), 4, {host});
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(seen.value, 3U);
  EXPECT_EQ(word.value(), 4U);
}

ROW(graphs, event_record_node_records) {
  const Context context;
  Gate gate;
  Word hold;
  Build graph(context);
  const CUevent event = event_new(), other = event_new();
  const CUgraphNode wait = graph.wait(hold, 1);
  CUgraphNode record = nullptr;
  MUST(cuGraphAddEventRecordNode(&record, graph, &wait, 1, other));
  CUevent told = nullptr;
  MUST(cuGraphEventRecordNodeGetEvent(record, &told));
  EXPECT_EQ(told, other);
  MUST(cuGraphEventRecordNodeSetEvent(record, event));
  const Instance instance(graph);
  const CUstream stream = stream_new();
  MUST(cuGraphLaunch(instance, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(other));
  hold.set(1);
  MUST(cuEventSynchronize(event));
  MUST(cuStreamSynchronize(stream));
}

ROW(graphs, event_wait_node_waits) {
  const Context context;
  const Store store;
  const Word word;
  const CUevent event = event_new(), other = event_new();
  Gate gate;
  Build graph(context);
  CUgraphNode wait = nullptr;
  MUST(cuGraphAddEventWaitNode(&wait, graph, nullptr, 0, other));
  graph.store(store.function(), word.device(), 1, {wait});
  CUevent told = nullptr;
  MUST(cuGraphEventWaitNodeGetEvent(wait, &told));
  EXPECT_EQ(told, other);
  MUST(cuGraphEventWaitNodeSetEvent(wait, event));
  const Instance instance(graph);
  const CUstream held = stream_new(), stream = stream_new();
  MUST(gate.hold(held));
  MUST(cuEventRecord(event, held));
  MUST(cuGraphLaunch(instance, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(word.value(), 0U);
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 1U);
}

ROW(graphs, batch_of_memory_operations) {
  const Context context;
  const Word word;
  Build graph(context);
  CUstreamBatchMemOpParams operations[2]{};
  for (unsigned i = 0; i < 2; ++i) {
    operations[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[i].writeValue.address = word.device();
    operations[i].writeValue.value = 10 + i;
  }
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params{context, 2, operations, 0};
  CUgraphNode node = nullptr;
  MUST(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
  operations[1].writeValue.value = 99;
  CUDA_BATCH_MEM_OP_NODE_PARAMS told{};
  MUST(cuGraphBatchMemOpNodeGetParams(node, &told));
  ASSERT_EQ(told.count, 2U);
  EXPECT_EQ(told.paramArray[1].writeValue.value, 11U) << "the array was copied";
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 11U) << "in their order";
}

ROW(graphs, batch_of_memory_operations_replaced) {
  const Context context;
  const Word word;
  Build graph(context);
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = word.device();
  operation.writeValue.value = 1;
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{context, 1, &operation, 0};
  CUgraphNode node = nullptr;
  MUST(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
  const Instance before(graph);
  operation.writeValue.value = 2;
  ANSWERS(CUDA_SUCCESS, cuGraphBatchMemOpNodeSetParams(node, &params));
  const Instance after(graph);
  MUST(after.run());
  EXPECT_EQ(word.value(), 2U);
  MUST(before.run());
  EXPECT_EQ(word.value(), 1U) << "what was instantiated keeps its own";
}

}  // namespace
}  // namespace conformance
