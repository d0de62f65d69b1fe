// Rows of family `capture`: the graph of a capture - whose it is, and capturing into one that is
// there already.
#include "tests/conformance/capture.h"

namespace conformance {
namespace {

ROW(capture, a_captured_graph_runs_in_any_stream) {
  const Context context;
  const AddOne add;
  const Cell cell;
  const CUstream stream = stream_new();
  const CUgraphExec exec = captured_addition(add, cell, stream);
  MUST(cuStreamDestroy(stream));
  MUST(cuGraphLaunch(exec, nullptr));
  MUST(cuGraphLaunch(exec, stream_new()));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(cell.value(), 2U);
}

ROW(capture, into_a_graph_adds_to_it) {
  const Context context;
  const AddOne add;
  const Cell cell;
  CUgraph graph = nullptr;
  CUgraphNode set = nullptr;
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = cell;
  params.value = 10;
  params.elementSize = 4;
  params.width = params.height = 1;
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &params, context));
  const CUstream stream = stream_new();
  MUST(
      cuStreamBeginCaptureToGraph(stream, graph, &set, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(capture_info(stream).graph, graph);
  EXPECT_EQ(capture_last(stream), set) << "what the first captured node depends on";
  MUST(add(cell, stream));
  EXPECT_EQ(capture_end(stream), graph);
  EXPECT_EQ(nodes_count(graph), 2U);
  replay(graph, stream);
  EXPECT_EQ(cell.value(), 11U);
}

ROW(capture, into_a_graph_more_than_once) {
  const Context context;
  const AddOne add;
  const Cell cell;
  CUgraph graph = nullptr;
  MUST(cuGraphCreate(&graph, 0));
  const CUstream stream = stream_new();
  for (std::size_t i = 1; i <= 2; ++i) {
    MUST(cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
                                     CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_TRUE(capture_info(stream).next_after.empty());
    MUST(add(cell, stream));
    EXPECT_EQ(capture_end(stream), graph);
    EXPECT_EQ(nodes_count(graph), i);
  }
}

ROW(capture, into_a_graph_checks_its_arguments) {
  const Context context;
  CUgraph graph = nullptr;
  MUST(cuGraphCreate(&graph, 0));
  const CUstream stream = stream_new();
  constexpr auto kMode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamBeginCaptureToGraph(stream, nullptr, nullptr, nullptr, 0, kMode));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 1, kMode));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          cuStreamBeginCaptureToGraph(nullptr, graph, nullptr, nullptr, 0, kMode));
  EXPECT_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

ROW(capture, a_graph_is_instantiated_while_captured_into) {
  const Context context;
  const Cell cell;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  MUST(cuGraphCreate(&graph, 0));
  const CUstream stream = stream_new();
  MUST(cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
                                   CU_STREAM_CAPTURE_MODE_RELAXED));
  ANSWERS(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  EXPECT_EQ(capture_end(stream), graph);
  EXPECT_EQ(nodes_count(graph), 1U);
  ANSWERS(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
}

ROW(capture, a_captured_graph_is_the_programs) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  const CUgraph graph = capture_end(stream);
  CUgraphNode node = nullptr;
  std::size_t count = 1;
  MUST(cuGraphGetNodes(graph, &node, &count));
  EXPECT_EQ(node_type(node), CU_GRAPH_NODE_TYPE_MEMSET);
  MUST(cuGraphDestroyNode(node));
  EXPECT_EQ(nodes_count(graph), 0U);
  ANSWERS(CUDA_SUCCESS, cuGraphDestroy(graph));
}

}  // namespace
}  // namespace conformance
