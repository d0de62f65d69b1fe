// Rows of family `streams`: what a stream tells of itself, which streams wait for which, what is
// pending and what is done. Attributes are in streams_attributes.cpp, memory operations in stream
// order in streams_words.cpp.
#include <set>
#include <thread>
#include <vector>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

ROW(streams, create_flags_checked) {
  const Context context;
  CUstream stream = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&stream, 2));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamCreateWithPriority(&stream, 0x10, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(nullptr, CU_STREAM_DEFAULT));
  ANSWERS(CUDA_SUCCESS, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

ROW(streams, flags_are_told) {
  const Context context;
  unsigned flags = 7;
  MUST(cuStreamGetFlags(stream_new(CU_STREAM_DEFAULT), &flags));
  EXPECT_EQ(flags, unsigned{CU_STREAM_DEFAULT});
  MUST(cuStreamGetFlags(stream_new(CU_STREAM_NON_BLOCKING), &flags));
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
  flags = 7;
  MUST(cuStreamGetFlags(nullptr, &flags));
  EXPECT_EQ(flags, unsigned{CU_STREAM_DEFAULT});
}

ROW(streams, priority_range_holds_zero) {
  const Context context;
  int least = -1, greatest = 1;
  MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_LT(greatest, 0);
  observe("greatest", greatest);
  ANSWERS(CUDA_SUCCESS, cuCtxGetStreamPriorityRange(nullptr, nullptr));
}

ROW(streams, priority_is_clamped) {
  const Context context;
  int least = 0, greatest = 0, told = 7;
  MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
  MUST(cuStreamGetPriority(stream_new(CU_STREAM_DEFAULT, greatest - 100), &told));
  EXPECT_EQ(told, greatest);
  MUST(cuStreamGetPriority(stream_new(CU_STREAM_DEFAULT, least + 100), &told));
  EXPECT_EQ(told, least);
  MUST(cuStreamGetPriority(stream_new(CU_STREAM_DEFAULT, -1), &told));
  EXPECT_EQ(told, -1);
}

ROW(streams, default_priority_is_zero) {
  const Context context;
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  int told = 7;
  MUST(cuStreamGetPriority(stream, &told));
  EXPECT_EQ(told, 0);
  told = 7;
  MUST(cuStreamGetPriority(nullptr, &told));
  EXPECT_EQ(told, 0);
}

// Asserted with room to spare: a share of half the device would be a factor of two.
ROW(streams, priority_goes_first) {
  settings_soft({{"SOFTGPU_PACING", "1"}, {"SOFTGPU_RATE", "4e5"}});
  const Context context;
  const CUfunction spin = kernel("spin");
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 4));
  int sms = 0, least = 0, greatest = 0;
  MUST(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context.device()));
  MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
  const CUstream low = stream_new(CU_STREAM_NON_BLOCKING, least);
  const CUstream high = stream_new(CU_STREAM_NON_BLOCKING, greatest);
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  unsigned rounds = 1000;
  const auto high_ms = [&] {
    float ms = 0;
    EXPECT_EQ(cuEventRecord(begin, high), CUDA_SUCCESS);
    EXPECT_EQ(launch(spin, static_cast<unsigned>(sms), 32, {&data, &rounds}, high), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(end, high), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_SUCCESS);
    return ms;
  };
  (void)high_ms();
  const float alone = high_ms();
  for (int i = 0; i < 8; ++i)
    MUST(launch(spin, static_cast<unsigned>(sms), 32, {&data, &rounds}, low));
  const float contended = high_ms();
  EXPECT_LT(contended, 1.5F * alone + 0.1F);
  MUST(cuCtxSynchronize());
}

ROW(streams, ids_are_unique) {
  const Context context;
  std::set<unsigned long long> ids;
  unsigned long long id = 0, again = 0;
  for (const CUstream stream :
       {CUstream{nullptr}, CU_STREAM_PER_THREAD, stream_new(), stream_new()}) {
    MUST(cuStreamGetId(stream, &id));
    MUST(cuStreamGetId(stream, &again));
    EXPECT_EQ(id, again);
    EXPECT_TRUE(ids.insert(id).second) << id;
  }
  MUST(cuStreamGetId(CU_STREAM_LEGACY, &id));
  MUST(cuStreamGetId(nullptr, &again));
  EXPECT_EQ(id, again) << "two names of one stream";
}

