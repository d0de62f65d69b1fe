// Rows of family `launches`: what a launch checks, in which words parameters may be given, and
// cooperative launches. Launch attributes are in launches_attributes.cpp.
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

struct Shape {
  unsigned gx = 1, gy = 1, gz = 1, bx = 1, by = 1, bz = 1, shared = 0;
};

CUresult launch_empty(const Shape& s, const char* name = "empty") {
  return cuLaunchKernel(kernel(name), s.gx, s.gy, s.gz, s.bx, s.by, s.bz, s.shared, nullptr,
                        nullptr, nullptr);
}

ROW(launches, empty_grids_refused) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.gx = 0}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.gy = 0}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.gz = 0}));
  ANSWERS(CUDA_SUCCESS, launch_empty({}));
  MUST(cuCtxSynchronize());
}

ROW(launches, empty_blocks_refused) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.bx = 0}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.by = 0}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.bz = 0}));
}

ROW(launches, grid_limits) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.gx = 0x80000000U}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.gy = 65536}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.gz = 65536}));
  ANSWERS(CUDA_SUCCESS, launch_empty({.gy = 65535}));
  ANSWERS(CUDA_SUCCESS, launch_empty({.gx = 70000}));
  MUST(cuCtxSynchronize());
}

ROW(launches, block_limits) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.bx = 1025}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.by = 1025}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.bz = 65}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.bx = 512, .by = 3}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.bx = 32, .by = 32, .bz = 2}));
  ANSWERS(CUDA_SUCCESS, launch_empty({.bx = 1024}));
  ANSWERS(CUDA_SUCCESS, launch_empty({.by = 1024}));
  ANSWERS(CUDA_SUCCESS, launch_empty({.bx = 16, .bz = 64}));
  MUST(cuCtxSynchronize());
}

ROW(launches, shared_limit) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, launch_empty({.shared = 48 * 1024}));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.shared = 48 * 1024 + 1}));
  MUST(cuCtxSynchronize());
}

ROW(launches, static_shared_counts) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, launch_empty({.shared = 8 * 1024}, "static_shared"));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.shared = 8 * 1024 + 1}, "static_shared"));
  MUST(cuCtxSynchronize());
}

ROW(launches, shared_opt_in) {
  const Context context;
  int limit = 0;
  MUST(cuDeviceGetAttribute(&limit, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                            context.device()));
  ASSERT_GT(limit, 48 * 1024);
  observe("opt_in", limit);
  const CUfunction function = kernel("empty");
  const auto run = [&](int bytes) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, static_cast<unsigned>(bytes), nullptr,
                          nullptr, nullptr);
  };
  ANSWERS(CUDA_ERROR_INVALID_VALUE, run(limit));  // not asked for
  MUST(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 * 1024));
  ANSWERS(CUDA_SUCCESS, run(64 * 1024));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, run(64 * 1024 + 1));
  MUST(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, limit));
  ANSWERS(CUDA_SUCCESS, run(limit));
  MUST(cuCtxSynchronize());
}

ROW(launches, launch_bounds_hold) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, launch_empty({.bx = 64}, "bounded_64"));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.bx = 65}, "bounded_64"));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.bx = 8, .by = 16}, "bounded_64"));
  MUST(cuCtxSynchronize());
}

ROW(launches, registers_limit_the_block) {
  const Context context;
  const CUfunction function = kernel("many_registers");
  int registers = 0, threads = 0;
  MUST(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  MUST(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  observe("registers", registers);
  observe("threads", threads);
  ASSERT_GT(registers, 64) << "the kernel is no test of this rule";
  EXPECT_LT(threads, 1024);
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 1024 * 4));
  ANSWERS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, launch(function, 1, 1024, {&data}));
  ANSWERS(CUDA_SUCCESS, launch(function, 1, 128, {&data}));
  MUST(cuCtxSynchronize());
}

ROW(launches, null_function_refused) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, launch(nullptr, 1, 1, {}));
}

ROW(launches, needs_a_context) {
  const Context context;
  const CUfunction function = kernel("empty");
  CUcontext popped = nullptr;
  MUST(cuCtxPopCurrent(&popped));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, launch(function, 1, 1, {}));
  MUST(cuCtxPushCurrent(popped));
}

ROW(launches, every_thread_runs_once) {
  const Context context;
  const CUfunction function = kernel("write_index");
  constexpr unsigned kThreads = 3 * 2 * 4 * 5 * 3 * 2;
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, kThreads * 4));
  MUST(cuMemsetD32(data, 0, kThreads));
  void* params[] = {&data};
  MUST(cuLaunchKernel(function, 3, 2, 4, 5, 3, 2, 0, nullptr, params, nullptr));
  std::vector<unsigned> values(kThreads);
  MUST(cuMemcpyDtoH(values.data(), data, kThreads * 4));
  for (unsigned i = 0; i < kThreads; ++i) ASSERT_EQ(values[i], i + 1) << i;
}

