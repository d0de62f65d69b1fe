// Rows of family `capture`: what a capture forbids, and what becomes of it then. What the modes
// decide is in capture_modes.cpp.
#include "tests/conformance/capture.h"

namespace conformance {
namespace {

ROW(capture, a_capturing_stream_cannot_be_waited_for) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
  expect_invalidated(stream);
}

ROW(capture, a_capturing_stream_cannot_be_queried) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(stream));
  expect_invalidated(stream);
}

ROW(capture, its_context_cannot_be_waited_for) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
  expect_invalidated(stream);
}

ROW(capture, its_context_cannot_be_recorded) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxRecordEvent(context, event));
  expect_invalidated(stream);
}

ROW(capture, its_context_cannot_wait_for_an_event) {
  const Context context;
  const CUstream stream = stream_new(), other = stream_new();
  const CUevent event = event_new();
  MUST(cuEventRecord(event, other));
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxWaitEvent(context, event));
  expect_invalidated(stream);
}

ROW(capture, no_context_can_wait_for_a_captured_event) {
  const Context context;
  const Context other;
  MUST(cuCtxSetCurrent(context));
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  MUST(capture_begin(stream));
  MUST(cuEventRecord(event, stream));
  ANSWERS(CUDA_ERROR_CAPTURED_EVENT, cuCtxWaitEvent(other, event));
  expect_invalidated(stream);
}

ROW(capture, other_streams_can_be_waited_for) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new(), other = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemsetD32Async(cell, 5, 1, other));
  ANSWERS(CUDA_SUCCESS, cuStreamSynchronize(other));
  expect_valid(stream);
  EXPECT_EQ(cell.value(), 5U);
}

ROW(capture, work_in_the_legacy_stream_would_depend_on_a_blocking_stream) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD32Async(cell, 5, 1, nullptr));
  expect_invalidated(stream);
}

ROW(capture, allocating_in_the_legacy_stream_would_depend_on_a_blocking_stream) {
  const Context context;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  MUST(capture_begin(stream));
  CUdeviceptr p = 7;
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemAllocAsync(&p, 4096, nullptr));
  EXPECT_EQ(p, 0U);
  expect_invalidated(stream);
}

ROW(capture, waiting_for_the_legacy_stream_would_wait_for_a_blocking_stream) {
  const Context context;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamSynchronize(nullptr));
  expect_invalidated(stream);
}

ROW(capture, synchronous_copies_use_the_legacy_stream) {
  const Context context;
  const Cell cell;
  unsigned value = 5;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemcpyHtoD(cell, &value, 4));
  expect_invalidated(stream);
}

ROW(capture, synchronous_fills_use_the_legacy_stream) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD8(cell, 5, 4));
  expect_invalidated(stream);
}

ROW(capture, events_in_the_legacy_stream_would_mark_a_blocking_stream) {
  const Context context;
  const CUevent event = event_new();
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuEventRecord(event, nullptr));
  expect_invalidated(stream);
}

ROW(capture, asking_the_legacy_stream_spoils_nothing) {
  const Context context;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  MUST(capture_begin(stream));
  CUstreamCaptureStatus status{};
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(nullptr, &status));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(CU_STREAM_LEGACY, &status));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
          cuStreamGetCaptureInfo(nullptr, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  expect_valid(stream);
}

ROW(capture, a_non_blocking_stream_leaves_the_legacy_stream_alone) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  EXPECT_EQ(capture_status(nullptr), CU_STREAM_CAPTURE_STATUS_NONE);
  ANSWERS(CUDA_SUCCESS, cuMemsetD32Async(cell, 5, 1, nullptr));
  ANSWERS(CUDA_SUCCESS, cuStreamSynchronize(nullptr));
  expect_valid(stream);
  EXPECT_EQ(cell.value(), 5U);
}

ROW(capture, another_context_has_its_own_legacy_stream) {
  const Context context;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  MUST(capture_begin(stream));
  {
    const Context other;
    EXPECT_EQ(capture_status(nullptr), CU_STREAM_CAPTURE_STATUS_NONE);
    ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  }
  expect_valid(stream);
}

ROW(capture, callbacks_are_not_captured) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          cuStreamAddCallback(
              stream, [](CUstream, CUresult, void*) {}, nullptr, 0));
  expect_invalidated(stream);
}

ROW(capture, attaching_memory_is_not_captured) {
  const Context context;
  CUdeviceptr memory = 0;
  MUST(cuMemAllocManaged(&memory, 4096, CU_MEM_ATTACH_GLOBAL));
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          cuStreamAttachMemAsync(stream, memory, 0, CU_MEM_ATTACH_SINGLE));
  expect_invalidated(stream);
}

ROW(capture, graph_launches_are_not_captured) {
  const Context context;
  const AddOne add;
  const Cell cell;
  const CUstream stream = stream_new();
  const CUgraphExec exec = captured_addition(add, cell, stream);
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGraphLaunch(exec, stream));
  expect_invalidated(stream);
  MUST(capture_begin(stream));
  ANSWERS(CUDA_SUCCESS, cuGraphLaunch(exec, stream_new()));
  expect_valid(stream);
}