ROW(streams, ids_are_not_used_again) {
  const Context context;
  std::set<unsigned long long> ids;
  for (int i = 0; i < 8; ++i) {
    const CUstream stream = stream_new();
    unsigned long long id = 0;
    MUST(cuStreamGetId(stream, &id));
    EXPECT_TRUE(ids.insert(id).second) << id;
    MUST(cuStreamDestroy(stream));
  }
}

ROW(streams, context_of_a_created_stream) {
  const Context first;
  const CUstream stream = stream_new();
  const Context second;
  CUcontext told = nullptr;
  MUST(cuStreamGetCtx(stream, &told));
  EXPECT_EQ(told, CUcontext{first}) << "the one current at creation";
  for (const CUstream special : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    MUST(cuStreamGetCtx(special, &told));
    EXPECT_EQ(told, CUcontext{second}) << "the current one";
  }
}

ROW(streams, no_green_context) {
  const Context context;
  const CUstream stream = stream_new();
  CUgreenCtx green = reinterpret_cast<CUgreenCtx>(&green);
  MUST(cuStreamGetGreenCtx(stream, &green));
  EXPECT_EQ(green, nullptr);
}

ROW(streams, special_streams_need_a_context) {
  const Context context;
  CUcontext popped = nullptr;
  MUST(cuCtxPopCurrent(&popped));
  CUcontext told = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuStreamGetCtx(nullptr, &told));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuStreamSynchronize(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuStreamQuery(CU_STREAM_PER_THREAD));
  MUST(cuCtxPushCurrent(popped));
}

ROW(streams, device_is_told) {
  const Context context;
  CUdevice device = -1;
  MUST(cuStreamGetDevice(stream_new(), &device));
  EXPECT_EQ(device, context.device());
  device = -1;
  MUST(cuStreamGetDevice(nullptr, &device));
  EXPECT_EQ(device, context.device());
}

ROW(streams, nowhere_to_answer) {
  const Context context;
  const CUstream stream = stream_new();
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamGetFlags(stream, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamGetPriority(stream, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamGetId(stream, nullptr));
}

ROW(streams, legacy_waits_for_blocking) {
  const Context context;
  const Word done;
  const Store store;
  const CUstream blocking = stream_new(CU_STREAM_DEFAULT);
  Gate gate;
  MUST(gate.hold(blocking));
  MUST(store(done, 5, nullptr));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  EXPECT_EQ(done.value(), 0U);
  gate.open();
  MUST(cuStreamSynchronize(nullptr));
  EXPECT_EQ(done.value(), 5U);
  ANSWERS(CUDA_SUCCESS, cuStreamQuery(nullptr));
}

ROW(streams, blocking_waits_for_legacy) {
  const Context context;
  const Word done;
  const Store store;
  const CUstream blocking = stream_new(CU_STREAM_DEFAULT);
  Gate gate;
  MUST(gate.hold(nullptr));
  MUST(store(done, 5, blocking));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(blocking));
  EXPECT_EQ(done.value(), 0U);
  gate.open();
  MUST(cuStreamSynchronize(blocking));
  EXPECT_EQ(done.value(), 5U);
}

ROW(streams, legacy_orders_two_blocking_streams) {
  const Context context;
  const Word between, after;
  const Store store;
  const CUstream first = stream_new(CU_STREAM_DEFAULT), second = stream_new(CU_STREAM_DEFAULT);
  Gate gate;
  MUST(gate.hold(first));
  MUST(store(between, 1, CU_STREAM_LEGACY));
  MUST(store(after, 2, second));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
  EXPECT_EQ(after.value(), 0U) << "second waits for legacy, which waits for first";
  gate.open();
  MUST(cuStreamSynchronize(second));
  EXPECT_EQ(between.value(), 1U);
  EXPECT_EQ(after.value(), 2U);
}

ROW(streams, non_blocking_waits_for_nobody) {
  const Context context;
  const Word done;
  const Store store;
  const CUstream free = stream_new(CU_STREAM_NON_BLOCKING);
  Gate gate;
  MUST(gate.hold(nullptr));
  MUST(store(done, 5, free));
  MUST(cuStreamSynchronize(free));
  EXPECT_EQ(done.value(), 5U);
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
}

ROW(streams, legacy_does_not_wait_for_non_blocking) {
  const Context context;
  const Word done;
  const Store store;
  const CUstream free = stream_new(CU_STREAM_NON_BLOCKING);
  Gate gate;
  MUST(gate.hold(free));
  MUST(store(done, 5, nullptr));
  MUST(cuStreamSynchronize(nullptr));
  EXPECT_EQ(done.value(), 5U);
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(free));
}

