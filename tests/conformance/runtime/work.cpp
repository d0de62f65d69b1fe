// Rows of family `runtime`: launches, functions, streams, events, libraries.
#include "tests/conformance/runtime/runtime.h"

namespace conformance {
namespace {

ROW(runtime, kernels_are_launched) {
  const DeviceWord word;
  ANSWERS(cudaSuccess, run(runtime_store, 1, 1, nullptr, word.get(), 42U));
  EXPECT_EQ(word.value(), 42U);
}

ROW(runtime, impossible_shapes_are_told) {
  const DeviceWord word;
  ANSWERS(cudaErrorInvalidConfiguration, run(runtime_store, 1, 2048, nullptr, word.get(), 1U));
  ANSWERS(cudaErrorInvalidConfiguration, cudaGetLastError());
  ANSWERS(cudaErrorInvalidConfiguration, run(runtime_store, 0, 1, nullptr, word.get(), 1U));
  EXPECT_EQ(word.value(), 0U);
}

ROW(runtime, what_is_no_kernel_is_not_launched) {
  static const int no_kernel = 0;
  ANSWERS(cudaErrorInvalidDeviceFunction,
          cudaLaunchKernel(&no_kernel, dim3(1), dim3(1), nullptr, 0, nullptr));
}

ROW(runtime, launches_by_configuration) {
  const DeviceWord word;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  unsigned* address = word.get();
  unsigned value = 17;
  void* arguments[] = {&address, &value};
  ANSWERS(cudaSuccess, cudaLaunchKernelExC(&config, kernel_of(runtime_store), arguments));
  EXPECT_EQ(word.value(), 17U);
}

ROW(runtime, launches_stay_on_their_device) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  RUNS(cudaSetDevice(1));
  const cudaStream_t there = stream_make();
  RUNS(cudaSetDevice(0));
  const DeviceWord word;
  unsigned* address = word.get();
  unsigned value = 7;
  void* arguments[] = {&address, &value};
  const void* const kernel = kernel_of(runtime_store);
  ANSWERS(cudaErrorInvalidResourceHandle,
          cudaLaunchKernel(kernel, dim3(1), dim3(1), arguments, 0, there));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = there;
  ANSWERS(cudaErrorInvalidResourceHandle, cudaLaunchKernelExC(&config, kernel, arguments));
  ANSWERS(cudaErrorInvalidResourceHandle,
          cudaLaunchCooperativeKernel(kernel, dim3(1), dim3(1), arguments, 0, there));
  ANSWERS(cudaErrorInvalidResourceHandle, cudaGetLastError());
  RUNS(cudaStreamSynchronize(there));
  EXPECT_EQ(word.value(), 0U);
  RUNS(cudaSetDevice(1));
  const DeviceWord own;
  RUNS(cudaDeviceSynchronize());  // it is cleared in another stream
  RUNS(run(runtime_store, 1, 1, there, own.get(), 7U));
  RUNS(cudaStreamSynchronize(there));
  EXPECT_EQ(own.value(), 7U);
}

ROW(runtime, cooperative_grids_must_fit) {
  int supported = 0;
  RUNS(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0));
  if (supported == 0) GTEST_SKIP() << "needs cooperative launches";
  ANSWERS(cudaSuccess, cudaLaunchCooperativeKernel(kernel_of(runtime_bounded), dim3(1), dim3(32),
                                                   nullptr, 0, nullptr));
  ANSWERS(cudaErrorCooperativeLaunchTooLarge,
          cudaLaunchCooperativeKernel(kernel_of(runtime_bounded), dim3(1 << 20), dim3(128), nullptr,
                                      0, nullptr));
  RUNS(cudaDeviceSynchronize());
}

ROW(runtime, functions_tell_their_attributes) {
  cudaFuncAttributes attributes{};
  RUNS(cudaFuncGetAttributes(&attributes, kernel_of(runtime_bounded)));
  EXPECT_EQ(attributes.maxThreadsPerBlock, 128);
  EXPECT_EQ(attributes.sharedSizeBytes, 2048U);
  EXPECT_GT(attributes.numRegs, 0);
  EXPECT_GT(attributes.ptxVersion, 0);
  static const int no_kernel = 0;
  ANSWERS(cudaErrorInvalidDeviceFunction, cudaFuncGetAttributes(&attributes, &no_kernel));
}

ROW(runtime, functions_keep_their_attributes) {
  ANSWERS(cudaSuccess, cudaFuncSetAttribute(kernel_of(runtime_store),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, 60 << 10));
  cudaFuncAttributes attributes{};
  RUNS(cudaFuncGetAttributes(&attributes, kernel_of(runtime_store)));
  EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, 60 << 10);
}

ROW(runtime, functions_tell_their_names) {
  const char* name = nullptr;
  ANSWERS(cudaSuccess, cudaFuncGetName(&name, kernel_of(runtime_store)));
  EXPECT_STREQ(name, "runtime_store");
}

ROW(runtime, functions_are_the_drivers) {
  cudaFunction_t function = nullptr;
  ANSWERS(cudaSuccess, cudaGetFuncBySymbol(&function, kernel_of(runtime_store)));
  const DeviceWord word;
  unsigned* address = word.get();
  unsigned value = 19;
  void* arguments[] = {&address, &value};
  EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(word.value(), 19U);
}

ROW(runtime, occupancy_is_told) {
  int blocks = 0, most = 0;
  RUNS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel_of(runtime_store), 1024, 0));
  RUNS(cudaDeviceGetAttribute(&most, cudaDevAttrMaxThreadsPerMultiProcessor, 0));
  EXPECT_EQ(blocks, most / 1024);
}

