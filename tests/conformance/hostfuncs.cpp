// Rows of family `hostfuncs`: host functions and callbacks - when they run, what they may do, and
// what becomes of them when something fails. A function that must wait waits for a word of its own,
// never for another function: those may be run one after another.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

/// What the functions of a row leave; one row runs in a process.
struct Seen {
  std::atomic<int> calls{0};
  std::atomic<unsigned> value{0};
  std::atomic<int> result{-1};
  std::atomic<bool> go{false};
  std::atomic<CUstream> stream{nullptr};
  const Word* word = nullptr;
};

void count(void* data) { ++static_cast<Seen*>(data)->calls; }

void look(void* data) {
  auto* seen = static_cast<Seen*>(data);
  seen->value = seen->word->value();
  ++seen->calls;
}

void wait_go(void* data) {
  auto* seen = static_cast<Seen*>(data);
  while (!seen->go) std::this_thread::yield();
  ++seen->calls;
}

void note(CUstream stream, CUresult status, void* data) {
  auto* seen = static_cast<Seen*>(data);
  seen->stream = stream;
  seen->result = status;
  ++seen->calls;
}

ROW(hostfuncs, runs_once_with_its_data) {
  const Context context;
  Seen seen;
  const CUstream stream = stream_new();
  MUST(cuLaunchHostFunc(stream, count, &seen));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(seen.calls, 1);
}

ROW(hostfuncs, runs_after_earlier_work) {
  const Context context;
  const Word word;
  const Store store;
  Seen seen;
  seen.word = &word;
  const CUstream stream = stream_new();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(store(word, 9, stream));
  MUST(cuLaunchHostFunc(stream, look, &seen));
  EXPECT_EQ(seen.calls, 0);
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(seen.value, 9U);
}

