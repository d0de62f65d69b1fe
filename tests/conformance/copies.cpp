// Rows of family `copies`: copies of linear memory in every direction. When a call returns is in
// copies_sync.cpp, boxes in copies_boxes.cpp, batches in copies_batch.cpp, fills in
// copies_sets.cpp.
#include "tests/conformance/copies.h"

namespace conformance {
namespace {

constexpr std::size_t kCopyBytes = 100000;

ROW(copies, there_and_back) {
  const Context context;
  const Bytes source = bytes_counted(kCopyBytes);
  const CUdeviceptr p = device_new(kCopyBytes);
  MUST(cuMemcpyHtoD(p, source.data(), kCopyBytes));
  Bytes back(kCopyBytes);
  MUST(cuMemcpyDtoH(back.data(), p, kCopyBytes));
  EXPECT_EQ(back, source);
}

ROW(copies, part_of_an_allocation) {
  const Context context;
  const CUdeviceptr p = device_new(bytes_counted(64));
  const Bytes part(10, 0xaa);
  MUST(cuMemcpyHtoD(p + 7, part.data(), 10));
  Bytes expected = bytes_counted(64);
  std::copy(part.begin(), part.end(), expected.begin() + 7);
  EXPECT_EQ(contents(p, 64), expected);
  Bytes back(3);
  MUST(cuMemcpyDtoH(back.data(), p + 61, 3));
  EXPECT_EQ(back, bytes_counted(3, 61));
}

ROW(copies, device_to_device) {
  const Context context;
  const CUdeviceptr from = device_new(bytes_counted(kCopyBytes)), to = device_new(kCopyBytes);
  MUST(cuMemcpyDtoD(to, from, kCopyBytes));
  EXPECT_EQ(contents(to, kCopyBytes), bytes_counted(kCopyBytes));
}

ROW(copies, unified_finds_the_direction) {
  const Context context;
  const Bytes source = bytes_counted(kCopyBytes);
  const CUdeviceptr first = device_new(kCopyBytes), second = device_new(kCopyBytes);
  Bytes back(kCopyBytes), again(kCopyBytes);
  MUST(cuMemcpy(first, address_of(source.data()), kCopyBytes));
  MUST(cuMemcpy(second, first, kCopyBytes));
  MUST(cuMemcpy(address_of(back.data()), second, kCopyBytes));
  EXPECT_EQ(back, source);
  MUST(cuMemcpy(address_of(again.data()), address_of(back.data()), kCopyBytes));
  EXPECT_EQ(again, source);
}

ROW(copies, managed_is_either_side) {
  const Context context;
  CUdeviceptr managed = 0;
  MUST(cuMemAllocManaged(&managed, kCopyBytes, CU_MEM_ATTACH_GLOBAL));
  MUST(cuMemcpyDtoD(managed, device_new(bytes_counted(kCopyBytes)), kCopyBytes));
  Bytes back(kCopyBytes);
  MUST(cuMemcpyDtoH(back.data(), managed, kCopyBytes));
  EXPECT_EQ(back, bytes_counted(kCopyBytes));
  const CUdeviceptr device = device_new(kCopyBytes);
  MUST(cuMemcpyHtoD(device, reinterpret_cast<void*>(managed), kCopyBytes));
  EXPECT_EQ(contents(device, kCopyBytes), bytes_counted(kCopyBytes));
}

ROW(copies, registered_memory) {
  const Context context;
  Bytes memory = bytes_counted(kCopyBytes);
  MUST(cuMemHostRegister(memory.data(), kCopyBytes, 0));
  const CUdeviceptr p = device_new(kCopyBytes);
  const CUstream stream = stream_new();
  MUST(cuMemcpyHtoDAsync(p, memory.data(), kCopyBytes, stream));
  MUST(cuMemsetD8Async(p, 1, 10, stream));
  MUST(cuMemcpyDtoHAsync(memory.data(), p, kCopyBytes, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(memory[9], 1U);
  EXPECT_EQ(memory[10], 10U);
  MUST(cuMemHostUnregister(memory.data()));
}

ROW(copies, nothing_is_valid) {
  const Context context;
  Bytes host(4, 7);
  const CUdeviceptr p = device_new(host);
  ANSWERS(CUDA_SUCCESS, cuMemcpyHtoD(p, host.data(), 0));
  ANSWERS(CUDA_SUCCESS, cuMemcpyDtoH(host.data(), p, 0));
  ANSWERS(CUDA_SUCCESS, cuMemcpyDtoDAsync(p, p, 0, nullptr));
  EXPECT_EQ(contents(p, 4), host);
}

ROW(copies, null_refused) {
  const Context context;
  Bytes host(4);
  const CUdeviceptr p = device_new(host);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(0, host.data(), 4));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(host.data(), 0, 4));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, nullptr, 4));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(nullptr, p, 4));
}

