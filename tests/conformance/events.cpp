// Rows of family `events`: what an event captures, what waiting for it waits for, and time.
#include <chrono>
#include <thread>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

ROW(events, create_flags_checked) {
  const Context context;
  CUevent event = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, 0x8));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuEventCreate(nullptr, CU_EVENT_DEFAULT));
  ANSWERS(CUDA_SUCCESS, cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
}

ROW(events, interprocess_needs_no_timing) {
  const Context context;
  CUevent event = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, CU_EVENT_INTERPROCESS));
  ANSWERS(CUDA_SUCCESS, cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
}

ROW(events, needs_a_context) {
  const Context context;
  CUcontext popped = nullptr;
  MUST(cuCtxPopCurrent(&popped));
  CUevent event = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuEventCreate(&event, CU_EVENT_DEFAULT));
  MUST(cuCtxPushCurrent(popped));
}

ROW(events, never_recorded_is_complete) {
  const Context context;
  const CUevent event = event_new();
  ANSWERS(CUDA_SUCCESS, cuEventQuery(event));
  ANSWERS(CUDA_SUCCESS, cuEventSynchronize(event));
}

ROW(events, waiting_for_never_recorded_is_nothing) {
  const Context context;
  const CUstream stream = stream_new();
  ANSWERS(CUDA_SUCCESS, cuStreamWaitEvent(stream, event_new(), 0));
  MUST(cuStreamSynchronize(stream));
}

ROW(events, null_event_refused) {
  const Context context;
  const CUstream stream = stream_new();
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(nullptr, stream));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuStreamWaitEvent(stream, nullptr, 0));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventSynchronize(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy(nullptr));
}

ROW(events, query_tells_pending_and_done) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuEventRecord(event, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  gate.open();
  MUST(cuEventSynchronize(event));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(event));
}

ROW(events, asking_is_enough_to_get_done) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  const Store store;
  const Word done;
  MUST(store(done, 5, stream));
  MUST(cuEventRecord(event, stream));
  CUresult result = CUDA_ERROR_NOT_READY;
  while (result == CUDA_ERROR_NOT_READY) result = cuEventQuery(event);
  EXPECT_EQ(result, CUDA_SUCCESS);
  EXPECT_EQ(done.value(), 5U);
}

ROW(events, captures_what_is_before_only) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  const Store store;
  const Word done;
  Gate gate;
  MUST(store(done, 5, stream));
  MUST(cuEventRecord(event, stream));
  MUST(gate.hold(stream));
  MUST(cuEventSynchronize(event));
  EXPECT_EQ(done.value(), 5U);
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
}

ROW(events, blocking_event_waits_too) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
  const Store store;
  const Word done;
  Gate gate;
  MUST(gate.hold(stream));
  MUST(store(done, 5, stream));
  MUST(cuEventRecord(event, stream));
  std::thread opener([&] { gate.open(); });
  MUST(cuEventSynchronize(event));
  EXPECT_EQ(done.value(), 5U);
  opener.join();
}

ROW(events, recording_again_replaces) {
  const Context context;
  const CUstream held = stream_new(), idle = stream_new();
  const CUevent event = event_new();
  Gate gate;
  MUST(gate.hold(held));
  MUST(cuEventRecord(event, held));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  MUST(cuEventRecord(event, idle));
  MUST(cuEventSynchronize(event));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(event));
}

ROW(events, a_wait_keeps_what_it_saw) {
  const Context context;
  const CUstream first = stream_new(), second = stream_new(), waits = stream_new();
  const CUevent event = event_new();
  const Store store;
  const Word done;
  Gate gate;
  MUST(cuEventRecord(event, first));
  MUST(cuStreamWaitEvent(waits, event, 0));
  MUST(gate.hold(second));
  MUST(cuEventRecord(event, second));
  MUST(store(done, 5, waits));
  MUST(cuStreamSynchronize(waits));
  EXPECT_EQ(done.value(), 5U) << "the later record does not hold an earlier wait";
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
}

