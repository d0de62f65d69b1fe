// Rows of family `copies`: fills, of every width, in one and two dimensions.
#include "tests/conformance/copies.h"

namespace conformance {
namespace {

ROW(copies, set_fills_each_width) {
  const Context context;
  const CUdeviceptr p = device_new(Bytes(64, 0));
  MUST(cuMemsetD8(p, 0xab, 5));
  MUST(cuMemsetD16(p + 8, 0x1234, 3));
  MUST(cuMemsetD32(p + 16, 0xdeadbeef, 2));
  Bytes expected(64, 0);
  std::fill_n(expected.begin(), 5, 0xab);
  for (int i = 0; i < 3; ++i) expected[8 + 2 * i] = 0x34, expected[9 + 2 * i] = 0x12;
  const unsigned word = 0xdeadbeef;
  for (int i = 0; i < 2; ++i) std::memcpy(&expected[16 + 4 * i], &word, 4);
  EXPECT_EQ(contents(p, 64), expected);
}

ROW(copies, set_alignment_checked) {
  const Context context;
  const CUdeviceptr p = device_new(64);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(p + 1, 0, 4));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(p + 2, 0, 4));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(p + 1, 0, 4, nullptr));
}

ROW(copies, set_past_the_end_refused) {
  const Context context;
  constexpr std::size_t kSize = 32 << 20;
  const CUdeviceptr p = device_new(kSize);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p, 0, 2 * kSize));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(p, 0, kSize));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(0, 0, 4));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
}

ROW(copies, set_rows_leaves_the_rest) {
  const Context context;
  const CUdeviceptr p = device_new(Bytes(64, 0));
  MUST(cuMemsetD2D8(p, 16, 1, 3, 2));
  MUST(cuMemsetD2D16(p + 4, 16, 0x0202, 2, 2));
  MUST(cuMemsetD2D32(p + 32, 16, 0x03030303, 1, 2));
  Bytes expected(64, 0);
  for (int row : {0, 16}) {
    std::fill_n(expected.begin() + row, 3, 1);
    std::fill_n(expected.begin() + row + 4, 4, 2);
    std::fill_n(expected.begin() + row + 32, 4, 3);
  }
  EXPECT_EQ(contents(p, 64), expected);
}

ROW(copies, set_rows_async) {
  const Context context;
  const CUdeviceptr p = device_new(Bytes(32, 0));
  const CUstream stream = stream_new();
  MUST(cuMemsetD2D8Async(p, 8, 1, 2, 3, stream));
  MUST(cuMemsetD2D16Async(p + 2, 8, 0x0202, 1, 3, stream));
  MUST(cuMemsetD2D32Async(p + 4, 8, 0x03030303, 1, 3, stream));
  MUST(cuStreamSynchronize(stream));
  Bytes expected(32, 0);
  for (int row : {0, 8, 16}) {
    const Bytes line{1, 1, 2, 2, 3, 3, 3, 3};
    std::copy(line.begin(), line.end(), expected.begin() + row);
  }
  EXPECT_EQ(contents(p, 32), expected);
}

ROW(copies, set_does_not_wait_for_device_memory) {
  const Context context;
  const CUdeviceptr p = device_new(Bytes(64, 0));
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  Gate gate;
  MUST(gate.hold(stream));
  ANSWERS(CUDA_SUCCESS, cuMemsetD32(p, 0x07070707, 16));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
  gate.open();
  EXPECT_EQ(contents(p, 64), Bytes(64, 7));
}

ROW(copies, set_of_pinned_memory_is_done_on_return) {
  const Context context;
  unsigned char* pinned = pinned_new(64);
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  Gate gate;
  MUST(gate.hold(stream));
  const Opener opener(gate);
  MUST(cuMemsetD8(address_of(pinned), 9, 64));
  EXPECT_TRUE(opener.opened());
  EXPECT_EQ(Bytes(pinned, pinned + 64), Bytes(64, 9));
}

ROW(copies, set_of_managed_memory_is_done_on_return) {
  const Context context;
  CUdeviceptr managed = 0;
  MUST(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
  MUST(cuMemsetD8(managed, 9, 64));
  const auto* bytes = reinterpret_cast<const unsigned char*>(managed);
  EXPECT_EQ(Bytes(bytes, bytes + 64), Bytes(64, 9));
}

ROW(copies, set_async_returns_at_once) {
  const Context context;
  unsigned char* pinned = pinned_new(64);
  const CUstream stream = stream_new();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuMemsetD8Async(address_of(pinned), 9, 64, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(pinned[0], 0U);
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(Bytes(pinned, pinned + 64), Bytes(64, 9));
}

}  // namespace
}  // namespace conformance
