// Rows of family `graphs`: instances - how they are made, launched, ordered, and what a launch in
// flight keeps.
#include "tests/conformance/graphs.h"

namespace conformance {
namespace {

ROW(graphs, nodes_run_in_the_order_of_edges) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  // Added against their order, to be sure that the edges decide.
  const CUgraphNode last = graph.store(store.function(), word.device(), 3);
  const CUgraphNode middle = graph.empty();
  const CUgraphNode first = graph.set(word.device(), 1);
  const CUgraphNode copy = graph.copy(word.device(), word.device() + 4, 4);
  const Nodes from{first, copy, middle}, to{copy, middle, last};
  MUST(cuGraphAddDependencies(graph, from.data(), to.data(), nullptr, 3));
  const Instance instance(graph);
  for (int i = 0; i < 3; ++i) {
    word.value();
    MUST(instance.run());
    EXPECT_EQ(word.value(), 3U);
    EXPECT_EQ(word.value64() >> 32, 1U);
  }
}

ROW(graphs, diamond_joins_its_branches) {
  const Context context;
  const Store store;
  const Word a, b, sum;
  Build graph(context);
  const CUgraphNode root = graph.set(a.device(), 1);
  const CUgraphNode left = graph.store(store.function(), a.device(), 5, {root});
  const CUgraphNode right = graph.store(store.function(), b.device(), 6, {root});
  const CUgraphNode one = graph.copy(a.device(), sum.device(), 4, {left, right});
  graph.copy(b.device(), sum.device() + 4, 4, {one});
  const Instance instance(graph);
  for (int i = 0; i < 20; ++i) {
    MUST(cuMemsetD32(sum.device(), 0, 2));
    MUST(instance.run());
    EXPECT_EQ(sum.value(), 5U);
    EXPECT_EQ(sum.value64() >> 32, 6U);
  }
}

ROW(graphs, branch_that_waits_holds_only_its_own) {
  const Context context;
  Word hold;
  const Word other, joined;
  Build graph(context);
  const CUgraphNode root = graph.empty();
  const CUgraphNode waits = graph.wait(hold, 1, {root});
  const CUgraphNode goes = graph.set(other.device(), 1, {root});
  graph.set(joined.device(), 1, {waits, goes});
  const Instance instance(graph);
  const CUstream stream = stream_new();
  MUST(cuGraphLaunch(instance, stream));
  while (other.value() == 0) std::this_thread::yield();
  EXPECT_EQ(joined.value(), 0U);
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  hold.set(1);
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(joined.value(), 1U);
}

// Two engines: both copies together take less than one after the other.
ROW(graphs, branches_use_both_copy_engines) {
  settings_soft({{"SOFTGPU_PACING", "1"}, {"SOFTGPU_COPY_RATE", "1e9"}});
  const Context context;
  int engines = 0;
  MUST(cuDeviceGetAttribute(&engines, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, context.device()));
  if (engines < 2) GTEST_SKIP() << "needs two copy engines";
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer distorts the times that are compared";
#endif
  const std::size_t bytes = on_hardware() ? 256U << 20 : 8U << 20;
  void *in = nullptr, *out = nullptr;
  CUdeviceptr up = 0, down = 0;
  MUST(cuMemHostAlloc(&in, bytes, 0));
  MUST(cuMemHostAlloc(&out, bytes, 0));
  MUST(cuMemAlloc(&up, bytes));
  MUST(cuMemAlloc(&down, bytes));
  const auto build = [&](Build& graph, bool chained) {
    CUDA_MEMCPY3D params = copy_params(0, up, bytes);
    params.srcMemoryType = CU_MEMORYTYPE_HOST;
    params.srcHost = in;
    CUgraphNode first = nullptr, second = nullptr;
    EXPECT_EQ(cuGraphAddMemcpyNode(&first, graph, nullptr, 0, &params, context), CUDA_SUCCESS);
    params = copy_params(down, 0, bytes);
    params.dstMemoryType = CU_MEMORYTYPE_HOST;
    params.dstHost = out;
    EXPECT_EQ(cuGraphAddMemcpyNode(&second, graph, &first, chained ? 1 : 0, &params, context),
              CUDA_SUCCESS);
  };
  Build together(context), chained(context);
  build(together, false);
  build(chained, true);
  const CUstream stream = stream_new();
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  const auto time_ms = [&](CUgraph graph) {
    const Instance instance(graph);
    float best = 1e9F;
    for (int i = 0; i < 3; ++i) {
      float ms = 0;
      EXPECT_EQ(cuEventRecord(begin, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuGraphLaunch(instance, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecord(end, stream), CUDA_SUCCESS);
      EXPECT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
      EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_SUCCESS);
      best = std::min(best, ms);
    }
    return best;
  };
  const float serial = time_ms(chained), parallel = time_ms(together);
  EXPECT_LT(parallel, 0.8F * serial);
  cuMemFreeHost(in);
  cuMemFreeHost(out);
}

ROW(graphs, empty_graph_runs) {
  const Context context;
  Build graph(context);
  const Instance instance(graph);
  ANSWERS(CUDA_SUCCESS, instance.run());
}

ROW(graphs, instance_outlives_its_graph) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  graph.store(store.function(), word.device(), 3);
  const Instance instance(graph);
  MUST(graph.destroy());
  MUST(instance.run());
  EXPECT_EQ(word.value(), 3U);
}

ROW(graphs, launch_in_flight_outlives_its_instance) {
  const Context context;
  const Store store;
  const Word word;
  Gate gate;
  Build graph(context);
  graph.store(store.function(), word.device(), 3);
  Instance instance(graph);
  MUST(instance.run());
  MUST(cuMemsetD32(word.device(), 0, 1));
  const CUstream stream = stream_new();
  MUST(gate.hold(stream));
  MUST(cuGraphLaunch(instance, stream));
  MUST(instance.destroy());
  EXPECT_EQ(word.value(), 0U);
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 3U);
}