ROW(runtime, streams_tell_flags_and_priority) {
  int least = 1, greatest = 1;
  RUNS(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT_EQ(least, 0);
  cudaStream_t stream = nullptr;
  RUNS(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  unsigned flags = 99;
  int priority = 99;
  RUNS(cudaStreamGetFlags(stream, &flags));
  RUNS(cudaStreamGetPriority(stream, &priority));
  EXPECT_EQ(flags, static_cast<unsigned>(cudaStreamNonBlocking));
  EXPECT_EQ(priority, greatest);
  ANSWERS(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&stream, 0x80));
}

ROW(runtime, default_stream_waits_for_blocking_streams) {
  Hold hold;
  const cudaStream_t blocking = stream_make(cudaStreamDefault);
  cudaEvent_t event = nullptr;
  RUNS(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  RUNS(hold.close(blocking));
  RUNS(cudaEventRecord(event, nullptr));
  ANSWERS(cudaErrorNotReady, cudaEventQuery(event));
  hold.open();
  ANSWERS(cudaSuccess, cudaEventSynchronize(event));
}

ROW(runtime, default_stream_passes_non_blocking_streams) {
  Hold hold;
  const cudaStream_t other = stream_make(cudaStreamNonBlocking);
  RUNS(hold.close(other));
  ANSWERS(cudaSuccess, cudaStreamSynchronize(cudaStreamLegacy));
  ANSWERS(cudaErrorNotReady, cudaStreamQuery(other));
}

ROW(runtime, per_thread_streams_are_apart) {
  Hold hold;
  RUNS(hold.close(cudaStreamPerThread));
  cudaError_t there = cudaErrorUnknown;
  std::thread([&] {
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    there = cudaStreamSynchronize(cudaStreamPerThread);
  }).join();
  EXPECT_EQ(there, cudaSuccess);
  ANSWERS(cudaErrorNotReady, cudaStreamQuery(cudaStreamPerThread));
}

void CUDART_CB set_flag(void* flag) { *static_cast<volatile int*>(flag) = 1; }

ROW(runtime, host_functions_run_in_order) {
  const DeviceWord word;
  const cudaStream_t stream = stream_make();
  volatile int flag = 0;
  RUNS(run(runtime_store, 1, 1, stream, word.get(), 1U));
  ANSWERS(cudaSuccess, cudaLaunchHostFunc(stream, set_flag, const_cast<int*>(&flag)));
  RUNS(cudaStreamSynchronize(stream));
  EXPECT_EQ(flag, 1);
}

ROW(runtime, events_measure_time) {
  cudaEvent_t start = nullptr, end = nullptr;
  RUNS(cudaEventCreate(&start));
  RUNS(cudaEventCreate(&end));
  RUNS(cudaEventRecord(start, nullptr));
  const DeviceWord word;
  RUNS(run(runtime_store, 1, 1, nullptr, word.get(), 1U));
  RUNS(cudaEventRecord(end, nullptr));
  RUNS(cudaEventSynchronize(end));
  float milliseconds = -1;
  ANSWERS(cudaSuccess, cudaEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 0.0F);
}

ROW(runtime, events_without_time_measure_nothing) {
  cudaEvent_t start = nullptr, end = nullptr;
  RUNS(cudaEventCreateWithFlags(&start, cudaEventDisableTiming));
  RUNS(cudaEventCreate(&end));
  RUNS(cudaEventRecord(start, nullptr));
  RUNS(cudaEventRecord(end, nullptr));
  RUNS(cudaDeviceSynchronize());
  float milliseconds = -1;
  ANSWERS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, start, end));
}

ROW(runtime, libraries_are_loaded_at_run_time) {
  cudaLibrary_t library = nullptr;
  RUNS(cudaLibraryLoadData(&library, kernels_image().data(), nullptr, nullptr, 0, nullptr, nullptr,
                           0));
  cudaKernel_t kernel = nullptr;
  ANSWERS(cudaSuccess, cudaLibraryGetKernel(&kernel, library, "store"));
  const DeviceWord word;
  unsigned* address = word.get();
  unsigned value = 29;
  void* arguments[] = {&address, &value};
  ANSWERS(cudaSuccess, cudaLaunchKernel(kernel, dim3(1), dim3(1), arguments, 0, nullptr));
  EXPECT_EQ(word.value(), 29U);
  ANSWERS(cudaErrorSymbolNotFound, cudaLibraryGetKernel(&kernel, library, "no_such_kernel"));
  ANSWERS(cudaSuccess, cudaLibraryUnload(library));
}

ROW(runtime, entry_points_of_the_driver_are_found) {
  void* found = nullptr;
  auto status = no_such<cudaDriverEntryPointQueryResult>(9);
  ANSWERS(cudaSuccess, cudaGetDriverEntryPointByVersion("cuDriverGetVersion", &found, 12000,
                                                        cudaEnableDefault, &status));
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  ASSERT_NE(found, nullptr);
  int version = 0;
  EXPECT_EQ(reinterpret_cast<CUresult (*)(int*)>(found)(&version), CUDA_SUCCESS);
  EXPECT_GE(version, 13000);
}

ROW(runtime, unknown_entry_points_are_told) {
  void* found = nullptr;
  auto status = no_such<cudaDriverEntryPointQueryResult>(9);
  (void)cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &found, 12000, cudaEnableDefault,
                                         &status);
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(found, nullptr);
}

}  // namespace
}  // namespace conformance
