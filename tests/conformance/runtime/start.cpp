// Rows of family `runtime`: when contexts come to be, devices, and errors.
#include "tests/conformance/runtime/runtime.h"

namespace conformance {
namespace {

ROW(runtime, questions_make_no_context) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  int count = 0, device = -1, version = 0;
  ANSWERS(cudaSuccess, cudaGetDeviceCount(&count));
  ANSWERS(cudaSuccess, cudaGetDevice(&device));
  ANSWERS(cudaSuccess, cudaRuntimeGetVersion(&version));
  EXPECT_EQ(device, 0);
  EXPECT_FALSE(primary_active());
}

ROW(runtime, first_use_makes_the_primary_context) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_FALSE(primary_active());
  ANSWERS(cudaSuccess, cudaFree(nullptr));
  EXPECT_TRUE(primary_active());
  CUcontext current = nullptr, primary = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
  EXPECT_EQ(current, primary);
}

ROW(runtime, choosing_a_device_makes_its_context) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ANSWERS(cudaSuccess, cudaSetDevice(0));
  EXPECT_TRUE(primary_active());
}

ROW(runtime, contexts_of_the_driver_are_used) {
  const Context context;
  void* data = nullptr;
  RUNS(cudaMalloc(&data, 256));
  CUcontext owner = nullptr;
  ASSERT_EQ(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT,
                                  reinterpret_cast<CUdeviceptr>(data)),
            CUDA_SUCCESS);
  EXPECT_EQ(owner, static_cast<CUcontext>(context));
  EXPECT_FALSE(primary_active());
  RUNS(cudaFree(data));
}

ROW(runtime, handles_are_the_drivers) {
  RUNS(cudaFree(nullptr));
  cudaStream_t stream = stream_make();
  EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
  cudaEvent_t event = nullptr;
  RUNS(cudaEventCreate(&event));
  EXPECT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  RUNS(cudaEventSynchronize(event));
}

ROW(runtime, each_thread_begins_with_the_first_device) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  RUNS(cudaSetDevice(1));
  int there = -1, here = -1;
  std::thread([&] { EXPECT_EQ(cudaGetDevice(&there), cudaSuccess); }).join();
  RUNS(cudaGetDevice(&here));
  EXPECT_EQ(there, 0);
  EXPECT_EQ(here, 1);
}

ROW(runtime, memory_is_of_the_chosen_device) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  void* data = nullptr;
  RUNS(cudaSetDevice(1));
  RUNS(cudaMalloc(&data, 256));
  RUNS(cudaSetDevice(0));
  cudaPointerAttributes attributes{};
  RUNS(cudaPointerGetAttributes(&attributes, data));
  EXPECT_EQ(attributes.device, 1);
}