struct Packed {
  CUdeviceptr data;
  unsigned value;
};

/// Launches `store` with `extra`.
CUresult launch_extra(void** extra, void** params = nullptr) {
  return cuLaunchKernel(kernel("store"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, extra);
}

ROW(launches, parameters_as_one_buffer) {
  const Context context;
  const Word word;
  Packed packed{word.device(), 7};
  std::size_t size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  ANSWERS(CUDA_SUCCESS, launch_extra(extra));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word.value(), 7U);
  void* swapped[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_BUFFER_POINTER, &packed,
                     nullptr};
  packed.value = 8;
  ANSWERS(CUDA_SUCCESS, launch_extra(swapped));  // any order, ended by null
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word.value(), 8U);
}

ROW(launches, parameters_in_one_form_only) {
  const Context context;
  const Word word;
  Packed packed{word.device(), 7};
  std::size_t size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  void* params[] = {&packed.data, &packed.value};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_extra(extra, params));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word.value(), 0U);
}

ROW(launches, parameters_are_copied) {
  const Context context;
  const Word word;
  const Store store;
  const CUstream stream = stream_new();
  CUdeviceptr address = word.device();
  unsigned value = 7;
  void* params[] = {&address, &value};
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuLaunchKernel(store.function(), 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
  value = 8;
  address = 0;
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 7U);
}

ROW(launches, is_asynchronous) {
  const Context context;
  const Word flag, seen;
  const CUfunction wait = kernel("wait_flag");
  Word go;
  CUdeviceptr flag_at = go.device(), seen_at = seen.device();
  const CUstream stream = stream_new();
  MUST(launch(wait, 1, 1, {&flag_at, &seen_at}, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  go.set(3);
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(seen.value(), 3U);
}

ROW(launches, blocking_on_request) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  const Context context;
  const Word word;
  const CUfunction store = kernel("store");
  CUdeviceptr address = word.device();
  unsigned value = 7;
  MUST(launch(store, 1, 1, {&address, &value}, stream_new()));
  EXPECT_EQ(word.value(), 7U) << "the launch waited for its kernel";
}

ROW(launches, streams_of_other_contexts_refused) {
  const Context first;
  const CUfunction function = kernel("empty");
  {
    const Context second;
    const CUstream stream = stream_new();
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, launch(function, 1, 1, {}, stream));
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, launch(function, 1, 1, {}));
  }
  MUST(cuCtxSetCurrent(first));
  ANSWERS(CUDA_SUCCESS, launch(function, 1, 1, {}));
  MUST(cuCtxSynchronize());
}

ROW(launches, a_kernel_is_a_function_of_the_streams_context) {
  const Context first;
  CUlibrary library = nullptr;
  CUkernel found = nullptr;
  MUST(cuLibraryLoadData(&library, kernels_image().data(), nullptr, nullptr, 0, nullptr, nullptr,
                         0));
  MUST(cuLibraryGetKernel(&found, library, "store"));
  const Word word;
  CUdeviceptr address = word.device();
  unsigned value = 7;
  const auto function = reinterpret_cast<CUfunction>(found);
  ANSWERS(CUDA_SUCCESS, launch(function, 1, 1, {&address, &value}));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word.value(), 7U);
  const CUstream stream = stream_new();
  {
    const Context second;
    value = 8;
    ANSWERS(CUDA_SUCCESS, launch(function, 1, 1, {&address, &value}, stream));
    MUST(cuStreamSynchronize(stream));
    EXPECT_EQ(word.value(), 8U);
  }
  MUST(cuCtxSetCurrent(first));
}

ROW(launches, refused_launches_do_no_harm) {
  const Context context;
  const Word word;
  const Store store;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, launch_empty({.bx = 2048}));
  ANSWERS(CUDA_SUCCESS, store(word, 7, nullptr));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  EXPECT_EQ(word.value(), 7U);
}

ROW(launches, cooperative_too_large_refused) {
  const Context context;
  const CUfunction function = kernel("grid_barrier");
  int sms = 0, blocks = 0;
  MUST(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context.device()));
  MUST(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
  const auto resident = static_cast<unsigned>(sms * blocks);
  CUdeviceptr counter = 0;
  MUST(cuMemAlloc(&counter, 8));
  MUST(cuMemsetD32(counter, 0, 2));
  CUdeviceptr out = counter + 4;
  void* params[] = {&counter, &out};
  ANSWERS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
          cuLaunchCooperativeKernel(function, resident + 1, 1, 1, 256, 1, 1, 0, nullptr, params));
  ANSWERS(CUDA_SUCCESS,
          cuLaunchCooperativeKernel(function, resident, 1, 1, 256, 1, 1, 0, nullptr, params));
  MUST(cuCtxSynchronize());
  unsigned passed = 0;
  MUST(cuMemcpyDtoH(&passed, out, 4));
  EXPECT_EQ(passed, resident) << "all blocks were there at once";
}