ROW(events, waiting_orders_streams) {
  const Context context;
  const CUstream first = stream_new(), second = stream_new();
  const CUevent event = event_new();
  const Store store;
  const Word before, after;
  Gate gate;
  MUST(gate.hold(first));
  MUST(store(before, 1, first));
  MUST(cuEventRecord(event, first));
  MUST(cuStreamWaitEvent(second, event, CU_EVENT_WAIT_DEFAULT));
  MUST(store(after, 2, second));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
  EXPECT_EQ(after.value(), 0U);
  gate.open();
  MUST(cuStreamSynchronize(second));
  EXPECT_EQ(before.value(), 1U);
  EXPECT_EQ(after.value(), 2U);
}

ROW(events, waiting_holds_only_later_work) {
  const Context context;
  const CUstream held = stream_new(), stream = stream_new();
  const CUevent event = event_new(), earlier = event_new();
  const Store store;
  const Word done;
  Gate gate;
  MUST(gate.hold(held));
  MUST(cuEventRecord(event, held));
  MUST(store(done, 5, stream));
  MUST(cuEventRecord(earlier, stream));
  MUST(cuStreamWaitEvent(stream, event, 0));
  MUST(cuEventSynchronize(earlier));
  EXPECT_EQ(done.value(), 5U);
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
}

ROW(events, waiting_in_the_same_stream_is_nothing) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  MUST(cuEventRecord(event, stream));
  MUST(cuStreamWaitEvent(stream, event, 0));
  MUST(cuStreamSynchronize(stream));
}

ROW(events, waiting_across_contexts) {
  const Context first;
  const CUstream held = stream_new();
  const CUevent event = event_new();
  const Store store;
  const Word done;
  Gate gate;
  MUST(gate.hold(held));
  MUST(cuEventRecord(event, held));
  {
    const Context second;
    const CUstream stream = stream_new();
    ANSWERS(CUDA_SUCCESS, cuStreamWaitEvent(stream, event, 0));
    ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    gate.open();
    MUST(cuStreamSynchronize(stream));
  }
  MUST(cuCtxSetCurrent(first));
}

ROW(events, recording_in_a_stream_of_another_context_refused) {
  const Context first;
  const CUevent event = event_new();
  {
    const Context second;
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, stream_new()));
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, nullptr));
  }
  MUST(cuCtxSetCurrent(first));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(event));
}

ROW(events, legacy_record_captures_blocking_streams) {
  const Context context;
  const CUstream blocking = stream_new(CU_STREAM_DEFAULT);
  const CUevent event = event_new();
  Gate gate;
  MUST(gate.hold(blocking));
  MUST(cuEventRecord(event, nullptr));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  gate.open();
  MUST(cuEventSynchronize(event));
}

ROW(events, a_wait_of_the_legacy_stream_holds_blocking_streams) {
  const Context context;
  const CUstream held = stream_new(), blocking = stream_new(CU_STREAM_DEFAULT);
  const CUevent event = event_new();
  const Store store;
  const Word done;
  Gate gate;
  MUST(gate.hold(held));
  MUST(cuEventRecord(event, held));
  MUST(cuStreamWaitEvent(nullptr, event, 0));
  MUST(store(done, 5, blocking));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(blocking));
  gate.open();
  MUST(cuStreamSynchronize(blocking));
  EXPECT_EQ(done.value(), 5U);
}

ROW(events, destroying_a_pending_event) {
  const Context context;
  const CUstream held = stream_new(), waits = stream_new();
  const CUevent event = event_new();
  const Store store;
  const Word before, after;
  Gate gate;
  MUST(gate.hold(held));
  MUST(store(before, 1, held));
  MUST(cuEventRecord(event, held));
  MUST(cuStreamWaitEvent(waits, event, 0));
  MUST(store(after, 2, waits));
  ANSWERS(CUDA_SUCCESS, cuEventDestroy(event));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(waits));
  gate.open();
  MUST(cuStreamSynchronize(waits));
  EXPECT_EQ(before.value(), 1U);
  EXPECT_EQ(after.value(), 2U);
}