ROW(runtime, unknown_devices_refused) {
  const int count = devices_count();
  ANSWERS(cudaErrorInvalidDevice, cudaSetDevice(count));
  ANSWERS(cudaErrorInvalidDevice, cudaSetDevice(-1));
  cudaDeviceProp properties{};
  ANSWERS(cudaErrorInvalidDevice, cudaGetDeviceProperties(&properties, count));
  int device = -1;
  RUNS(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
}

ROW(runtime, properties_are_the_attributes) {
  cudaDeviceProp properties{};
  RUNS(cudaGetDeviceProperties(&properties, 0));
  const auto attribute = [](cudaDeviceAttr which) {
    int value = -1;
    EXPECT_EQ(cudaDeviceGetAttribute(&value, which, 0), cudaSuccess);
    return value;
  };
  EXPECT_EQ(properties.major, attribute(cudaDevAttrComputeCapabilityMajor));
  EXPECT_EQ(properties.minor, attribute(cudaDevAttrComputeCapabilityMinor));
  EXPECT_EQ(properties.multiProcessorCount, attribute(cudaDevAttrMultiProcessorCount));
  EXPECT_EQ(properties.warpSize, attribute(cudaDevAttrWarpSize));
  EXPECT_EQ(properties.maxThreadsPerBlock, attribute(cudaDevAttrMaxThreadsPerBlock));
  EXPECT_EQ(properties.regsPerMultiprocessor, attribute(cudaDevAttrMaxRegistersPerMultiprocessor));
  EXPECT_EQ(properties.managedMemory, attribute(cudaDevAttrManagedMemory));
  std::size_t free = 0, total = 0;
  RUNS(cudaMemGetInfo(&free, &total));
  EXPECT_LE(free, total);
  EXPECT_LE(total, properties.totalGlobalMem);
}

ROW(runtime, versions_are_told) {
  int runtime_version = 0, driver_version = 0;
  RUNS(cudaRuntimeGetVersion(&runtime_version));
  RUNS(cudaDriverGetVersion(&driver_version));
  EXPECT_EQ(runtime_version / 1000, CUDART_VERSION / 1000);
  EXPECT_GE(driver_version, 13000);
}

ROW(runtime, device_is_found_by_its_bus_address) {
  char address[32] = "";
  RUNS(cudaDeviceGetPCIBusId(address, sizeof address, 0));
  int device = -1;
  ANSWERS(cudaSuccess, cudaDeviceGetByPCIBusId(&device, address));
  EXPECT_EQ(device, 0);
}

ROW(runtime, device_flags_are_kept) {
  ANSWERS(cudaSuccess, cudaSetDeviceFlags(cudaDeviceScheduleYield));
  RUNS(cudaFree(nullptr));
  unsigned flags = 0;
  RUNS(cudaGetDeviceFlags(&flags));
  EXPECT_EQ(flags & cudaDeviceScheduleMask, static_cast<unsigned>(cudaDeviceScheduleYield));
  ANSWERS(cudaErrorInvalidValue, cudaSetDeviceFlags(0x10000));
}

ROW(runtime, limits_are_kept) {
  RUNS(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
  std::size_t value = 0;
  RUNS(cudaDeviceGetLimit(&value, cudaLimitStackSize));
  EXPECT_EQ(value, 4096U);
}

ROW(runtime, no_device_is_its_own_peer) {
  int can = -1;
  ANSWERS(cudaSuccess, cudaDeviceCanAccessPeer(&can, 0, 0));
  EXPECT_EQ(can, 0);
}

ROW(runtime, reset_ends_everything) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const Context watcher;
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  constexpr std::size_t kBytes = 64 << 20;
  void* data = nullptr;
  RUNS(cudaMalloc(&data, kBytes));
  std::size_t before = 0, after = 0, total = 0;
  RUNS(cudaMemGetInfo(&before, &total));
  ANSWERS(cudaSuccess, cudaDeviceReset());
  EXPECT_FALSE(primary_active());
  ASSERT_EQ(cuCtxPushCurrent(watcher), CUDA_SUCCESS);
  ASSERT_EQ(cuMemGetInfo(&after, &total), CUDA_SUCCESS);
  EXPECT_GE(after, before + kBytes);
}

ROW(runtime, device_is_usable_after_a_reset) {
  const DeviceWord before;
  RUNS(run(runtime_store, 1, 1, nullptr, before.get(), 3U));
  RUNS(cudaDeviceReset());
  unsigned* data = nullptr;
  ANSWERS(cudaSuccess, cudaMalloc(reinterpret_cast<void**>(&data), 4));
  ANSWERS(cudaSuccess, run(runtime_store, 1, 1, nullptr, data, 5U));
  EXPECT_EQ(word_at(data), 5U);
}

ROW(runtime, last_error_is_told_once) {
  ANSWERS(cudaErrorInvalidDevice, cudaSetDevice(99));
  ANSWERS(cudaErrorInvalidDevice, cudaPeekAtLastError());
  ANSWERS(cudaErrorInvalidDevice, cudaPeekAtLastError());  // looking does not clear it
  ANSWERS(cudaErrorInvalidDevice, cudaGetLastError());
  ANSWERS(cudaSuccess, cudaGetLastError());  // telling it does
}

ROW(runtime, last_error_survives_success) {
  ANSWERS(cudaErrorInvalidDevice, cudaSetDevice(99));
  RUNS(cudaFree(nullptr));
  ANSWERS(cudaErrorInvalidDevice, cudaGetLastError());
}

ROW(runtime, last_error_is_of_one_thread) {
  ANSWERS(cudaErrorInvalidDevice, cudaSetDevice(99));
  std::thread([] { ANSWERS(cudaSuccess, cudaGetLastError()); }).join();
  ANSWERS(cudaErrorInvalidDevice, cudaGetLastError());
}

ROW(runtime, last_error_is_the_latest) {
  ANSWERS(cudaErrorInvalidDevice, cudaSetDevice(99));
  ANSWERS(cudaErrorInvalidValue, cudaEventCreateWithFlags(nullptr, 0));
  ANSWERS(cudaErrorInvalidValue, cudaGetLastError());
}

ROW(runtime, not_ready_is_no_error) {
  Hold hold;
  const cudaStream_t stream = stream_make();
  RUNS(hold.close(stream));
  ANSWERS(cudaErrorNotReady, cudaStreamQuery(stream));
  ANSWERS(cudaSuccess, cudaGetLastError());
}

ROW(runtime, faults_stay) {
  RUNS(run(runtime_trap, 1, 1, nullptr));
  const cudaError_t fault = cudaDeviceSynchronize();
  EXPECT_TRUE(fault == cudaErrorLaunchFailure || fault == cudaErrorIllegalInstruction) << fault;
  void* data = nullptr;
  ANSWERS(fault, cudaMalloc(&data, 4));
  ANSWERS(fault, cudaDeviceSynchronize());
  ANSWERS(fault, cudaGetLastError());
  ANSWERS(fault, cudaStreamSynchronize(nullptr));  // telling it does not end it
}

ROW(runtime, errors_have_names_and_words) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue");
  EXPECT_STREQ(cudaGetErrorString(cudaSuccess), "no error");
  EXPECT_STRNE(cudaGetErrorString(cudaErrorMemoryAllocation),
               cudaGetErrorString(cudaErrorInvalidValue));
  const auto unknown = no_such<cudaError_t>(77777);
  EXPECT_STREQ(cudaGetErrorName(unknown), "unrecognized error code");
  EXPECT_STREQ(cudaGetErrorString(unknown), "unrecognized error code");
}

}  // namespace
}  // namespace conformance