ROW(hostfuncs, holds_later_work) {
  const Context context;
  const Word word;
  const Store store;
  Seen seen;
  const CUstream stream = stream_new();
  MUST(cuLaunchHostFunc(stream, wait_go, &seen));
  MUST(store(word, 9, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(word.value(), 0U);
  seen.go = true;
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 9U);
}

ROW(hostfuncs, keep_their_order) {
  const Context context;
  static std::vector<int> order;
  static int numbers[100];
  const CUstream stream = stream_new();
  for (int i = 0; i < 100; ++i) {
    numbers[i] = i;
    MUST(cuLaunchHostFunc(
        stream, [](void* data) { order.push_back(*static_cast<int*>(data)); }, &numbers[i]));
  }
  MUST(cuStreamSynchronize(stream));
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

ROW(hostfuncs, launch_does_not_wait) {
  const Context context;
  Seen seen;
  const CUstream stream = stream_new();
  MUST(cuLaunchHostFunc(stream, wait_go, &seen));
  EXPECT_EQ(seen.calls, 0) << "the call returned while its function waits";
  seen.go = true;
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(seen.calls, 1);
}

ROW(hostfuncs, synchronising_waits_for_the_return) {
  const Context context;
  Seen seen;
  MUST(cuLaunchHostFunc(nullptr, wait_go, &seen));
  std::thread opener([&] { seen.go = true; });
  MUST(cuCtxSynchronize());
  EXPECT_EQ(seen.calls, 1);
  opener.join();
}

ROW(hostfuncs, event_after_waits_for_the_return) {
  const Context context;
  Seen seen;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  MUST(cuLaunchHostFunc(stream, wait_go, &seen));
  MUST(cuEventRecord(event, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  seen.go = true;
  MUST(cuEventSynchronize(event));
  EXPECT_EQ(seen.calls, 1);
}

ROW(hostfuncs, waits_for_an_event_of_another_stream) {
  const Context context;
  const Word word;
  const Store store;
  Seen seen;
  seen.word = &word;
  const CUstream first = stream_new(), second = stream_new();
  const CUevent event = event_new();
  Gate gate;
  MUST(gate.hold(first));
  MUST(store(word, 9, first));
  MUST(cuEventRecord(event, first));
  MUST(cuStreamWaitEvent(second, event, 0));
  MUST(cuLaunchHostFunc(second, look, &seen));
  EXPECT_EQ(seen.calls, 0);
  gate.open();
  MUST(cuStreamSynchronize(second));
  EXPECT_EQ(seen.value, 9U);
}

ROW(hostfuncs, holds_a_stream_that_waits_for_it) {
  const Context context;
  const Word word;
  const Store store;
  Seen seen;
  const CUstream first = stream_new(), second = stream_new();
  const CUevent event = event_new();
  MUST(cuLaunchHostFunc(first, wait_go, &seen));
  MUST(cuEventRecord(event, first));
  MUST(cuStreamWaitEvent(second, event, 0));
  MUST(store(word, 9, second));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
  seen.go = true;
  MUST(cuStreamSynchronize(second));
  EXPECT_EQ(word.value(), 9U);
}

ROW(hostfuncs, pending_work_elsewhere_does_not_hold_it) {
  const Context context;
  Seen seen;
  const CUstream held = stream_new(), stream = stream_new();
  Gate gate;
  MUST(gate.hold(held));
  MUST(cuLaunchHostFunc(stream, count, &seen));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(seen.calls, 1);
}

ROW(hostfuncs, legacy_stream_rules_hold) {
  const Context context;
  const Word word;
  const Store store;
  Seen seen;
  seen.word = &word;
  const CUstream blocking = stream_new(CU_STREAM_DEFAULT);
  Gate gate;
  MUST(gate.hold(blocking));
  MUST(store(word, 9, blocking));
  MUST(cuLaunchHostFunc(CU_STREAM_LEGACY, look, &seen));
  EXPECT_EQ(seen.calls, 0);
  gate.open();
  MUST(cuStreamSynchronize(CU_STREAM_LEGACY));
  EXPECT_EQ(seen.value, 9U);
}

ROW(hostfuncs, works_in_the_per_thread_stream) {
  const Context context;
  Seen seen;
  MUST(cuLaunchHostFunc(CU_STREAM_PER_THREAD, count, &seen));
  MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(seen.calls, 1);
}

ROW(hostfuncs, runs_although_its_stream_is_destroyed) {
  const Context context;
  Seen seen;
  const CUstream stream = stream_new();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuLaunchHostFunc(stream, count, &seen));
  MUST(cuStreamDestroy(stream));
  gate.open();
  MUST(cuCtxSynchronize());
  EXPECT_EQ(seen.calls, 1);
}

ROW(hostfuncs, null_function_refused) {
  const Context context;
  const CUstream stream = stream_new();
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(stream, nullptr, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(stream, nullptr, nullptr, 0));
}

ROW(hostfuncs, callback_flags_are_reserved) {
  const Context context;
  Seen seen;
  const CUstream stream = stream_new();
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(stream, note, &seen, 1));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(seen.calls, 0);
}

ROW(hostfuncs, needs_a_context) {
  const Context context;
  CUcontext popped = nullptr;
  MUST(cuCtxPopCurrent(&popped));
  Seen seen;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuLaunchHostFunc(nullptr, count, &seen));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuStreamAddCallback(nullptr, note, &seen, 0));
  MUST(cuCtxPushCurrent(popped));
}

ROW(hostfuncs, callback_gets_stream_and_status) {
  const Context context;
  Seen seen;
  const CUstream stream = stream_new();
  MUST(cuStreamAddCallback(stream, note, &seen, 0));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.result, CUDA_SUCCESS);
  EXPECT_EQ(seen.stream, stream);
}

ROW(hostfuncs, callback_runs_after_earlier_and_before_later_work) {
  const Context context;
  static Word* later = nullptr;
  const Word earlier;
  Word after;
  later = &after;
  const Store store;
  static Seen seen;
  seen.word = &earlier;
  const CUstream stream = stream_new();
  MUST(store(earlier, 4, stream));
  MUST(cuStreamAddCallback(
      stream,
      [](CUstream, CUresult, void*) {
        seen.value = seen.word->value() * 10 + later->value();
        ++seen.calls;
      },
      nullptr, 0));
  MUST(store(after, 5, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(seen.value, 40U);
  EXPECT_EQ(after.value(), 5U);
}

ROW(hostfuncs, callbacks_may_not_call_the_driver) {
  const Context context;
  static CUresult results[5];
  static CUfunction function;
  function = kernel("trap");
  const CUstream stream = stream_new();
  MUST(cuStreamAddCallback(
      stream,
      [](CUstream of, CUresult, void*) {
        CUdeviceptr p = 0;
        std::size_t free = 0, total = 0;
        results[0] = cuMemAlloc(&p, 16);
        results[1] = cuStreamSynchronize(of);
        results[2] = cuMemGetInfo(&free, &total);
        results[3] = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, of, nullptr, nullptr);
        results[4] = cuCtxSynchronize();
      },
      nullptr, 0));
  MUST(cuStreamSynchronize(stream));
  for (const CUresult result : results) EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
  CUdeviceptr p = 0;
  ANSWERS(CUDA_SUCCESS, cuMemAlloc(&p, 16));  // a refused call does no harm
}

ROW(hostfuncs, callbacks_may_read_error_texts) {
  const Context context;
  static std::string name;
  const CUstream stream = stream_new();
  MUST(cuStreamAddCallback(
      stream,
      [](CUstream, CUresult status, void*) {
        const char* text = nullptr;
        if (cuGetErrorName(status, &text) == CUDA_SUCCESS) name = text;
      },
      nullptr, 0));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(name, "CUDA_SUCCESS");
}

ROW(hostfuncs, after_a_fault_functions_do_not_run) {
  const Context context;
  const CUfunction bad = kernel("write_address");
  unsigned long long address = 0x40;
  Seen seen;
  const CUstream stream = stream_new();
  MUST(launch(bad, 1, 1, {&address}, stream));
  // Either it is queued and never called, or the fault is known already.
  const CUresult queued = cuLaunchHostFunc(stream, count, &seen);
  EXPECT_TRUE(queued == CUDA_SUCCESS || queued == CUDA_ERROR_ILLEGAL_ADDRESS) << queued;
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  EXPECT_EQ(seen.calls, 0);
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuLaunchHostFunc(stream, count, &seen));
}