ROW(copies, freed_memory_refused) {
  const Context context;
  Bytes host(4);
  const CUdeviceptr p = device_new(32 << 20);
  MUST(cuMemFree(p));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, host.data(), 4));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(host.data(), p, 4));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
}

ROW(copies, past_the_end_refused) {
  const Context context;
  constexpr std::size_t kSize = 32 << 20;
  const Bytes host(2 * kSize);
  const CUdeviceptr p = device_new(kSize);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, host.data(), 2 * kSize));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p + kSize / 2, host.data(), kSize));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
}

ROW(copies, pageable_memory_is_no_device_memory) {
  const Context context;
  int reached = 0;
  MUST(
      cuDeviceGetAttribute(&reached, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, context.device()));
  if (reached != 0) GTEST_SKIP() << "this device reaches pageable memory";
  Bytes host(4), other(4);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(address_of(host.data()), other.data(), 4));
}

ROW(copies, need_a_context) {
  MUST(cuInit(0));
  Bytes host(4);
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyHtoD(4096, host.data(), 4));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemsetD8(4096, 0, 4));
}

ROW(copies, between_contexts_of_a_device) {
  const Context context;
  const CUdeviceptr from = device_new(bytes_counted(kCopyBytes));
  const Context other;
  const CUdeviceptr to = device_new(kCopyBytes);
  MUST(cuMemcpyPeer(to, other, from, context, kCopyBytes));
  EXPECT_EQ(contents(to, kCopyBytes), bytes_counted(kCopyBytes));
  MUST(cuMemsetD8(from, 0, kCopyBytes));
  MUST(cuCtxSynchronize());
  const CUstream stream = stream_new();
  MUST(cuMemcpyPeerAsync(from, context, to, other, kCopyBytes, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(from, kCopyBytes), bytes_counted(kCopyBytes));
}

ROW(copies, between_devices) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Context first(0);
  const CUdeviceptr from = device_new(bytes_counted(kCopyBytes));
  const Context second(1);
  const CUdeviceptr to = device_new(kCopyBytes);
  MUST(cuMemcpyPeer(to, second, from, first, kCopyBytes));
  EXPECT_EQ(contents(to, kCopyBytes), bytes_counted(kCopyBytes));
  MUST(cuMemsetD8(to, 0, kCopyBytes));
  MUST(cuMemcpy(to, from, kCopyBytes));  // unified addressing needs no names of contexts
  EXPECT_EQ(contents(to, kCopyBytes), bytes_counted(kCopyBytes));
}

ROW(copies, order_within_a_stream) {
  const Context context;
  const CUstream stream = stream_new();
  const CUfunction add = kernel("add_one");
  unsigned char* host = pinned_new(8);
  CUdeviceptr p = device_new(8);
  host[0] = 1;
  unsigned count = 2;
  MUST(cuMemcpyHtoDAsync(p, host, 8, stream));
  MUST(launch(add, 1, 2, {&p, &count}, stream));
  MUST(cuMemcpyDtoHAsync(host, p, 4, stream));
  MUST(launch(add, 1, 2, {&p, &count}, stream));
  MUST(cuMemcpyDtoHAsync(host + 4, p, 4, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(host[0], 2U);
  EXPECT_EQ(host[4], 3U);
}

ROW(copies, per_thread_form_uses_the_threads_stream) {
  const Context context;
  void* found = nullptr;
  CUdriverProcAddressQueryResult how{};
  MUST(cuGetProcAddress("cuMemcpyDtoDAsync", &found, CUDA_VERSION,
                        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &how));
  const auto copy = reinterpret_cast<decltype(&cuMemcpyDtoDAsync)>(found);
  const CUdeviceptr from = device_new(bytes_counted(16)), to = device_new(16);
  MUST(cuCtxSynchronize());
  Gate gate;
  MUST(gate.hold(CU_STREAM_PER_THREAD));
  MUST(copy(to, from, 16, nullptr));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
  gate.open();
  MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(contents(to, 16), bytes_counted(16));
}

}  // namespace
}  // namespace conformance
