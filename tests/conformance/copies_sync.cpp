// Rows of family `copies`: when a call returns. The rules are those of the driver API manual,
// "API synchronization behavior". A gate stands for work that does not end; where the call must
// wait, another thread opens it.
#include "tests/conformance/copies.h"

namespace conformance {
namespace {

constexpr std::size_t kSmall = 4096;
constexpr std::size_t kLarge = 8 << 20;

ROW(copies, pageable_source_free_on_return) {
  const Context context;
  for (const std::size_t bytes : {kSmall, kLarge}) {
    Bytes source(bytes, 5);
    const CUdeviceptr p = device_new(bytes);
    MUST(cuMemcpyHtoD(p, source.data(), bytes));
    source.assign(bytes, 6);
    EXPECT_EQ(contents(p, bytes), Bytes(bytes, 5));
  }
}

ROW(copies, pinned_source_free_on_return) {
  const Context context;
  unsigned char* source = pinned_new(kLarge);
  std::memset(source, 5, kLarge);
  const CUdeviceptr p = device_new(kLarge);
  MUST(cuMemcpyHtoD(p, source, kLarge));
  std::memset(source, 6, kLarge);
  EXPECT_EQ(contents(p, kLarge), Bytes(kLarge, 5));
}

ROW(copies, sync_upload_waits_for_blocking_streams) {
  const Context context;
  const CUdeviceptr p = device_new(kSmall);
  const Bytes pageable(kSmall, 1);
  unsigned char* pinned = pinned_new(kSmall);
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  {
    Gate gate;
    MUST(gate.hold(stream));
    const Opener opener(gate);
    MUST(cuMemcpyHtoD(p, pageable.data(), kSmall));
    EXPECT_TRUE(opener.opened());
  }
  Gate gate;
  MUST(gate.hold(stream));
  const Opener opener(gate);
  MUST(cuMemcpyHtoD(p, pinned, kSmall));
  EXPECT_TRUE(opener.opened());
}

ROW(copies, sync_download_waits_for_blocking_streams) {
  const Context context;
  const CUdeviceptr p = device_new(Bytes(kSmall, 1));
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  Bytes back(kSmall);
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuMemsetD8Async(p, 2, kSmall, stream));
  const Opener opener(gate);
  MUST(cuMemcpyDtoH(back.data(), p, kSmall));
  EXPECT_TRUE(opener.opened());
  EXPECT_EQ(back, Bytes(kSmall, 2));
}

ROW(copies, sync_copy_passes_nonblocking_streams) {
  const Context context;
  const CUdeviceptr p = device_new(kSmall);
  unsigned char* pinned = pinned_new(kSmall);
  const CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuMemcpyHtoD(p, pinned, kSmall));
  MUST(cuMemcpyDtoH(pinned, p, kSmall));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
}

ROW(copies, sync_on_the_device_does_not_wait) {
  const Context context;
  const CUdeviceptr from = device_new(Bytes(kSmall, 1)), to = device_new(Bytes(kSmall, 0));
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  Gate gate;
  MUST(gate.hold(stream));
  ANSWERS(CUDA_SUCCESS, cuMemcpyDtoD(to, from, kSmall));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));  // it is still to be done
  gate.open();
  EXPECT_EQ(contents(to, kSmall), Bytes(kSmall, 1));
}

ROW(copies, later_work_waits_for_sync_on_the_device) {
  const Context context;
  const CUdeviceptr from = device_new(Bytes(kSmall, 1)), to = device_new(Bytes(kSmall, 0));
  const CUdeviceptr last = device_new(kSmall);
  const CUstream first = stream_new(CU_STREAM_DEFAULT), second = stream_new(CU_STREAM_DEFAULT);
  Gate gate;
  MUST(gate.hold(first));
  MUST(cuMemcpyDtoD(to, from, kSmall));
  MUST(cuMemcpyDtoDAsync(last, to, kSmall, second));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
  gate.open();
  MUST(cuStreamSynchronize(second));
  EXPECT_EQ(contents(last, kSmall), Bytes(kSmall, 1));
}

