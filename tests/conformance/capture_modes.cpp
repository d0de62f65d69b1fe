// Rows of family `capture`: the modes of captures and threads - who is kept from unsafe calls, and
// who may end a capture.
#include <thread>

#include "tests/conformance/capture.h"

namespace conformance {
namespace {

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL,
               kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
               kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

CUstreamCaptureMode mode_exchange(CUstreamCaptureMode mode) {
  EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  return mode;
}

/// A call that is not enqueued into any stream and thus "potentially unsafe".
CUresult unsafe_call() {
  CUdeviceptr address = 0;
  const CUresult result = cuMemAlloc(&address, 16);
  EXPECT_TRUE(result != CUDA_SUCCESS || cuMemFree(address) == CUDA_SUCCESS);
  return result;
}

template <typename Body>
void in_other_thread(CUcontext context, Body body) {
  std::thread([&] {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    body();
  }).join();
}

ROW(capture, unsafe_calls_in_its_own_thread) {
  const Context context;
  for (const auto mode : {kGlobal, kThreadLocal}) {
    const CUstream stream = stream_new();
    MUST(capture_begin(stream, mode));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, unsafe_call());
    expect_invalidated(stream);
  }
}

ROW(capture, every_allocation_is_unsafe) {
  const Context context;
  const auto expect_refused = [](auto call) {
    const CUstream stream = stream_new();
    MUST(capture_begin(stream, kGlobal));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call());
    expect_invalidated(stream);
  };
  CUdeviceptr device = 0;
  void* host = nullptr;
  std::size_t pitch = 0;
  expect_refused([&] { return cuMemAllocPitch(&device, &pitch, 64, 4, 4); });
  expect_refused([&] { return cuMemAllocManaged(&device, 64, CU_MEM_ATTACH_GLOBAL); });
  expect_refused([&] { return cuMemAllocHost(&host, 64); });
  expect_refused([&] { return cuMemHostAlloc(&host, 64, 0); });
}

ROW(capture, freeing_is_unsafe) {
  const Context context;
  CUdeviceptr device = 0;
  MUST(cuMemAlloc(&device, 64));
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kGlobal));
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemFree(device));
  expect_invalidated(stream);
  ANSWERS(CUDA_SUCCESS, cuMemFree(device));  // it was not freed
}

/// Every call, under every mode and by every thread: which are refused, and what becomes of the
/// capture.
template <typename Call>
void expect_unsafe(CUcontext context, Call call) {
  for (const auto mode : {kGlobal, kThreadLocal, kRelaxed}) {
    for (const bool other : {false, true}) {
      const bool refused = mode == kGlobal || (mode == kThreadLocal && !other);
      const CUstream stream = stream_new();
      MUST(capture_begin(stream, mode));
      const auto ask = [&] {
        ANSWERS(refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS, call());
      };
      other ? in_other_thread(context, ask) : ask();
      refused ? expect_invalidated(stream) : expect_valid(stream);
    }
  }
}
/// The call is free to all.
template <typename Call>
void expect_free(CUcontext context, Call call) {
  for (const auto mode : {kGlobal, kThreadLocal, kRelaxed}) {
    const CUstream stream = stream_new();
    MUST(capture_begin(stream, mode));
    ANSWERS(CUDA_SUCCESS, call());
    MUST(cuCtxSetCurrent(context));  // the call may have made another
    in_other_thread(context, [&] { ANSWERS(CUDA_SUCCESS, call()); });
    expect_valid(stream);
  }
}