ROW(streams, two_blocking_streams_are_independent) {
  const Context context;
  const Word done;
  const Store store;
  const CUstream first = stream_new(CU_STREAM_DEFAULT), second = stream_new(CU_STREAM_DEFAULT);
  Gate gate;
  MUST(gate.hold(first));
  MUST(store(done, 5, second));
  MUST(cuStreamSynchronize(second));
  EXPECT_EQ(done.value(), 5U);
}

ROW(streams, per_thread_is_blocking) {
  const Context context;
  const Word done;
  const Store store;
  Gate gate;
  MUST(gate.hold(CU_STREAM_PER_THREAD));
  MUST(store(done, 5, CU_STREAM_LEGACY));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
  gate.open();
  MUST(cuStreamSynchronize(CU_STREAM_LEGACY));
  EXPECT_EQ(done.value(), 5U);
}

ROW(streams, per_thread_is_each_threads_own) {
  const Context context;
  const Store store;
  const Word done;
  Gate gate;
  MUST(gate.hold(CU_STREAM_PER_THREAD));
  unsigned long long mine = 0, other = 0;
  MUST(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamGetId(CU_STREAM_PER_THREAD, &other), CUDA_SUCCESS);
    EXPECT_EQ(store(done, 5, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  }).join();
  EXPECT_NE(mine, other);
  EXPECT_EQ(done.value(), 5U);
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
}

constexpr const char* kPerThreadNames[] = {"cuStreamGetPriority",
                                           "cuStreamGetFlags",
                                           "cuStreamGetId",
                                           "cuStreamGetCtx",
                                           "cuStreamGetDevice",
                                           "cuStreamWaitEvent",
                                           "cuStreamAddCallback",
                                           "cuStreamQuery",
                                           "cuStreamSynchronize",
                                           "cuStreamCopyAttributes",
                                           "cuStreamGetAttribute",
                                           "cuStreamSetAttribute",
                                           "cuStreamAttachMemAsync",
                                           "cuStreamWriteValue32",
                                           "cuStreamWriteValue64",
                                           "cuStreamWaitValue32",
                                           "cuStreamWaitValue64",
                                           "cuStreamBatchMemOp",
                                           "cuEventRecord",
                                           "cuEventRecordWithFlags",
                                           "cuLaunchKernel",
                                           "cuLaunchKernelEx",
                                           "cuLaunchCooperativeKernel",
                                           "cuLaunchHostFunc"};

