// Rows of family `graphs`: changing instances - by single nodes and after the example of another
// graph - and what cannot be changed.
#include "tests/conformance/graphs.h"

namespace conformance {
namespace {

struct Update {
  CUresult result = CUDA_SUCCESS;
  CUgraphExecUpdateResultInfo info{};
};

Update update(CUgraphExec exec, CUgraph graph) {
  Update update;
  update.info = {no_such<CUgraphExecUpdateResult>(99), reinterpret_cast<CUgraphNode>(&update),
                 reinterpret_cast<CUgraphNode>(&update)};
  update.result = cuGraphExecUpdate(exec, graph, &update.info);
  return update;
}

void expect_refused(const Update& update, CUgraphExecUpdateResult why, CUgraphNode node) {
  EXPECT_EQ(update.result, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(update.info.result, why);
  EXPECT_EQ(update.info.errorNode, node);
}

ROW(graphs, update_takes_all_parameters) {
  const Context context;
  const Store store;
  const Word a, b;
  Build graph(context), other(context);
  const CUgraphNode set = graph.set(a.device(), 1);
  graph.store(store.function(), b.device(), 2, {set});
  other.store(store.function(), b.device(), 4, {other.set(a.device(), 3)});
  const Instance instance(graph);
  const Update done = update(instance, other);
  EXPECT_EQ(done.result, CUDA_SUCCESS);
  EXPECT_EQ(done.info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  MUST(instance.run());
  EXPECT_EQ(a.value(), 3U);
  EXPECT_EQ(b.value(), 4U);
  // The nodes it was made from still name its nodes.
  const auto params = set_params(a.device(), 5);
  MUST(cuGraphExecMemsetNodeSetParams(instance, set, &params, context));
  MUST(instance.run());
  EXPECT_EQ(a.value(), 5U);
}

ROW(graphs, update_leaves_launches_alone) {
  const Context context;
  const Word word;
  Gate gate;
  Build graph(context), other(context);
  const CUgraphNode node = graph.set(word.device(), 1);
  other.set(word.device(), 2);
  const Instance instance(graph);
  const CUstream stream = stream_new();
  MUST(gate.hold(stream));
  MUST(cuGraphLaunch(instance, stream));
  EXPECT_EQ(update(instance, other).result, CUDA_SUCCESS);
  const auto params = set_params(word.device() + 4, 3);
  MUST(cuGraphExecMemsetNodeSetParams(instance, node, &params, context));
  MUST(cuGraphNodeSetEnabled(instance, node, 0));
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value64(), 1U);
}

ROW(graphs, update_needs_as_many_nodes) {
  const Context context;
  const Word word;
  Build graph(context), other(context);
  graph.set(word.device(), 1);
  other.set(word.device(), 2);
  other.empty();
  const Instance instance(graph);
  expect_refused(update(instance, other), CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 1U) << "nothing has changed";
}

ROW(graphs, update_needs_the_same_edges) {
  const Context context;
  const Word word;
  Build graph(context), other(context);
  {
    const CUgraphNode a = graph.set(word.device(), 1), b = graph.set(word.device() + 4, 1);
    graph.set(word.device() + 8, 1, {a, b});
  }
  const CUgraphNode a = other.set(word.device(), 2), b = other.set(word.device() + 4, 2, {a});
  const CUgraphNode c = other.set(word.device() + 8, 2, {b});
  const Instance instance(graph);
  expect_refused(update(instance, other), CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, c);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 1U);
}

ROW(graphs, update_needs_the_same_types) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context), other(context);
  graph.store(store.function(), word.device(), 1, {graph.empty()});
  const CUgraphNode changed = other.set(word.device(), 2, {other.empty()});
  const Instance instance(graph);
  expect_refused(update(instance, other), CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, changed);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 1U);
}

ROW(graphs, update_may_change_the_function) {
  const Context context;
  const Store store;
  const CUfunction add = kernel("add_one");
  const Word word;
  Build graph(context), other(context);
  graph.store(store.function(), word.device(), 5);
  other.store(add, word.device(), 1);
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(update(instance, other).result, CUDA_SUCCESS);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 6U);
}

ROW(graphs, update_keeps_the_context_of_a_function) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  graph.store(store.function(), word.device(), 1);
  const Instance instance(graph);
  {
    const Context second;
    const CUfunction foreign = kernel("store");
    Build other(second);
    const CUgraphNode node = other.store(foreign, word.device(), 2);
    MUST(cuCtxSetCurrent(context));
    expect_refused(update(instance, other), CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE,
                   node);
  }
  MUST(cuCtxSetCurrent(context));
  MUST(instance.run());
  EXPECT_EQ(word.value(), 1U);
}

