// Rows of family `errors`: what a call answers that cannot do what is asked - names and texts of
// errors, a driver that is not initialised, no context, handles that are none, and that none of it
// harms the context.
#include <set>
#include <thread>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

struct Code {
  CUresult code;
  const char* name;
};
#define CODE(code) \
  { code, #code }
constexpr Code kCodes[] = {
    CODE(CUDA_SUCCESS),
    CODE(CUDA_ERROR_INVALID_VALUE),
    CODE(CUDA_ERROR_OUT_OF_MEMORY),
    CODE(CUDA_ERROR_NOT_INITIALIZED),
    CODE(CUDA_ERROR_DEINITIALIZED),
    CODE(CUDA_ERROR_PROFILER_DISABLED),
    CODE(CUDA_ERROR_PROFILER_NOT_INITIALIZED),
    CODE(CUDA_ERROR_PROFILER_ALREADY_STARTED),
    CODE(CUDA_ERROR_PROFILER_ALREADY_STOPPED),
    CODE(CUDA_ERROR_STUB_LIBRARY),
    CODE(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER),
    CODE(CUDA_ERROR_DEVICE_UNAVAILABLE),
    CODE(CUDA_ERROR_NO_DEVICE),
    CODE(CUDA_ERROR_INVALID_DEVICE),
    CODE(CUDA_ERROR_DEVICE_NOT_LICENSED),
    CODE(CUDA_ERROR_INVALID_IMAGE),
    CODE(CUDA_ERROR_INVALID_CONTEXT),
    CODE(CUDA_ERROR_CONTEXT_ALREADY_CURRENT),
    CODE(CUDA_ERROR_MAP_FAILED),
    CODE(CUDA_ERROR_UNMAP_FAILED),
    CODE(CUDA_ERROR_ARRAY_IS_MAPPED),
    CODE(CUDA_ERROR_ALREADY_MAPPED),
    CODE(CUDA_ERROR_NO_BINARY_FOR_GPU),
    CODE(CUDA_ERROR_ALREADY_ACQUIRED),
    CODE(CUDA_ERROR_NOT_MAPPED),
    CODE(CUDA_ERROR_NOT_MAPPED_AS_ARRAY),
    CODE(CUDA_ERROR_NOT_MAPPED_AS_POINTER),
    CODE(CUDA_ERROR_ECC_UNCORRECTABLE),
    CODE(CUDA_ERROR_UNSUPPORTED_LIMIT),
    CODE(CUDA_ERROR_CONTEXT_ALREADY_IN_USE),
    CODE(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
    CODE(CUDA_ERROR_INVALID_PTX),
    CODE(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT),
    CODE(CUDA_ERROR_NVLINK_UNCORRECTABLE),
    CODE(CUDA_ERROR_JIT_COMPILER_NOT_FOUND),
    CODE(CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
    CODE(CUDA_ERROR_JIT_COMPILATION_DISABLED),
    CODE(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY),
    CODE(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC),
    CODE(CUDA_ERROR_CONTAINED),
    CODE(CUDA_ERROR_INVALID_SOURCE),
    CODE(CUDA_ERROR_FILE_NOT_FOUND),
    CODE(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND),
    CODE(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED),
    CODE(CUDA_ERROR_OPERATING_SYSTEM),
    CODE(CUDA_ERROR_INVALID_HANDLE),
    CODE(CUDA_ERROR_ILLEGAL_STATE),
    CODE(CUDA_ERROR_LOSSY_QUERY),
    CODE(CUDA_ERROR_NOT_FOUND),
    CODE(CUDA_ERROR_NOT_READY),
    CODE(CUDA_ERROR_ILLEGAL_ADDRESS),
    CODE(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
    CODE(CUDA_ERROR_LAUNCH_TIMEOUT),
    CODE(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING),
    CODE(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    CODE(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED),
    CODE(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE),
    CODE(CUDA_ERROR_CONTEXT_IS_DESTROYED),
    CODE(CUDA_ERROR_ASSERT),
    CODE(CUDA_ERROR_TOO_MANY_PEERS),
    CODE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    CODE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    CODE(CUDA_ERROR_HARDWARE_STACK_ERROR),
    CODE(CUDA_ERROR_ILLEGAL_INSTRUCTION),
    CODE(CUDA_ERROR_MISALIGNED_ADDRESS),
    CODE(CUDA_ERROR_INVALID_ADDRESS_SPACE),
    CODE(CUDA_ERROR_INVALID_PC),
    CODE(CUDA_ERROR_LAUNCH_FAILED),
    CODE(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE),
    CODE(CUDA_ERROR_TENSOR_MEMORY_LEAK),
    CODE(CUDA_ERROR_NOT_PERMITTED),
    CODE(CUDA_ERROR_NOT_SUPPORTED),
    CODE(CUDA_ERROR_SYSTEM_NOT_READY),
    CODE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
    CODE(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE),
    CODE(CUDA_ERROR_MPS_CONNECTION_FAILED),
    CODE(CUDA_ERROR_MPS_RPC_FAILURE),
    CODE(CUDA_ERROR_MPS_SERVER_NOT_READY),
    CODE(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED),
    CODE(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED),
    CODE(CUDA_ERROR_MPS_CLIENT_TERMINATED),
    CODE(CUDA_ERROR_CDP_NOT_SUPPORTED),
    CODE(CUDA_ERROR_CDP_VERSION_MISMATCH),
    CODE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    CODE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    CODE(CUDA_ERROR_STREAM_CAPTURE_MERGE),
    CODE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
    CODE(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
    CODE(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
    CODE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
    CODE(CUDA_ERROR_CAPTURED_EVENT),
    CODE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
    CODE(CUDA_ERROR_TIMEOUT),
    CODE(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
    CODE(CUDA_ERROR_EXTERNAL_DEVICE),
    CODE(CUDA_ERROR_INVALID_CLUSTER_SIZE),
    CODE(CUDA_ERROR_FUNCTION_NOT_LOADED),
    CODE(CUDA_ERROR_INVALID_RESOURCE_TYPE),
    CODE(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION),
    CODE(CUDA_ERROR_KEY_ROTATION),
    CODE(CUDA_ERROR_UNKNOWN),
};
#undef CODE

ROW(errors, names_of_all_codes) {
  for (const auto& [code, expected] : kCodes) {
    const char* name = nullptr;
    EXPECT_EQ(cuGetErrorName(code, &name), CUDA_SUCCESS) << expected;
    EXPECT_STREQ(name, expected);
  }
}

ROW(errors, texts_of_all_codes) {
  std::set<std::string> texts;
  for (const auto& [code, name] : kCodes) {
    const char* text = nullptr;
    EXPECT_EQ(cuGetErrorString(code, &text), CUDA_SUCCESS) << name;
    ASSERT_NE(text, nullptr) << name;
    EXPECT_STRNE(text, "") << name;
    texts.insert(text);
  }
  EXPECT_GT(texts.size(), std::size(kCodes) / 2) << "they say which error it is";
}

ROW(errors, unknown_codes_have_no_name) {
  for (const int number : {-1, 9, 601, 1000, 12345}) {
    const char* name = "something";
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(no_such<CUresult>(number), &name));
    EXPECT_EQ(name, nullptr) << number;
    name = "something";
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGetErrorString(no_such<CUresult>(number), &name));
    EXPECT_EQ(name, nullptr) << number;
  }
}

ROW(errors, nothing_works_before_the_initialisation) {
  int count = 0;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&device, 0));
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuDevicePrimaryCtxRetain(&context, 0));
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuCtxCreate(&context, nullptr, 0, 0));
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&context));
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&memory, 64));
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuCtxSynchronize());
}