ROW(hostfuncs, after_a_fault_callbacks_are_told) {
  const Context context;
  const CUfunction bad = kernel("write_address");
  unsigned long long address = 0x40;
  static Seen seen;
  const CUstream stream = stream_new();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(launch(bad, 1, 1, {&address}, stream));
  MUST(cuStreamAddCallback(stream, note, &seen, 0));
  gate.open();
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  while (seen.calls == 0) std::this_thread::yield();
  EXPECT_EQ(seen.result, CUDA_ERROR_ILLEGAL_ADDRESS);
}

ROW(hostfuncs, every_callback_runs_once) {
  const Context context;
  Seen seen;
  const CUstream first = stream_new(), second = stream_new();
  for (int i = 0; i < 100; ++i) {
    MUST(cuStreamAddCallback(first, note, &seen, 0));
    MUST(cuStreamAddCallback(second, note, &seen, 0));
  }
  MUST(cuCtxSynchronize());
  EXPECT_EQ(seen.calls, 200);
}

ROW(hostfuncs, may_use_managed_memory) {
  const Context context;
  const Store store;
  CUdeviceptr managed = 0;
  MUST(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
  unsigned value = 9;
  const CUstream stream = stream_new();
  MUST(launch(store.function(), 1, 1, {&managed, &value}, stream));
  MUST(cuLaunchHostFunc(
      stream, [](void* data) { *static_cast<unsigned*>(data) += 1; },
      reinterpret_cast<void*>(managed)));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(*reinterpret_cast<unsigned*>(managed), 10U);
}

ROW(hostfuncs, can_signal_the_end_of_a_stream) {
  const Context context;
  const Word word;
  const Store store;
  Seen seen;
  seen.word = &word;
  const CUstream stream = stream_new();
  MUST(store(word, 9, stream));
  MUST(cuLaunchHostFunc(stream, look, &seen));
  while (seen.calls == 0) std::this_thread::yield();
  EXPECT_EQ(seen.value, 9U);
  MUST(cuStreamSynchronize(stream));
}

ROW(hostfuncs, callback_of_the_null_stream_gets_null) {
  const Context context;
  Seen seen;
  seen.stream = reinterpret_cast<CUstream>(&seen);
  MUST(cuStreamAddCallback(nullptr, note, &seen, 0));
  MUST(cuStreamSynchronize(nullptr));
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.stream, nullptr);
}

ROW(hostfuncs, functions_and_callbacks_keep_their_order) {
  const Context context;
  static std::vector<int> order;
  static int numbers[40];
  const CUstream stream = stream_new();
  for (int i = 0; i < 40; ++i) {
    numbers[i] = i;
    if (i % 2 == 0)
      MUST(cuLaunchHostFunc(
          stream, [](void* data) { order.push_back(*static_cast<int*>(data)); }, &numbers[i]));
    else
      MUST(cuStreamAddCallback(
          stream, [](CUstream, CUresult, void* data) { order.push_back(*static_cast<int*>(data)); },
          &numbers[i], 0));
  }
  MUST(cuStreamSynchronize(stream));
  ASSERT_EQ(order.size(), 40U);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

}  // namespace
}  // namespace conformance