ROW(events, record_flags_checked) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  ANSWERS(CUDA_SUCCESS, cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_DEFAULT));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuEventRecordWithFlags(event, stream, 0x4));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitEvent(stream, event, 0x4));
}

ROW(events, external_only_while_capturing) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  EXPECT_NE(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL), CUDA_SUCCESS);
  EXPECT_NE(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL), CUDA_SUCCESS);
  ANSWERS(CUDA_SUCCESS, cuEventQuery(event));
}

ROW(events, elapsed_needs_records) {
  const Context context;
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  float ms = -1;
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, begin, end));
  MUST(cuEventRecord(begin, nullptr));
  MUST(cuEventSynchronize(begin));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, begin, end));
}

ROW(events, elapsed_needs_timing) {
  const Context context;
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DISABLE_TIMING);
  MUST(cuEventRecord(begin, nullptr));
  MUST(cuEventRecord(end, nullptr));
  MUST(cuCtxSynchronize());
  float ms = -1;
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, begin, end));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, end, begin));
}

ROW(events, elapsed_not_ready) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  Gate gate;
  MUST(cuEventRecord(begin, stream));
  MUST(gate.hold(stream));
  MUST(cuEventRecord(end, stream));
  float ms = -1;
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, begin, end));
  gate.open();
  MUST(cuEventSynchronize(end));
  ANSWERS(CUDA_SUCCESS, cuEventElapsedTime(&ms, begin, end));
  EXPECT_GE(ms, 0.0F);
}

ROW(events, elapsed_has_a_sign) {
  const Context context;
  const CUfunction spin = kernel("spin");
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 4));
  unsigned rounds = 100000;
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  MUST(cuEventRecord(begin, nullptr));
  MUST(launch(spin, 1, 32, {&data, &rounds}));
  MUST(cuEventRecord(end, nullptr));
  MUST(cuEventSynchronize(end));
  float there = 0, back = 0, none = 1;
  MUST(cuEventElapsedTime(&there, begin, end));
  MUST(cuEventElapsedTime(&back, end, begin));
  MUST(cuEventElapsedTime(&none, end, end));
  EXPECT_GT(there, 0.0F);
  EXPECT_FLOAT_EQ(back, -there);
  EXPECT_EQ(none, 0.0F);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuEventElapsedTime(nullptr, begin, end));
}

ROW(events, elapsed_grows_with_the_work) {
  const Context context;
  const CUfunction spin = kernel("spin");
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 4));
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  float ms[2] = {};
  for (int i = 0; i < 2; ++i) {
    unsigned rounds = i == 0 ? 50000U : 500000U;
    MUST(cuEventRecord(begin, nullptr));
    MUST(launch(spin, 1, 32, {&data, &rounds}));
    MUST(cuEventRecord(end, nullptr));
    MUST(cuEventSynchronize(end));
    MUST(cuEventElapsedTime(&ms[i], begin, end));
  }
  EXPECT_GT(ms[1], 2 * ms[0]);
}

ROW(events, devices_do_not_mix) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Context first(0);
  const CUevent begin = event_new(CU_EVENT_DEFAULT);
  MUST(cuEventRecord(begin, nullptr));
  MUST(cuEventSynchronize(begin));
  {
    const Context second(1);
    const CUstream stream = stream_new();
    const CUevent end = event_new(CU_EVENT_DEFAULT);
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(begin, stream));
    MUST(cuEventRecord(end, stream));
    MUST(cuEventSynchronize(end));
    float ms = 0;
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, begin, end));
    ANSWERS(CUDA_SUCCESS, cuStreamWaitEvent(stream, begin, 0));  // waiting across devices is fine
    ANSWERS(CUDA_SUCCESS, cuEventQuery(begin));
    MUST(cuStreamSynchronize(stream));
  }
  MUST(cuCtxSetCurrent(first));
}

ROW(events, any_thread_may_wait) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  const Store store;
  const Word done;
  Gate gate;
  MUST(gate.hold(stream));
  MUST(store(done, 5, stream));
  MUST(cuEventRecord(event, stream));
  unsigned seen = 0;
  std::thread waits([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
    seen = done.value();
  });
  gate.open();
  waits.join();
  EXPECT_EQ(seen, 5U);
}