ROW(errors, initialisation_takes_no_flags) {
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuInit(1));
  ANSWERS(CUDA_SUCCESS, cuInit(0));
  ANSWERS(CUDA_SUCCESS, cuInit(0));
}

ROW(errors, without_a_context_there_is_nothing_to_work_in) {
  MUST(cuInit(0));
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUdevice device = 0;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&memory, 64));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuModuleLoadData(&module, kernels_image().data()));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&device));
}

ROW(errors, null_is_no_context_to_push_or_destroy) {
  MUST(cuInit(0));
  EXPECT_NE(cuCtxPushCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuCtxDestroy(nullptr), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&popped));
}

ROW(errors, null_is_no_event) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(nullptr, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventSynchronize(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuStreamWaitEvent(nullptr, nullptr, 0));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy(nullptr));
}

ROW(errors, null_is_no_stream_to_destroy) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(nullptr));
}

ROW(errors, null_is_no_module) {
  const Context context;
  CUfunction function = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&function, nullptr, "store"));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(nullptr));
}

ROW(errors, null_is_no_function) {
  const Context context;
  int value = 0;
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, launch(nullptr, 1, 1, {}));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE,
          cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr));
}

ROW(errors, null_is_no_graph) {
  const Context context;
  CUgraphExec exec = nullptr;
  std::size_t count = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, nullptr, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(nullptr, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(nullptr, nullptr, &count));
}

ROW(errors, devices_are_counted_from_zero) {
  const int count = devices_count();
  CUdevice device = 0;
  int value = 0;
  char name[64];
  for (const int ordinal : {-1, count, count + 100}) {
    ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, ordinal));
    ANSWERS(CUDA_ERROR_INVALID_DEVICE,
            cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, ordinal));
    ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetName(name, 64, ordinal));
  }
}

ROW(errors, names_that_are_not_there) {
  const Context context;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  MUST(cuModuleLoadData(&module, kernels_image().data()));
  ANSWERS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "no_such_kernel"));
  ANSWERS(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&address, &bytes, module, "no_such_variable"));
}

/// The context still does what it is asked.
void expect_works(const Store& store, const Word& word) {
  MUST(store(word, 5, nullptr));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  EXPECT_EQ(word.value(), 5U);
}

ROW(errors, a_refused_call_does_no_harm) {
  const Context context;
  const Store store;
  const Word word;
  CUdeviceptr memory = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&memory, 0));
  expect_works(store, word);
}

ROW(errors, a_refused_launch_does_no_harm) {
  const Context context;
  const Store store;
  const Word word;
  const CUfunction greedy = kernel("many_registers");
  int threads = 0;
  MUST(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, greedy));
  CUdeviceptr data = word.device();
  if (threads < 1024) {
    ANSWERS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, launch(greedy, 1, 1024, {&data}));
  }
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch(store.function(), 1, 1025, {&data, &data}));
  expect_works(store, word);
}

ROW(errors, running_out_of_memory_does_no_harm) {
  const Context context;
  const Store store;
  const Word word;
  std::size_t free_bytes = 0, total = 0;
  MUST(cuMemGetInfo(&free_bytes, &total));
  CUdeviceptr memory = 0;
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&memory, 2 * total));
  ANSWERS(CUDA_SUCCESS, cuMemAlloc(&memory, 4096));
  expect_works(store, word);
}

ROW(errors, a_destroyed_context_is_told_apart_from_none) {
  MUST(cuInit(0));
  CUcontext context = nullptr;
  MUST(cuCtxCreate(&context, nullptr, 0, 0));
  std::thread([&] {
    MUST(cuCtxSetCurrent(context));
    MUST(cuCtxDestroy(context));
  }).join();
  CUdeviceptr memory = 0;
  ANSWERS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&memory, 64));
}

}  // namespace
}  // namespace conformance
