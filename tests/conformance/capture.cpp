// Rows of family `capture`: beginning, ending and asking; what the next node depends on. Forks and
// joins are in capture_streams.cpp, what is forbidden in capture_rules.cpp and capture_modes.cpp,
// what becomes a node in capture_nodes.cpp, the graph in capture_graph.cpp.
#include <cudaTypedefs.h>

#include <set>
#include <thread>

#include "tests/conformance/capture.h"

namespace conformance {
namespace {

ROW(capture, work_is_kept_not_run) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  const CUgraph graph = capture_end(stream);
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(cell.value(), 0U);
  replay(graph, stream);
  EXPECT_EQ(cell.value(), 5U);
}

ROW(capture, empty_capture_is_an_empty_graph) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  const CUgraph graph = capture_end(stream);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(nodes_count(graph), 0U);
}

ROW(capture, legacy_stream_cannot_capture) {
  const Context context;
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, capture_begin(nullptr));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, capture_begin(CU_STREAM_LEGACY));
  EXPECT_EQ(capture_status(nullptr), CU_STREAM_CAPTURE_STATUS_NONE);
}

ROW(capture, per_thread_stream_can_capture) {
  const Context context;
  const Cell cell;
  MUST(capture_begin(CU_STREAM_PER_THREAD));
  EXPECT_EQ(capture_status(CU_STREAM_PER_THREAD), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  MUST(cuMemsetD32Async(cell, 5, 1, CU_STREAM_PER_THREAD));
  const CUgraph graph = capture_end(CU_STREAM_PER_THREAD);
  EXPECT_EQ(nodes_count(graph), 1U);
}

ROW(capture, per_thread_streams_capture_apart) {
  const Context context;
  MUST(capture_begin(CU_STREAM_PER_THREAD));
  std::thread([&] {
    MUST(cuCtxSetCurrent(context));
    EXPECT_EQ(capture_status(CU_STREAM_PER_THREAD), CU_STREAM_CAPTURE_STATUS_NONE);
  }).join();
  expect_valid(CU_STREAM_PER_THREAD);
}

ROW(capture, unknown_mode_refused) {
  const Context context;
  const CUstream stream = stream_new();
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamBeginCapture(stream, no_such<CUstreamCaptureMode>(3)));
  EXPECT_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

ROW(capture, begin_needs_a_stream_that_does_not_capture) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, capture_begin(stream));
}

ROW(capture, end_needs_a_capture) {
  const Context context;
  CUgraph graph = nullptr;
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream_new(), &graph));
}

ROW(capture, status_follows_the_capture) {
  const Context context;
  const CUstream stream = stream_new(), other = stream_new();
  EXPECT_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
  MUST(capture_begin(stream));
  EXPECT_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(capture_status(other), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_NE(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  EXPECT_NE(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

ROW(capture, stream_captures_again) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  const CUgraph first = capture_end(stream);
  MUST(capture_begin(stream));
  const CUgraph second = capture_end(stream);
  EXPECT_NE(first, second);
  EXPECT_EQ(nodes_count(first), 1U);
  EXPECT_EQ(nodes_count(second), 0U);
}

ROW(capture, ids_are_unique) {
  const Context context;
  const CUstream stream = stream_new(), other = stream_new();
  std::set<cuuint64_t> ids;
  for (int i = 0; i < 3; ++i) {
    MUST(capture_begin(stream));
    MUST(capture_begin(other));
    ids.insert(capture_info(stream).id);
    ids.insert(capture_info(other).id);
    EXPECT_EQ(capture_info(stream).id, capture_info(stream).id);
    capture_end(stream);
    capture_end(other);
  }
  EXPECT_EQ(ids.size(), 6U);
}

ROW(capture, info_tells_the_graph) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  const CUgraph graph = capture_info(stream).graph;
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(nodes_count(graph), 1U);
  MUST(cuMemsetD32Async(cell, 6, 1, stream));
  EXPECT_EQ(nodes_count(graph), 2U) << "it grows with the capture";
  EXPECT_EQ(capture_end(stream), graph);
}

ROW(capture, info_tells_what_the_next_node_depends_on) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  EXPECT_TRUE(capture_info(stream).next_after.empty());
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  const CUgraphNode first = capture_last(stream);
  MUST(cuMemsetD32Async(cell, 6, 1, stream));
  const CUgraphNode second = capture_last(stream);
  EXPECT_NE(first, second);
  expect_valid(stream);
}

ROW(capture, info_of_an_idle_stream_is_its_status) {
  const Context context;
  const CUstream stream = stream_new();
  auto status = no_such<CUstreamCaptureStatus>(77);
  cuuint64_t id = 0;
  ANSWERS(CUDA_SUCCESS,
          cuStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

ROW(capture, info_places_may_be_null) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  ANSWERS(CUDA_SUCCESS,
          cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  cuuint64_t id = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamGetCaptureInfo(stream, nullptr, &id, nullptr, nullptr, nullptr, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamIsCapturing(stream, nullptr));
}

ROW(capture, edge_data_comes_with_the_dependencies) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  CUstreamCaptureStatus status{};
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, &edges, &count));
  MUST(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, &edges, &count));
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(edges[0].type, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
  EXPECT_EQ(edges[0].from_port, 0);
}