ROW(capture, making_arrays_and_pools_is_unsafe) {
  const Context context;
  expect_unsafe(context, [] {
    const CUDA_ARRAY_DESCRIPTOR flat{16, 16, CU_AD_FORMAT_FLOAT, 1};
    CUarray array = nullptr;
    const CUresult result = cuArrayCreate(&array, &flat);
    return result == CUDA_SUCCESS ? cuArrayDestroy(array) : result;
  });
  expect_unsafe(context, [] {
    const CUDA_ARRAY3D_DESCRIPTOR deep{16, 16, 16, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray array = nullptr;
    const CUresult result = cuMipmappedArrayCreate(&array, &deep, 2);
    return result == CUDA_SUCCESS ? cuMipmappedArrayDestroy(array) : result;
  });
  expect_unsafe(context, [] {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemoryPool pool = nullptr;
    const CUresult result = cuMemPoolCreate(&pool, &props);
    return result == CUDA_SUCCESS ? cuMemPoolDestroy(pool) : result;
  });
}

ROW(capture, giving_memory_back_is_unsafe) {
  const Context context;
  CUmemoryPool pool = nullptr;
  MUST(cuDeviceGetMemPool(&pool, 0));
  expect_unsafe(context, [&] { return cuMemPoolTrimTo(pool, 0); });
}

ROW(capture, asking_an_event_is_unsafe) {
  const Context context;
  const CUevent recorded = event_new(), never = event_new();
  MUST(cuEventRecord(recorded, stream_new()));
  MUST(cuCtxSynchronize());
  for (const CUevent event : {recorded, never}) {
    expect_unsafe(context, [&] { return cuEventQuery(event); });
    expect_unsafe(context, [&] { return cuEventSynchronize(event); });
  }
}

ROW(capture, asking_another_stream_is_unsafe) {
  const Context context;
  const CUstream other = stream_new();
  expect_unsafe(context, [&] { return cuStreamQuery(other); });
  expect_unsafe(context, [&] { return cuStreamSynchronize(other); });
}

ROW(capture, changing_a_limit_is_unsafe) {
  const Context context;
  expect_unsafe(context, [] { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048); });
  expect_unsafe(context, [] { return cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_NONE); });
}

ROW(capture, instantiating_is_unsafe) {
  const Context context;
  CUgraph graph = nullptr;
  MUST(cuGraphCreate(&graph, 0));
  CUgraphExec exec = nullptr;
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  expect_unsafe(context, [&] { return cuGraphInstantiate(&exec, graph, 0); });
  expect_unsafe(context, [&] { return cuGraphInstantiateWithParams(&exec, graph, &params); });
}

ROW(capture, code_may_be_loaded) {
  const Context context;
  expect_free(context, [] {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CUresult result = cuModuleLoadData(&module, kernels_image().data());
    if (result == CUDA_SUCCESS) result = cuModuleGetFunction(&function, module, "add_one");
    return result == CUDA_SUCCESS ? cuFuncLoad(function) : result;
  });
  expect_free(context, [] {
    CUlibrary library = nullptr;
    CUmodule module = nullptr;
    CUkernel loaded = nullptr;
    CUfunction function = nullptr;
    CUresult result = cuLibraryLoadData(&library, kernels_image().data(), nullptr, nullptr, 0,
                                        nullptr, nullptr, 0);
    if (result == CUDA_SUCCESS) result = cuLibraryGetModule(&module, library);
    if (result == CUDA_SUCCESS) result = cuLibraryGetKernel(&loaded, library, "add_one");
    return result == CUDA_SUCCESS ? cuKernelGetFunction(&function, loaded) : result;
  });
}

ROW(capture, contexts_streams_and_physical_memory_may_be_made) {
  const Context context;
  expect_free(context, [] {
    CUcontext made = nullptr;
    const CUresult result = cuCtxCreate(&made, nullptr, 0, 0);
    return result == CUDA_SUCCESS ? cuCtxDestroy(made) : result;
  });
  expect_free(context, [] {
    CUstream made = nullptr;
    return cuStreamCreate(&made, CU_STREAM_DEFAULT);
  });
  expect_free(context, [] {
    CUmemAllocationProp props{};
    props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemGenericAllocationHandle memory = 0;
    return cuMemCreate(&memory, 2 << 20, &props, 0);
  });
}