ROW(capture, graph_uploads_are_not_captured) {
  const Context context;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGraphUpload(exec, stream));
  expect_invalidated(stream);
}

ROW(capture, prefetches_are_not_captured) {
  const Context context;
  CUdeviceptr memory = 0;
  std::size_t bytes = 2 << 20, first = 0;
  MUST(cuMemAllocManaged(&memory, bytes, CU_MEM_ATTACH_GLOBAL));
  CUmemLocation to{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  const CUstream stream = stream_new();
  expect_each_invalidates(
      stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
      [&] { return cuMemPrefetchAsync(memory, bytes, to, 0, stream); },
      [&] { return cuMemPrefetchBatchAsync(&memory, &bytes, 1, &to, &first, 1, 0, stream); },
      [&] { return cuMemDiscardBatchAsync(&memory, &bytes, 1, 0, stream); },
      [&] {
        return cuMemDiscardAndPrefetchBatchAsync(&memory, &bytes, 1, &to, &first, 1, 0, stream);
      });
}

ROW(capture, batches_of_copies_are_refused_and_spoil_nothing) {
  const Context context;
  const Cell from, to;
  MUST(cuMemsetD32(from, 5, 1));
  CUdeviceptr source = from, target = to;
  std::size_t bytes = 4, first = 0;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  CUDA_MEMCPY3D_BATCH_OP box{};
  box.src.type = box.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  box.src.op.ptr.ptr = from;
  box.dst.op.ptr.ptr = to;
  box.extent = {4, 1, 1};
  box.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  const CUstream stream = stream_new();
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    MUST(capture_begin(stream, mode));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            cuMemcpyBatchAsync(&target, &source, &bytes, 1, &attributes, &first, 1, stream));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemcpy3DBatchAsync(1, &box, 0, stream));
    const CUgraph graph = capture_end(stream);
    EXPECT_EQ(nodes_count(graph), 0U);
    MUST(cuGraphDestroy(graph));
  }
  EXPECT_EQ(to.value(), 0U);
}

ROW(capture, a_capturing_stream_is_not_asked_what_it_is) {
  const Context context;
  const CUstream stream = stream_new();
  unsigned flags = 0;
  unsigned long long id = 0;
  CUdevice device = 0;
  expect_each_invalidates(
      stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
      [&] { return cuStreamGetFlags(stream, &flags); }, [&] { return cuStreamGetId(stream, &id); },
      [&] { return cuStreamGetDevice(stream, &device); });
}

ROW(capture, a_capturing_stream_tells_its_context_and_priority) {
  const Context context;
  const CUstream stream = stream_new();
  CUcontext of_stream = nullptr;
  int priority = 7;
  MUST(capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ANSWERS(CUDA_SUCCESS, cuStreamGetCtx(stream, &of_stream));
  ANSWERS(CUDA_SUCCESS, cuStreamGetPriority(stream, &priority));
  expect_valid(stream);
  EXPECT_EQ(of_stream, context);
  EXPECT_EQ(priority, 0);
}

ROW(capture, the_legacy_stream_is_not_asked_what_it_is) {
  const Context context;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  unsigned flags = 0;
  CUdevice device = 0;
  CUcontext of_stream = nullptr;
  expect_each_invalidates(
      stream, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
      [&] { return cuStreamGetFlags(CU_STREAM_LEGACY, &flags); },
      [&] { return cuStreamGetDevice(CU_STREAM_LEGACY, &device); },
      [&] { return cuStreamGetCtx(CU_STREAM_LEGACY, &of_stream); });
}

ROW(capture, an_event_never_recorded_orders_nothing) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  ANSWERS(CUDA_SUCCESS, cuStreamWaitEvent(stream, event_new(), 0));
  EXPECT_TRUE(capture_info(stream).next_after.empty());
  expect_valid(stream);
}

ROW(capture, an_invalidated_capture_takes_no_work) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  MUST(capture_begin(stream));
  MUST(cuEventRecord(event, stream));
  EXPECT_NE(cuStreamQuery(stream), CUDA_SUCCESS);
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemsetD32Async(cell, 5, 1, stream));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuEventRecord(event, stream));
  EXPECT_NE(cuStreamWaitEvent(stream_new(), event, 0), CUDA_SUCCESS) << "nor do its events";
  expect_invalidated(stream);
}

ROW(capture, an_invalidated_stream_works_again_after_the_end) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  EXPECT_NE(cuStreamQuery(stream), CUDA_SUCCESS);
  expect_invalidated(stream);
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  ANSWERS(CUDA_SUCCESS, cuStreamSynchronize(stream));
  EXPECT_EQ(cell.value(), 5U);
}

}  // namespace
}  // namespace conformance
