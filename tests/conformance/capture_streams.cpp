// Rows of family `capture`: more than one stream - forks and joins by events, what crosses the
// border of a capture, two captures at once.
#include "tests/conformance/capture.h"

namespace conformance {
namespace {

/// A capture in `origin` with one node, from which `side` forks off.
struct Fork {
  Fork() {
    EXPECT_EQ(capture_begin(origin), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD32Async(cell, 5, 1, origin), CUDA_SUCCESS);
    first = capture_last(origin);
    EXPECT_EQ(cuEventRecord(forked, origin), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(side, forked, 0), CUDA_SUCCESS);
  }
  CUresult join() {
    const CUresult recorded = cuEventRecord(back, side);
    return recorded == CUDA_SUCCESS ? cuStreamWaitEvent(origin, back, 0) : recorded;
  }

  Cell cell;
  CUstream origin = stream_new(), side = stream_new();
  CUevent forked = event_new(), back = event_new();
  CUgraphNode first = nullptr;
};

ROW(capture, waiting_for_a_captured_event_forks) {
  const Context context;
  Fork fork;
  EXPECT_EQ(capture_status(fork.side), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  const CaptureInfo origin = capture_info(fork.origin), side = capture_info(fork.side);
  EXPECT_EQ(side.id, origin.id);
  EXPECT_EQ(side.graph, origin.graph);
  MUST(fork.join());
  expect_valid(fork.origin);
}

ROW(capture, fork_depends_on_what_was_recorded) {
  const Context context;
  const CUstream origin = stream_new(), side = stream_new();
  const CUevent forked = event_new();
  const Cell cell;
  MUST(capture_begin(origin));
  MUST(cuMemsetD32Async(cell, 5, 1, origin));
  const CUgraphNode marked = capture_last(origin);
  MUST(cuEventRecord(forked, origin));
  MUST(cuMemsetD32Async(cell, 6, 1, origin));
  MUST(cuStreamWaitEvent(side, forked, 0));
  EXPECT_EQ(capture_last(side), marked);
  EXPECT_NE(capture_last(origin), marked);
}

ROW(capture, events_are_no_nodes) {
  const Context context;
  Fork fork;
  MUST(fork.join());
  EXPECT_EQ(nodes_count(capture_end(fork.origin)), 1U);
}

ROW(capture, join_adds_to_the_dependencies) {
  const Context context;
  Fork fork;
  MUST(cuMemsetD32Async(fork.cell, 6, 1, fork.origin));
  MUST(cuMemsetD32Async(fork.cell, 7, 1, fork.side));
  std::vector<CUgraphNode> both = {capture_last(fork.origin), capture_last(fork.side)};
  std::sort(both.begin(), both.end());
  MUST(fork.join());
  EXPECT_EQ(capture_info(fork.origin).next_after, both);
  expect_valid(fork.origin);
}

ROW(capture, a_capturing_stream_waits_for_another_place_of_its_capture) {
  const Context context;
  Fork fork;
  const CUstream third = stream_new();
  const CUevent event = event_new();
  MUST(cuMemsetD32Async(fork.cell, 6, 1, fork.side));
  MUST(cuEventRecord(event, fork.side));
  MUST(cuStreamWaitEvent(third, event, 0));
  MUST(cuMemsetD32Async(fork.cell, 7, 1, third));
  MUST(cuEventRecord(event, third));
  MUST(cuStreamWaitEvent(fork.origin, event, 0));
  EXPECT_EQ(nodes_count(capture_end(fork.origin)), 3U) << "the third stream joined for the second";
  EXPECT_EQ(capture_status(third), CU_STREAM_CAPTURE_STATUS_NONE);
}

ROW(capture, forks_and_joins_order_the_replay) {
  const Context context;
  const AddOne add;
  const Cell cell, copy;
  const CUstream origin = stream_new(), side = stream_new();
  const CUevent forked = event_new(), back = event_new();
  MUST(capture_begin(origin));
  MUST(cuMemsetD32Async(cell, 10, 1, origin));
  MUST(cuEventRecord(forked, origin));
  MUST(cuStreamWaitEvent(side, forked, 0));
  MUST(add(cell, side));
  MUST(cuEventRecord(back, side));
  MUST(cuStreamWaitEvent(origin, back, 0));
  MUST(cuMemcpyDtoDAsync(copy, cell, 4, origin));
  const CUgraph graph = capture_end(origin);
  replay(graph, side);
  EXPECT_EQ(copy.value(), 11U);
}

ROW(capture, unjoined_work_fails_the_end) {
  const Context context;
  Fork fork;
  MUST(cuMemsetD32Async(fork.cell, 6, 1, fork.side));
  auto* graph = reinterpret_cast<CUgraph>(&fork);
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(fork.origin, &graph));
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(capture_status(fork.origin), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(capture_status(fork.side), CU_STREAM_CAPTURE_STATUS_NONE);
}

ROW(capture, work_after_the_join_must_join_too) {
  const Context context;
  Fork fork;
  MUST(fork.join());
  MUST(cuMemsetD32Async(fork.cell, 6, 1, fork.side));
  CUgraph graph = nullptr;
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(fork.origin, &graph));
}

ROW(capture, end_frees_all_streams) {
  const Context context;
  Fork fork;
  MUST(fork.join());
  capture_end(fork.origin);
  EXPECT_EQ(capture_status(fork.side), CU_STREAM_CAPTURE_STATUS_NONE);
  MUST(cuMemsetD32Async(fork.cell, 6, 1, fork.side));
  MUST(cuStreamSynchronize(fork.side));
  EXPECT_EQ(fork.cell.value(), 6U) << "what it is given runs again";
}

ROW(capture, end_only_where_it_began) {
  const Context context;
  Fork fork;
  CUgraph graph = nullptr;
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(fork.side, &graph));
}

ROW(capture, captures_do_not_merge) {
  const Context context;
  const CUstream one = stream_new(), two = stream_new();
  const CUevent event = event_new();
  MUST(capture_begin(one));
  MUST(capture_begin(two));
  MUST(cuEventRecord(event, one));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(two, event, 0));
  expect_invalidated(one);
  expect_invalidated(two);
}