ROW(capture, unsafe_calls_are_free_to_a_relaxed_capture) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kRelaxed));
  ANSWERS(CUDA_SUCCESS, unsafe_call());
  in_other_thread(context, [] { ANSWERS(CUDA_SUCCESS, unsafe_call()); });
  expect_valid(stream);
}

ROW(capture, unsafe_calls_are_free_to_a_relaxed_thread) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kGlobal));
  const CUstreamCaptureMode before = mode_exchange(kRelaxed);
  ANSWERS(CUDA_SUCCESS, unsafe_call());
  EXPECT_EQ(mode_exchange(before), kRelaxed);
  expect_valid(stream);
}

ROW(capture, global_forbids_unsafe_calls_to_other_threads) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kGlobal));
  in_other_thread(context, [] { ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, unsafe_call()); });
  expect_invalidated(stream);
}

ROW(capture, thread_local_leaves_other_threads_alone) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kThreadLocal));
  in_other_thread(context, [] { ANSWERS(CUDA_SUCCESS, unsafe_call()); });
  expect_valid(stream);
}

ROW(capture, a_thread_can_ignore_the_captures_of_others) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kGlobal));
  for (const auto mode : {kThreadLocal, kRelaxed})
    in_other_thread(context, [&] {
      mode_exchange(mode);
      ANSWERS(CUDA_SUCCESS, unsafe_call());
    });
  expect_valid(stream);
}

ROW(capture, thread_local_mode_still_minds_its_own_captures) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kGlobal));
  mode_exchange(kThreadLocal);
  ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, unsafe_call());
  expect_invalidated(stream);
}

ROW(capture, relaxed_mode_frees_no_conflicting_call) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  mode_exchange(kRelaxed);
  MUST(capture_begin(stream, kRelaxed));
  MUST(cuEventRecord(event, stream));
  ANSWERS(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event));
  expect_invalidated(stream);
}

ROW(capture, unsafe_calls_are_free_after_the_end) {
  const Context context;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kGlobal));
  capture_end(stream);
  ANSWERS(CUDA_SUCCESS, unsafe_call());
  in_other_thread(context, [] { ANSWERS(CUDA_SUCCESS, unsafe_call()); });
}

ROW(capture, a_thread_begins_in_global_mode) {
  const Context context;
  EXPECT_EQ(mode_exchange(kRelaxed), kGlobal);
  std::thread([] { EXPECT_EQ(mode_exchange(kThreadLocal), kGlobal); }).join();
  EXPECT_EQ(mode_exchange(kGlobal), kRelaxed) << "the other thread's mode is its own";
}

ROW(capture, unknown_thread_mode_taken) {
  const Context context;
  auto mode = no_such<CUstreamCaptureMode>(3);
  ANSWERS(CUDA_SUCCESS, cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, kGlobal);
}

ROW(capture, end_in_the_thread_of_the_begin) {
  const Context context;
  for (const auto mode : {kGlobal, kThreadLocal}) {
    const CUstream stream = stream_new();
    MUST(capture_begin(stream, mode));
    in_other_thread(context, [&] {
      CUgraph graph = nullptr;
      ANSWERS(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture(stream, &graph));
    });
    CUgraph graph = nullptr;
    (void)cuStreamEndCapture(stream, &graph);
  }
}

ROW(capture, relaxed_ends_in_any_thread) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kRelaxed));
  MUST(cuMemsetD32Async(cell, 5, 1, stream));
  in_other_thread(context, [&] { EXPECT_EQ(nodes_count(capture_end(stream)), 1U); });
}

ROW(capture, other_threads_add_to_a_capture) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream, kGlobal));
  in_other_thread(context, [&] { MUST(cuMemsetD32Async(cell, 5, 1, stream)); });
  EXPECT_EQ(nodes_count(capture_end(stream)), 1U);
}

}  // namespace
}  // namespace conformance