ROW(graphs, update_keeps_cooperation) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context), other(context);
  graph.store(store.function(), word.device(), 1);
  const CUgraphNode node = other.store(store.function(), word.device(), 2);
  CUkernelNodeAttrValue value{};
  value.cooperative = 1;
  MUST(cuGraphKernelNodeSetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
  const Instance instance(graph);
  const Update refused = update(instance, other);
  EXPECT_EQ(refused.result, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(refused.info.errorNode, node);
}

ROW(graphs, update_keeps_node_priorities) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context), other(context);
  graph.store(store.function(), word.device(), 1);
  const CUgraphNode node = other.store(store.function(), word.device(), 2);
  CUkernelNodeAttrValue value{};
  value.priority = -1;
  MUST(cuGraphKernelNodeSetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value));
  const Instance by_node(graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY), by_stream(graph);
  expect_refused(update(by_node, other), CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED, node);
  EXPECT_EQ(update(by_stream, other).result, CUDA_SUCCESS);
}

ROW(graphs, update_keeps_the_shape_of_a_fill) {
  const Context context;
  CUdeviceptr memory = 0;
  MUST(cuMemAlloc(&memory, 4096));
  Build graph(context), wider(context), valued(context);
  CUDA_MEMSET_NODE_PARAMS params = set_params(memory, 1, 4);
  params.height = 3;
  params.pitch = 256;
  CUgraphNode node = nullptr, changed = nullptr;
  MUST(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &params, context));
  params.value = 2;
  MUST(cuGraphAddMemsetNode(&node, valued, nullptr, 0, &params, context));
  params.width = 5;
  MUST(cuGraphAddMemsetNode(&changed, wider, nullptr, 0, &params, context));
  const Instance instance(graph);
  expect_refused(update(instance, wider), CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, changed);
  EXPECT_EQ(update(instance, valued).result, CUDA_SUCCESS);
  MUST(instance.run());
  unsigned value = 0;
  MUST(cuMemcpyDtoH(&value, memory, 4));
  EXPECT_EQ(value, 2U);
}

ROW(graphs, update_keeps_the_kind_of_a_copy) {
  const Context context;
  CUdeviceptr memory = 0;
  MUST(cuMemAlloc(&memory, 64));
  void* host = nullptr;
  MUST(cuMemHostAlloc(&host, 64, 0));
  Build graph(context), other(context);
  graph.copy(memory, memory + 8, 4);
  CUDA_MEMCPY3D params = copy_params(0, memory, 4);
  params.srcMemoryType = CU_MEMORYTYPE_HOST;
  params.srcHost = host;
  CUgraphNode node = nullptr;
  MUST(cuGraphAddMemcpyNode(&node, other, nullptr, 0, &params, context));
  const Instance instance(graph);
  expect_refused(update(instance, other), CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, node);
  MUST(cuMemFreeHost(host));
}

ROW(graphs, update_of_nothing) {
  const Context context;
  Build graph(context);
  graph.empty();
  const Instance instance(graph);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_NE(cuGraphExecUpdate(instance, nullptr, &info), CUDA_SUCCESS);
  EXPECT_NE(cuGraphExecUpdate(nullptr, graph, &info), CUDA_SUCCESS);
}

ROW(graphs, exec_kernel_params) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  const CUgraphNode node = graph.store(store.function(), word.device(), 1);
  const Instance instance(graph);
  CUDA_KERNEL_NODE_PARAMS params{};
  MUST(cuGraphKernelNodeGetParams(node, &params));
  CUdeviceptr to = word.device() + 4;
  unsigned value = 2;
  void* arguments[] = {&to, &value};
  params.kernelParams = arguments;
  MUST(cuGraphExecKernelNodeSetParams(instance, node, &params));
  MUST(instance.run());
  EXPECT_EQ(word.value64(), 2ULL << 32);
  CUDA_KERNEL_NODE_PARAMS told{};
  MUST(cuGraphKernelNodeGetParams(node, &told));
  EXPECT_EQ(*static_cast<unsigned*>(told.kernelParams[1]), 1U) << "the node is as it was";
}

ROW(graphs, exec_copy_params) {
  const Context context;
  const Word word;
  Build graph(context);
  const CUgraphNode node = graph.copy(word.device(), word.device() + 4, 4);
  const Instance instance(graph);
  MUST(cuMemsetD32(word.device() + 8, 9, 1));
  auto params = copy_params(word.device() + 8, word.device(), 4);
  MUST(cuGraphExecMemcpyNodeSetParams(instance, node, &params, context));
  MUST(instance.run());
  EXPECT_EQ(word.value64(), 9U);
}