ROW(graphs, launch_has_its_place_in_the_stream) {
  const Context context;
  const Store store;
  Word hold;
  const Word before, inside, after;
  Gate gate;
  Build graph(context);
  const CUgraphNode wait = graph.wait(hold, 1);
  graph.set(inside.device(), 1, {wait});
  const Instance instance(graph);
  const CUstream stream = stream_new();
  hold.set(1);
  MUST(gate.hold(stream));
  MUST(store(before, 1, stream));
  MUST(cuGraphLaunch(instance, stream));
  MUST(store(after, 1, stream));
  EXPECT_EQ(inside.value(), 0U) << "what is before it has not run";
  hold.set(0);
  gate.open();
  while (before.value() == 0) std::this_thread::yield();
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(after.value(), 0U) << "the launch has not ended";
  hold.set(1);
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(inside.value(), 1U);
  EXPECT_EQ(after.value(), 1U);
}

ROW(graphs, launches_of_one_instance_take_turns) {
  const Context context;
  const Word word;
  Gate gate;
  Build graph(context);
  graph.set(word.device(), 1);
  const Instance instance(graph);
  MUST(instance.run());
  MUST(cuMemsetD32(word.device(), 0, 1));
  MUST(cuCtxSynchronize());
  const CUstream held = stream_new(), other = stream_new();
  MUST(gate.hold(held));
  MUST(cuGraphLaunch(instance, held));
  MUST(cuGraphLaunch(instance, other));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(other));
  EXPECT_EQ(word.value(), 0U);
  gate.open();
  MUST(cuStreamSynchronize(other));
  EXPECT_EQ(word.value(), 1U);
}

ROW(graphs, two_instances_run_side_by_side) {
  const Context context;
  const Word word;
  Gate gate;
  Build graph(context);
  graph.set(word.device(), 1);
  const Instance one(graph), two(graph);
  const CUstream held = stream_new(), other = stream_new();
  MUST(gate.hold(held));
  MUST(cuGraphLaunch(one, held));
  MUST(cuGraphLaunch(two, other));
  ANSWERS(CUDA_SUCCESS, cuStreamSynchronize(other));
  EXPECT_EQ(word.value(), 1U);
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
}

ROW(graphs, instantiation_flags_are_told) {
  const Context context;
  Build graph(context);
  graph.empty();
  const CUstream stream = stream_new();
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  params.hUploadStream = stream;
  params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  params.hErrNode_out = reinterpret_cast<CUgraphNode>(&params);
  CUgraphExec exec = nullptr;
  MUST(cuGraphInstantiateWithParams(&exec, graph, &params));
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
  EXPECT_EQ(params.hErrNode_out, nullptr);
  cuuint64_t flags = 0;
  MUST(cuGraphExecGetFlags(exec, &flags));
  EXPECT_EQ(flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, 0U)
      << "an upload does not affect the instance";
  MUST(cuStreamSynchronize(stream));
  MUST(cuGraphExecDestroy(exec));
}

ROW(graphs, instantiation_flags_checked) {
  const Context context;
  Build graph(context);
  graph.empty();
  CUgraphExec exec = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 1U << 20));
  EXPECT_NE(cuGraphInstantiate(&exec, graph,
                               CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                   CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH),
            CUDA_SUCCESS);
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = 1U << 20;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithParams(&exec, graph, &params));
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_ERROR);
  EXPECT_EQ(params.hErrNode_out, nullptr);
}