ROW(capture, older_info_tells_the_same) {
  const Context context;
  const Cell cell;
  PFN_cuStreamGetCaptureInfo_v10010 first = nullptr;
  PFN_cuStreamGetCaptureInfo_v11030 second = nullptr;
  MUST(cuGetProcAddress("cuStreamGetCaptureInfo", reinterpret_cast<void**>(&first), 10010, 0,
                        nullptr));
  MUST(cuGetProcAddress("cuStreamGetCaptureInfo", reinterpret_cast<void**>(&second), 11030, 0,
                        nullptr));
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  const CaptureInfo info = capture_info(stream);
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  ANSWERS(CUDA_SUCCESS, first(stream, &status, &id));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(id, info.id);
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  std::size_t count = 0;
  ANSWERS(CUDA_SUCCESS, second(stream, &status, &id, &graph, &nodes, &count));
  EXPECT_EQ(id, info.id);
  EXPECT_EQ(graph, info.graph);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(nodes[0], info.next_after[0]);
}

/// A capture with one node before the last.
struct TwoNodes {
  explicit TwoNodes(CUstream stream) {
    EXPECT_EQ(capture_begin(stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD32Async(cell, 5, 1, stream), CUDA_SUCCESS);
    first = capture_last(stream);
    EXPECT_EQ(cuMemsetD32Async(cell, 6, 1, stream), CUDA_SUCCESS);
    second = capture_last(stream);
  }
  Cell cell;
  CUgraphNode first = nullptr, second = nullptr;
};

ROW(capture, update_adds_dependencies) {
  const Context context;
  const CUstream stream = stream_new();
  TwoNodes two(stream);
  ANSWERS(CUDA_SUCCESS, cuStreamUpdateCaptureDependencies(stream, &two.first, nullptr, 1,
                                                          CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  std::vector<CUgraphNode> both = {two.first, two.second};
  std::sort(both.begin(), both.end());
  EXPECT_EQ(capture_info(stream).next_after, both);
  expect_valid(stream);
}

ROW(capture, update_sets_dependencies) {
  const Context context;
  const CUstream stream = stream_new();
  TwoNodes two(stream);
  ANSWERS(CUDA_SUCCESS, cuStreamUpdateCaptureDependencies(stream, &two.first, nullptr, 1,
                                                          CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  EXPECT_EQ(capture_info(stream).next_after, std::vector{two.first});
  ANSWERS(CUDA_SUCCESS, cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0,
                                                          CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  EXPECT_TRUE(capture_info(stream).next_after.empty());
}

ROW(capture, update_removed_nodes_need_no_join) {
  const Context context;
  const CUstream stream = stream_new();
  TwoNodes two(stream);
  MUST(cuStreamUpdateCaptureDependencies(stream, &two.first, nullptr, 1,
                                         CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  MUST(cuMemsetD32Async(two.cell, 7, 1, stream));
  const CUgraph graph = capture_end(stream);
  EXPECT_EQ(nodes_count(graph), 3U);
}

ROW(capture, update_needs_a_capture) {
  const Context context;
  ANSWERS(CUDA_ERROR_ILLEGAL_STATE,
          cuStreamUpdateCaptureDependencies(stream_new(), nullptr, nullptr, 0,
                                            CU_STREAM_SET_CAPTURE_DEPENDENCIES));
}

ROW(capture, update_flags_checked) {
  const Context context;
  const CUstream stream = stream_new();
  TwoNodes two(stream);
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamUpdateCaptureDependencies(stream, &two.first, nullptr, 1, 2));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 1, 0));
}

}  // namespace
}  // namespace conformance