ROW(events, faults_are_told_by_waiting) {
  const Context context;
  const CUfunction bad = kernel("write_address");
  const CUevent event = event_new();
  unsigned long long address = 0x40;
  Gate gate;
  MUST(gate.hold(nullptr));
  MUST(launch(bad, 1, 1, {&address}));
  MUST(cuEventRecord(event, nullptr));
  gate.open();
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventSynchronize(event));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventQuery(event));
}

ROW(events, elapsed_in_both_versions) {
  const Context context;
  const CUfunction spin = kernel("spin");
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 4));
  unsigned rounds = 10000;
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  const CUevent untimed = event_new(CU_EVENT_DISABLE_TIMING);
  MUST(cuEventRecord(begin, nullptr));
  MUST(launch(spin, 1, 32, {&data, &rounds}));
  MUST(cuEventRecord(end, nullptr));
  MUST(cuEventRecord(untimed, nullptr));
  MUST(cuEventSynchronize(end));
  MUST(cuEventSynchronize(untimed));
  float ms[2] = {-1, -2};
  void* found[2] = {};
  const int versions[2] = {2000, 12080};
  for (int i = 0; i < 2; ++i) {
    CUdriverProcAddressQueryResult status{};
    MUST(cuGetProcAddress("cuEventElapsedTime", &found[i], versions[i], CU_GET_PROC_ADDRESS_DEFAULT,
                          &status));
    const auto elapsed = reinterpret_cast<decltype(&cuEventElapsedTime)>(found[i]);
    ANSWERS(CUDA_SUCCESS, elapsed(&ms[i], begin, end));
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, elapsed(&ms[i == 0 ? 1 : 0], begin, untimed));
  }
  EXPECT_NE(found[0], found[1]);
  EXPECT_EQ(ms[0], ms[1]);
  EXPECT_GT(ms[0], 0.0F);
}

ROW(events, elapsed_between_streams) {
  const Context context;
  const Store store;
  const Word done;
  const CUstream first = stream_new(), second = stream_new();
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  MUST(cuEventRecord(begin, first));
  MUST(cuStreamWaitEvent(second, begin, 0));
  MUST(store(done, 5, second));
  MUST(cuEventRecord(end, second));
  MUST(cuEventSynchronize(end));
  float ms = -1;
  ANSWERS(CUDA_SUCCESS, cuEventElapsedTime(&ms, begin, end));
  EXPECT_GE(ms, 0.0F) << "what waited came later";
}

ROW(events, time_includes_a_host_function) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  MUST(cuEventRecord(begin, stream));
  MUST(cuLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));
  MUST(cuEventRecord(end, stream));
  MUST(cuEventSynchronize(end));
  float ms = 0;
  MUST(cuEventElapsedTime(&ms, begin, end));
  EXPECT_GE(ms, 19.0F);
}

ROW(events, context_record_needs_an_event_of_the_context) {
  const Context first;
  const CUevent event = event_new();
  {
    const Context second;
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(second, event));
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(second, nullptr));
  }
  MUST(cuCtxSetCurrent(first));
  ANSWERS(CUDA_SUCCESS, cuCtxRecordEvent(first, event));
  MUST(cuEventSynchronize(event));
}

ROW(events, context_wait_for_another_context) {
  const Context first;
  const CUstream held = stream_new();
  const CUevent event = event_new();
  const Store store;
  Gate gate;
  MUST(gate.hold(held));
  MUST(cuEventRecord(event, held));
  {
    const Context second;
    ANSWERS(CUDA_SUCCESS, cuCtxWaitEvent(second, event));
    const CUstream stream = stream_new();
    const CUevent own = event_new();
    MUST(cuEventRecord(own, stream));
    ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(own));
    gate.open();
    ANSWERS(CUDA_SUCCESS, cuEventSynchronize(own));
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuCtxWaitEvent(second, nullptr));
  }
  MUST(cuCtxSetCurrent(first));
}

}  // namespace
}  // namespace conformance