ROW(capture, captures_at_once_are_independent) {
  const Context context;
  const CUstream one = stream_new(), two = stream_new();
  const Cell cell;
  MUST(capture_begin(one));
  MUST(capture_begin(two));
  MUST(cuMemsetD32Async(cell, 5, 1, one));
  EXPECT_NE(cuStreamQuery(two), CUDA_SUCCESS);
  EXPECT_EQ(nodes_count(capture_end(one)), 1U) << "the other one went wrong, not this";
  expect_invalidated(two);
}

ROW(capture, uncaptured_events_are_isolated) {
  const Context context;
  const CUstream outside = stream_new(), stream = stream_new();
  const CUevent event = event_new();
  MUST(cuEventRecord(event, outside));
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(stream, event, 0));
  expect_invalidated(stream);
}

ROW(capture, captured_events_cannot_be_queried) {
  const Context context;
  Fork fork;
  ANSWERS(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(fork.forked));
  expect_invalidated(fork.origin);
}

ROW(capture, captured_events_cannot_be_waited_for) {
  const Context context;
  Fork fork;
  ANSWERS(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(fork.forked));
  expect_invalidated(fork.origin);
}

ROW(capture, an_event_recorded_outside_is_ordinary_again) {
  const Context context;
  Fork fork;
  MUST(fork.join());
  capture_end(fork.origin);
  MUST(cuEventRecord(fork.forked, fork.side));
  ANSWERS(CUDA_SUCCESS, cuEventSynchronize(fork.forked));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(fork.forked));
  MUST(capture_begin(fork.origin));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(fork.origin, fork.forked, 0));
}

ROW(capture, stream_order_holds_across_a_capture) {
  const Context context;
  const Store store;
  const Word word;
  Gate gate;
  const CUstream stream = stream_new();
  MUST(gate.hold(stream));
  MUST(capture_begin(stream));
  MUST(store(word, 1, stream));
  const CUgraph graph = capture_end(stream);
  EXPECT_EQ(nodes_count(graph), 1U) << "what came before is no part of it";
  MUST(store(word, 2, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(word.value(), 0U);
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 2U);
}

ROW(capture, external_record_is_a_node) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent begin = event_new(CU_EVENT_DEFAULT), event = event_new(CU_EVENT_DEFAULT);
  MUST(capture_begin(stream));
  MUST(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  const CUgraph graph = capture_end(stream);
  float ms = -1;
  MUST(cuEventRecord(begin, stream));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, begin, event));
  replay(graph, stream);
  ANSWERS(CUDA_SUCCESS, cuEventElapsedTime(&ms, begin, event));
  EXPECT_GE(ms, 0);
}

ROW(capture, external_wait_is_a_node) {
  const Context context;
  const Cell cell;
  Gate gate;
  const CUstream outside = stream_new(), stream = stream_new();
  const CUevent event = event_new();
  MUST(capture_begin(stream));
  MUST(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  const CUgraph graph = capture_end(stream);
  CUgraphExec exec = nullptr;
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuGraphUpload(exec, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(gate.hold(outside));
  MUST(cuEventRecord(event, outside));
  MUST(cuGraphLaunch(exec, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(cell.value(), 5U);
}

}  // namespace
}  // namespace conformance