ROW(graphs, exec_copy_params_are_one_dimensional) {
  const Context context;
  CUdeviceptr memory = 0;
  MUST(cuMemAlloc(&memory, 4096));
  Build graph(context), flat(context);
  auto params = copy_params(memory, memory + 2048, 4);
  params.Height = 2;
  params.srcPitch = params.dstPitch = 64;
  CUgraphNode node = nullptr;
  MUST(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &params, context));
  const CUgraphNode line = flat.copy(memory, memory + 2048, 4);
  const Instance two(graph), one(flat);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(one, line, &params, context));
  params = copy_params(memory, memory + 1024, 4);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(two, node, &params, context));
  ANSWERS(CUDA_SUCCESS, cuGraphExecMemcpyNodeSetParams(one, line, &params, context));
}

ROW(graphs, exec_host_params) {
  const Context context;
  Build graph(context);
  int first = 0, second = 0;
  const CUhostFn count = [](void* data) { ++*static_cast<int*>(data); };
  const CUgraphNode node = graph.host(count, &first);
  const Instance instance(graph);
  const CUDA_HOST_NODE_PARAMS params{count, &second};
  MUST(cuGraphExecHostNodeSetParams(instance, node, &params));
  MUST(instance.run());
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
}

ROW(graphs, exec_events) {
  const Context context;
  Word hold;
  const CUevent first = event_new(), second = event_new();
  Build graph(context);
  const CUgraphNode wait = graph.wait(hold, 1);
  CUgraphNode record = nullptr, waits = nullptr;
  MUST(cuGraphAddEventRecordNode(&record, graph, &wait, 1, first));
  MUST(cuGraphAddEventWaitNode(&waits, graph, nullptr, 0, first));
  const Instance instance(graph);
  MUST(cuGraphExecEventRecordNodeSetEvent(instance, record, second));
  MUST(cuGraphExecEventWaitNodeSetEvent(instance, waits, second));
  EXPECT_NE(cuGraphExecEventRecordNodeSetEvent(instance, waits, second), CUDA_SUCCESS);
  const CUstream stream = stream_new();
  MUST(cuGraphLaunch(instance, stream));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(first));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(second));
  hold.set(1);
  MUST(cuStreamSynchronize(stream));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(second));
}

ROW(graphs, exec_child_params) {
  const Context context;
  const Word word;
  Build graph(context), child(context), other(context), longer(context);
  child.set(word.device(), 1);
  other.set(word.device(), 2);
  longer.set(word.device(), 3, {longer.empty()});
  CUgraphNode node = nullptr;
  MUST(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  const Instance instance(graph);
  EXPECT_NE(cuGraphExecChildGraphNodeSetParams(instance, node, longer), CUDA_SUCCESS);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 1U);
  MUST(cuGraphExecChildGraphNodeSetParams(instance, node, other));
  MUST(instance.run());
  EXPECT_EQ(word.value(), 2U);
}

ROW(graphs, exec_memory_operations) {
  const Context context;
  const Word word;
  Build graph(context);
  CUstreamBatchMemOpParams operations[2]{};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = word.device();
  operations[0].writeValue.value = 1;
  operations[1] = operations[0];
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{context, 1, operations, 0};
  CUgraphNode node = nullptr;
  MUST(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
  const Instance instance(graph);
  params.count = 2;
  EXPECT_NE(cuGraphExecBatchMemOpNodeSetParams(instance, node, &params), CUDA_SUCCESS);
  params.count = 1;
  operations[0].writeValue.value = 2;
  MUST(cuGraphExecBatchMemOpNodeSetParams(instance, node, &params));
  MUST(instance.run());
  EXPECT_EQ(word.value(), 2U);
}

ROW(graphs, exec_params_by_description) {
  const Context context;
  const Word word;
  Build graph(context);
  const CUgraphNode node = graph.set(word.device(), 1);
  const Instance instance(graph);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset.dst = word.device();
  params.memset.value = 6;
  params.memset.elementSize = 4;
  params.memset.width = params.memset.height = 1;
  params.memset.ctx = context;
  MUST(cuGraphExecNodeSetParams(instance, node, &params));
  MUST(instance.run());
  EXPECT_EQ(word.value(), 6U);
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  params.host.fn = [](void*) {};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(instance, node, &params));
}

ROW(graphs, exec_params_name_nodes_of_its_graph) {
  const Context context;
  const Word word;
  Build graph(context), other(context);
  graph.set(word.device(), 1);
  const CUgraphNode foreign = other.set(word.device(), 1);
  const Instance instance(graph);
  const CUgraphNode late = graph.set(word.device(), 3);
  const auto params = set_params(word.device(), 2);
  EXPECT_NE(cuGraphExecMemsetNodeSetParams(instance, foreign, &params, context), CUDA_SUCCESS);
  EXPECT_NE(cuGraphExecMemsetNodeSetParams(instance, late, &params, context), CUDA_SUCCESS);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 1U);
}

}  // namespace
}  // namespace conformance