ROW(streams, per_thread_twins_exist) {
  const Context context;
  for (const char* name : kPerThreadNames) {
    void *plain = nullptr, *twin = nullptr;
    SCOPED_TRACE(name);
    CUdriverProcAddressQueryResult status{};
    ANSWERS(CUDA_SUCCESS,
            cuGetProcAddress(name, &plain, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
    ANSWERS(CUDA_SUCCESS, cuGetProcAddress(name, &twin, 13000,
                                           CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    EXPECT_NE(plain, nullptr);
    EXPECT_NE(twin, nullptr);
    EXPECT_NE(plain, twin);
  }
}

template <typename F>
F per_thread_twin(const char* name) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_EQ(
      cuGetProcAddress(name, &found, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status),
      CUDA_SUCCESS);
  return reinterpret_cast<F>(found);
}

ROW(streams, per_thread_twins_mean_the_own_stream) {
  const Context context;
  const auto get_id = per_thread_twin<decltype(&cuStreamGetId)>("cuStreamGetId");
  const auto query = per_thread_twin<decltype(&cuStreamQuery)>("cuStreamQuery");
  unsigned long long twin = 0, own = 0, legacy = 0;
  MUST(get_id(nullptr, &twin));
  MUST(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
  EXPECT_EQ(twin, own);
  MUST(get_id(CU_STREAM_LEGACY, &legacy));
  EXPECT_NE(legacy, own) << "a named stream stays what it is";
  const Store store;
  Gate gate;
  MUST(gate.hold(CU_STREAM_PER_THREAD));
  ANSWERS(CUDA_ERROR_NOT_READY, query(nullptr));
  ANSWERS(CUDA_SUCCESS, cuStreamQuery(stream_new()));
}

ROW(streams, query_tells_pending_and_done) {
  const Context context;
  const CUstream stream = stream_new();
  ANSWERS(CUDA_SUCCESS, cuStreamQuery(stream));
  Gate gate;
  MUST(gate.hold(stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  gate.open();
  CUresult result = CUDA_ERROR_NOT_READY;
  while (result == CUDA_ERROR_NOT_READY) result = cuStreamQuery(stream);
  EXPECT_EQ(result, CUDA_SUCCESS) << "asking is enough for work to go on";
}

ROW(streams, work_goes_on_without_being_asked) {
  const Context context;
  const Word done;
  const Store store;
  const CUstream stream = stream_new();
  MUST(store(done, 5, stream));
  while (done.value() != 5) std::this_thread::yield();
}

ROW(streams, destroying_lets_pending_work_finish) {
  const Context context;
  const Word done;
  const Store store;
  const CUstream stream = stream_new();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(store(done, 5, stream));
  ANSWERS(CUDA_SUCCESS, cuStreamDestroy(stream));
  EXPECT_EQ(done.value(), 0U) << "it did not wait";
  gate.open();
  MUST(cuCtxSynchronize());
  EXPECT_EQ(done.value(), 5U);
}

ROW(streams, destroyed_without_a_context) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(cuCtxSetCurrent(nullptr));
  ANSWERS(CUDA_SUCCESS, cuStreamDestroy(stream));
  MUST(cuCtxSetCurrent(context));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

ROW(streams, special_streams_are_not_destroyed) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(CU_STREAM_LEGACY));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(CU_STREAM_PER_THREAD));
  ANSWERS(CUDA_SUCCESS, cuStreamSynchronize(nullptr));
}

ROW(streams, context_synchronise_waits_for_all) {
  const Context context;
  const Word first, second;
  const Store store;
  const CUstream blocking = stream_new(CU_STREAM_DEFAULT), free = stream_new();
  for (unsigned i = 1; i <= 50; ++i) {
    MUST(store(first, i, blocking));
    MUST(store(second, i, free));
  }
  MUST(cuCtxSynchronize());
  EXPECT_EQ(first.value(), 50U);
  EXPECT_EQ(second.value(), 50U);
  ANSWERS(CUDA_SUCCESS, cuStreamQuery(free));
}

ROW(streams, faults_are_told_by_waiting) {
  const Context context;
  const CUfunction bad = kernel("write_address");
  const CUstream stream = stream_new();
  unsigned long long address = 0x40;
  MUST(launch(bad, 1, 1, {&address}, stream));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(stream));
}

ROW(streams, contexts_of_a_stream) {
  const Context first;
  const CUstream stream = stream_new();
  const Context second;
  CUcontext told = nullptr;
  CUgreenCtx green = reinterpret_cast<CUgreenCtx>(&green);
  MUST(cuStreamGetCtx_v2(stream, &told, &green));
  EXPECT_EQ(told, CUcontext{first});
  EXPECT_EQ(green, nullptr);
  green = reinterpret_cast<CUgreenCtx>(&green);
  MUST(cuStreamGetCtx_v2(nullptr, &told, &green));
  EXPECT_EQ(told, CUcontext{second});
  EXPECT_EQ(green, nullptr);
}

ROW(streams, synchronising_waits_for_its_own_work_only) {
  const Context context;
  const Word done;
  const Store store;
  const CUstream held = stream_new(), stream = stream_new();
  Gate gate;
  MUST(gate.hold(held));
  MUST(store(done, 5, stream));
  ANSWERS(CUDA_SUCCESS, cuStreamSynchronize(stream));
  EXPECT_EQ(done.value(), 5U);
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
}

ROW(streams, order_holds_among_threads_that_wait) {
  const Context context;
  const CUfunction add = kernel("add_one");
  CUdeviceptr data = 0;
  unsigned count = 1;
  MUST(cuMemAlloc(&data, 4));
  MUST(cuMemsetD32(data, 0, 1));
  MUST(cuCtxSynchronize());
  const CUstream stream = stream_new();
  constexpr unsigned kThreads = 4, kLaunches = 200;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      for (unsigned i = 0; i < kLaunches; ++i) {
        EXPECT_EQ(launch(add, 1, 1, {&data, &count}, stream), CUDA_SUCCESS);
        if (i % 3 == 0) {
          EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  unsigned value = 0;
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemcpyDtoH(&value, data, 4));
  EXPECT_EQ(value, kThreads * kLaunches) << "no two kernels of a stream ran at once";
}

}  // namespace
}  // namespace conformance