ROW(copies, memops_with_sync_memops_wait) {
  const Context context;
  const CUdeviceptr from = device_new(Bytes(kSmall, 1)), to = device_new(Bytes(kSmall, 0));
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  unsigned on = 1;
  MUST(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, to));
  Gate gate;
  MUST(gate.hold(stream));
  const Opener opener(gate);
  MUST(cuMemcpyDtoD(to, from, kSmall));
  EXPECT_TRUE(opener.opened());
  ANSWERS(CUDA_SUCCESS, cuStreamQuery(CU_STREAM_LEGACY));
}

ROW(copies, host_to_host_is_done_on_return) {
  const Context context;
  const Bytes source = bytes_counted(kSmall);
  Bytes target(kSmall);
  unsigned char* pinned = pinned_new(kSmall);
  const CUstream stream = stream_new();
  MUST(cuMemcpyAsync(address_of(pinned), address_of(source.data()), kSmall, stream));
  EXPECT_EQ(Bytes(pinned, pinned + kSmall), source);
  MUST(cuMemcpyAsync(address_of(target.data()), address_of(pinned), kSmall, stream));
  EXPECT_EQ(target, source);
}

ROW(copies, async_pinned_upload_returns_at_once) {
  const Context context;
  const CUdeviceptr p = device_new(Bytes(kLarge, 0));
  unsigned char* pinned = pinned_new(kLarge);
  const CUstream stream = stream_new();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuMemcpyHtoDAsync(p, pinned, kLarge, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  std::memset(pinned, 3, kLarge);  // the copy reads it when its turn comes
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(p, kLarge), Bytes(kLarge, 3));
}

ROW(copies, async_pinned_download_returns_at_once) {
  const Context context;
  const CUdeviceptr p = device_new(Bytes(kSmall, 4));
  unsigned char* pinned = pinned_new(kSmall);
  const CUstream stream = stream_new();
  MUST(cuCtxSynchronize());
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuMemcpyDtoHAsync(pinned, p, kSmall, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(pinned[0], 0U);
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(Bytes(pinned, pinned + kSmall), Bytes(kSmall, 4));
}

ROW(copies, async_on_the_device_returns_at_once) {
  const Context context;
  const CUdeviceptr from = device_new(Bytes(kSmall, 1)), to = device_new(Bytes(kSmall, 0));
  const CUstream stream = stream_new();
  MUST(cuCtxSynchronize());
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuMemcpyDtoDAsync(to, from, kSmall, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(contents(to, kSmall), Bytes(kSmall, 0));
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(to, kSmall), Bytes(kSmall, 1));
}

ROW(copies, async_pageable_is_in_stream_order) {
  const Context context;
  const CUstream stream = stream_new();
  for (const std::size_t bytes : {kSmall, kLarge}) {
    const CUdeviceptr p = device_new(bytes);
    const Bytes source(bytes, 5);
    Bytes back(bytes);
    MUST(cuMemsetD8Async(p, 1, bytes, stream));
    MUST(cuMemcpyHtoDAsync(p, source.data(), bytes, stream));
    MUST(cuMemcpyDtoHAsync(back.data(), p, bytes, stream));
    MUST(cuStreamSynchronize(stream));
    EXPECT_EQ(back, source);
  }
}

ROW(copies, sync_results_of_kernels_are_seen) {
  const Context context;
  const CUfunction add = kernel("add_one");
  CUdeviceptr p = device_new(Bytes(kSmall, 0));
  unsigned count = kSmall / 4;
  MUST(launch(add, 4, 256, {&p, &count}, stream_new(CU_STREAM_DEFAULT)));
  const Bytes back = contents(p, kSmall);  // the default stream waits for blocking ones
  EXPECT_EQ(back[0], 1U);
  EXPECT_EQ(back[kSmall - 4], 1U);
}

}  // namespace
}  // namespace conformance