ROW(graphs, device_launch) {
  if (on_hardware()) GTEST_SKIP() << "hardware has them";
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  graph.store(store.function(), word.device(), 1);
  CUgraphExec exec = nullptr;
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
          cuGraphInstantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
}

ROW(graphs, upload_runs_nothing) {
  const Context context;
  const Word word;
  Build graph(context);
  graph.set(word.device(), 1);
  const Instance instance(graph);
  const CUstream stream = stream_new();
  MUST(cuGraphUpload(instance, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 0U);
  MUST(instance.run(stream));
  EXPECT_EQ(word.value(), 1U);
}

ROW(graphs, disabled_node_only_keeps_its_place) {
  const Context context;
  const Store store;
  const Word a, b, c;
  Build graph(context);
  const CUgraphNode first = graph.set(a.device(), 1);
  const CUgraphNode middle = graph.store(store.function(), b.device(), 1, {first});
  graph.copy(a.device(), c.device(), 4, {middle});
  const Instance instance(graph);
  unsigned enabled = 9;
  MUST(cuGraphNodeGetEnabled(instance, middle, &enabled));
  EXPECT_EQ(enabled, 1U);
  MUST(cuGraphNodeSetEnabled(instance, middle, 0));
  MUST(cuGraphNodeGetEnabled(instance, middle, &enabled));
  EXPECT_EQ(enabled, 0U);
  MUST(instance.run());
  EXPECT_EQ(b.value(), 0U);
  EXPECT_EQ(c.value(), 1U) << "what comes after it still comes after what is before it";
  MUST(cuGraphNodeSetEnabled(instance, middle, 5));
  MUST(cuGraphNodeGetEnabled(instance, middle, &enabled));
  EXPECT_EQ(enabled, 1U);
  MUST(instance.run());
  EXPECT_EQ(b.value(), 1U);
}

ROW(graphs, only_some_nodes_can_be_disabled) {
  const Context context;
  Build graph(context), other(context);
  const Word word;
  const CUgraphNode host = graph.host([](void*) {}, nullptr);
  const CUgraphNode foreign = other.set(word.device(), 1);
  const Instance instance(graph);
  unsigned enabled = 0;
  EXPECT_NE(cuGraphNodeSetEnabled(instance, host, 0), CUDA_SUCCESS);
  EXPECT_NE(cuGraphNodeGetEnabled(instance, host, &enabled), CUDA_SUCCESS);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetEnabled(instance, foreign, 0));
}

ROW(graphs, fault_in_a_graph_is_the_contexts) {
  const Context context;
  const CUfunction trap = kernel("trap");
  const Word word;
  Build graph(context);
  const CUgraphNode faults = graph.kernel(trap, nullptr);
  graph.set(word.device(), 1, {faults});
  const Instance instance(graph);
  EXPECT_NE(instance.run(), CUDA_SUCCESS);
  EXPECT_NE(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word.value(), 0U);
}

ROW(graphs, events_of_a_graph_measure_its_parts) {
  settings_soft({{"SOFTGPU_PACING", "1"}, {"SOFTGPU_RATE", "4e6"}});
  const Context context;
  const CUfunction spin = kernel("spin");
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 8));
  const CUevent begin = event_new(CU_EVENT_DEFAULT), middle = event_new(CU_EVENT_DEFAULT),
                end = event_new(CU_EVENT_DEFAULT);
  Build graph(context);
  const unsigned few = on_hardware() ? 100'000 : 500;
  unsigned rounds = few;
  void* arguments[] = {&data, &rounds};
  CUgraphNode records[3] = {};
  MUST(cuGraphAddEventRecordNode(&records[0], graph, nullptr, 0, begin));
  const CUgraphNode brief = graph.kernel(spin, arguments, {records[0]});
  MUST(cuGraphAddEventRecordNode(&records[1], graph, &brief, 1, middle));
  rounds = 20 * few;
  const CUgraphNode lengthy = graph.kernel(spin, arguments, {records[1]});
  MUST(cuGraphAddEventRecordNode(&records[2], graph, &lengthy, 1, end));
  const Instance instance(graph);
  const CUstream stream = stream_new();
  MUST(instance.run(stream));
  MUST(instance.run(stream));
  float first = 0, second = 0;
  MUST(cuEventElapsedTime(&first, begin, middle));
  MUST(cuEventElapsedTime(&second, middle, end));
  EXPECT_GT(first, 0);
  EXPECT_GT(second, 4 * first);
}

}  // namespace
}  // namespace conformance