ROW(launches, cooperative_shared_memory_counts) {
  const Context context;
  const CUfunction function = kernel("grid_barrier");
  int sms = 0, few = 0, many = 0;
  MUST(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context.device()));
  MUST(cuOccupancyMaxActiveBlocksPerMultiprocessor(&few, function, 32, 40 * 1024));
  MUST(cuOccupancyMaxActiveBlocksPerMultiprocessor(&many, function, 32, 0));
  ASSERT_LT(few, many);
  CUdeviceptr counter = 0;
  MUST(cuMemAlloc(&counter, 8));
  MUST(cuMemsetD32(counter, 0, 2));
  CUdeviceptr out = counter + 4;
  void* params[] = {&counter, &out};
  const auto blocks = static_cast<unsigned>(sms * few + 1);
  ANSWERS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
          cuLaunchCooperativeKernel(function, blocks, 1, 1, 32, 1, 1, 40 * 1024, nullptr, params));
  ANSWERS(CUDA_SUCCESS,
          cuLaunchCooperativeKernel(function, blocks, 1, 1, 32, 1, 1, 0, nullptr, params));
  MUST(cuCtxSynchronize());
}

ROW(launches, ordinary_grids_may_exceed_the_device) {
  const Context context;
  const CUfunction function = kernel("count_threads");
  int sms = 0;
  MUST(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context.device()));
  ANSWERS(CUDA_SUCCESS, launch(function, static_cast<unsigned>(sms) * 40, 64, {}));
  MUST(cuCtxSynchronize());
}

ROW(launches, parameters_may_be_absent) {
  const Context context;
  void* nothing[] = {nullptr};
  const CUfunction function = kernel("empty");
  ANSWERS(CUDA_SUCCESS, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  ANSWERS(CUDA_SUCCESS, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nothing, nullptr));
  MUST(cuCtxSynchronize());
}

ROW(launches, parameters_up_to_32764_bytes) {
  const Context context;
  const CUfunction function = kernel("sum_ends");
  std::size_t offset = 0, size = 0;
  MUST(cuFuncGetParamInfo(function, 1, &offset, &size));
  ASSERT_EQ(offset + size, 32764U);
  const Word word;
  CUdeviceptr address = word.device();
  std::vector<unsigned char> bytes(size);
  bytes.front() = 100;
  bytes.back() = 200;
  ANSWERS(CUDA_SUCCESS, launch(function, 1, 1, {&address, bytes.data()}));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word.value(), 300U);
}

// The deprecated interface, in which a function carries what its next launch is given.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
ROW(launches, functions_carry_their_settings) {
  const Context context;
  const CUfunction function = kernel("write_index");
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 64 * 4));
  MUST(cuMemsetD32(data, 0, 64));
  MUST(cuFuncSetBlockShape(function, 4, 2, 1));
  MUST(cuFuncSetSharedSize(function, 0));
  MUST(cuParamSetSize(function, 8));
  MUST(cuParamSetv(function, 0, &data, 8));
  ANSWERS(CUDA_SUCCESS, cuLaunchGrid(function, 2, 3));
  std::vector<unsigned> values(64);
  MUST(cuMemcpyDtoH(values.data(), data, 64 * 4));
  for (unsigned i = 0; i < 64; ++i) EXPECT_EQ(values[i], i < 48 ? i + 1 : 0) << i;
  MUST(cuMemsetD32(data, 0, 64));
  ANSWERS(CUDA_SUCCESS, cuLaunch(function));  // a single block
  MUST(cuMemcpyDtoH(values.data(), data, 64 * 4));
  for (unsigned i = 0; i < 64; ++i) EXPECT_EQ(values[i], i < 8 ? i + 1 : 0) << i;
}

ROW(launches, single_parameters_of_a_function) {
  const Context context;
  const Word word;
  const CUfunction function = kernel("store");
  const CUstream stream = stream_new();
  CUdeviceptr address = word.device();
  MUST(cuFuncSetBlockShape(function, 1, 1, 1));
  MUST(cuParamSetSize(function, 12));
  MUST(cuParamSetv(function, 0, &address, 8));
  MUST(cuParamSeti(function, 8, 7));
  ANSWERS(CUDA_SUCCESS, cuLaunchGridAsync(function, 1, 1, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 7U);
  MUST(cuParamSetf(function, 8, 1.0F));
  ANSWERS(CUDA_SUCCESS, cuLaunchGridAsync(function, 1, 1, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 0x3f800000U);
}

ROW(launches, settings_of_a_function_are_checked) {
  const Context context;
  const CUfunction function = kernel("empty");
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(function, 0, 1, 1));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuFuncSetBlockShape(nullptr, 1, 1, 1));
  MUST(cuFuncSetBlockShape(function, 1, 1, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(function, 0, 1));
  ANSWERS(CUDA_SUCCESS, cuLaunchGrid(function, 1, 1));
  MUST(cuCtxSynchronize());
}
#pragma GCC diagnostic pop

}  // namespace
}  // namespace conformance
