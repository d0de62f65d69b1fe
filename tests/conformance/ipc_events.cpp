// Rows of family `ipc`: events that two processes record, wait for and ask.
#include "tests/conformance/ipc.h"

#include <chrono>
#include <thread>

namespace conformance {
namespace {

/// Long enough for what is submitted and not held to be done.
void while_work_would_run() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

ROW(ipc, device_tells_whether_events_are_shared) {
  const Context context;
  int supported = 0;
  MUST(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, context.device()));
  CUipcEventHandle handle{};
  const CUresult result = cuIpcGetEventHandle(&handle, event_new(kInterprocess));
  EXPECT_EQ(result == CUDA_SUCCESS, supported != 0);
}

ROW(ipc, event_handles_need_interprocess_events) {
  const Context context;
  CUipcEventHandle handle{};
  EXPECT_NE(cuIpcGetEventHandle(&handle, event_new(CU_EVENT_DISABLE_TIMING)), CUDA_SUCCESS);
  EXPECT_NE(cuIpcGetEventHandle(&handle, event_new(CU_EVENT_DEFAULT)), CUDA_SUCCESS);
}

ROW(ipc, event_handle_of_the_own_process_refused) {
  const Context context;
  const CUipcEventHandle handle = handle_of(event_new(kInterprocess));
  CUevent event = nullptr;
  EXPECT_NE(cuIpcOpenEventHandle(&event, handle), CUDA_SUCCESS);
}

ROW(ipc, opened_events_follow_the_exporter) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUevent event = event_open(channel.get<CUipcEventHandle>());
    ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    channel.signal();
    MUST(cuEventSynchronize(event));  // the exporter lets it go meanwhile
    ANSWERS(CUDA_SUCCESS, cuEventQuery(event));
    MUST(cuEventDestroy(event));
    channel.signal();
  });
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new(kInterprocess);
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuEventRecord(event, stream));
  importer.put(handle_of(event));
  importer.await();
  gate.open();
  importer.await();
}

ROW(ipc, streams_wait_for_the_exporter) {
  Partner importer([](Channel& channel) {
    const Context context;
    const Store store;
    const Word word;
    const CUstream stream = stream_new();
    const CUevent event = event_open(channel.get<CUipcEventHandle>());
    MUST(cuStreamWaitEvent(stream, event, 0));
    MUST(store(word, 1, stream));
    while_work_would_run();
    ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    EXPECT_EQ(word.value(), 0U);
    channel.signal();
    MUST(cuStreamSynchronize(stream));
    EXPECT_EQ(word.value(), 1U);
    channel.signal();
  });
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new(kInterprocess);
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuEventRecord(event, stream));
  importer.put(handle_of(event));
  importer.await();
  gate.open();
  importer.await();
}

ROW(ipc, streams_wait_for_the_importer) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUstream stream = stream_new();
    const CUevent event = event_open(channel.get<CUipcEventHandle>());
    Gate gate;
    MUST(gate.hold(stream));
    MUST(cuEventRecord(event, stream));
    channel.signal();
    channel.await();
    gate.open();
    MUST(cuStreamSynchronize(stream));
    channel.await();
  });
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new(kInterprocess);
  importer.put(handle_of(event));
  importer.await();
  MUST(cuStreamWaitEvent(stream, event, 0));
  while_work_would_run();
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  importer.signal();
  MUST(cuStreamSynchronize(stream));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(event));
  importer.signal();
}

ROW(ipc, events_order_memory_between_processes) {
  Partner importer([](Channel& channel) {
    const Context context;
    const Word word;
    const CUstream stream = stream_new();
    const CUdeviceptr p = memory_open(channel.get<CUipcMemHandle>());
    const CUevent event = event_open(channel.get<CUipcEventHandle>());
    MUST(cuStreamWaitEvent(stream, event, 0));
    MUST(cuMemcpyDtoDAsync(word.device(), p, sizeof(unsigned), stream));
    while_work_would_run();
    channel.signal();
    MUST(cuStreamSynchronize(stream));
    EXPECT_EQ(word.value(), 81U);
    channel.signal();
  });
  const Context context;
  const Store store;
  const CUstream stream = stream_new();
  const CUevent event = event_new(kInterprocess);
  CUdeviceptr p = device_memory(4096);
  word_write(p, 0);
  unsigned value = 81;
  Gate gate;
  MUST(gate.hold(stream));
  MUST(launch(store.function(), 1, 1, {&p, &value}, stream));
  MUST(cuEventRecord(event, stream));
  importer.put(handle_of(p));
  importer.put(handle_of(event));
  importer.await();
  gate.open();
  importer.await();
}

ROW(ipc, opened_events_are_complete_before_a_record) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUevent event = event_open(channel.get<CUipcEventHandle>());
    ANSWERS(CUDA_SUCCESS, cuEventQuery(event));
    MUST(cuEventSynchronize(event));
    channel.signal();
  });
  const Context context;
  const CUevent event = event_new(kInterprocess);
  importer.put(handle_of(event));
  importer.await();
}

ROW(ipc, a_wait_is_for_the_last_record_before_it) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUstream stream = stream_new();
    const CUevent event = event_open(channel.get<CUipcEventHandle>());
    MUST(cuStreamWaitEvent(stream, event, 0));
    channel.signal();
    channel.await();  // the exporter records again, behind its gate
    MUST(cuStreamSynchronize(stream));
    ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    channel.signal();
  });
  const Context context;
  const CUstream first = stream_new(), second = stream_new();
  const CUevent event = event_new(kInterprocess);
  Gate gate, later;
  MUST(gate.hold(first));
  MUST(later.hold(second));
  MUST(cuEventRecord(event, first));
  importer.put(handle_of(event));
  importer.await();
  MUST(cuEventRecord(event, second));
  gate.open();
  MUST(cuStreamSynchronize(first));
  importer.signal();
  importer.await();
}

ROW(ipc, opened_events_have_no_timing) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUevent event = event_open(channel.get<CUipcEventHandle>());
    const CUevent own = event_new(CU_EVENT_DEFAULT);
    MUST(cuEventRecord(own, nullptr));
    MUST(cuEventRecord(event, nullptr));
    MUST(cuCtxSynchronize());
    float milliseconds = 0;
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, own, event));
    channel.signal();
  });
  const Context context;
  const CUevent event = event_new(kInterprocess);
  importer.put(handle_of(event));
  importer.await();
}

ROW(ipc, destroying_an_opened_event_leaves_the_other) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUevent event = event_open(channel.get<CUipcEventHandle>());
    MUST(cuEventDestroy(event));
    channel.signal();
  });
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new(kInterprocess);
  importer.put(handle_of(event));
  importer.await();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuEventRecord(event, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  gate.open();
  MUST(cuEventSynchronize(event));
}

}  // namespace
}  // namespace conformance
