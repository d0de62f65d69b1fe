// Rows of family `streams`: words of memory that streams write and wait for.
#include <vector>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

ROW(streams, wait_value_is_cyclic) {
  const Context context;
  const Word done;
  Word word;
  const CUstream stream = stream_new();
  const Store store;
  word.set(5);
  MUST(cuStreamWaitValue32(stream, word.device(), 5, CU_STREAM_WAIT_VALUE_GEQ));
  MUST(cuStreamWaitValue32(stream, word.device(), 4, CU_STREAM_WAIT_VALUE_GEQ));
  // 5 - 0xfffffff0 is 21: later, although smaller.
  MUST(cuStreamWaitValue32(stream, word.device(), 0xfffffff0U, CU_STREAM_WAIT_VALUE_GEQ));
  MUST(cuStreamSynchronize(stream));
  MUST(cuStreamWaitValue32(stream, word.device(), 6, CU_STREAM_WAIT_VALUE_GEQ));
  MUST(store(done, 1, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, query_later(stream));
  word.set(7);
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(done.value(), 1U);
}

ROW(streams, wait_value_equal) {
  const Context context;
  Word word;
  const CUstream stream = stream_new();
  word.set(8);
  MUST(cuStreamWaitValue32(stream, word.device(), 7, CU_STREAM_WAIT_VALUE_EQ));
  ANSWERS(CUDA_ERROR_NOT_READY, query_later(stream));
  word.set(7);
  MUST(cuStreamSynchronize(stream));
}

ROW(streams, wait_value_bits) {
  const Context context;
  Word word;
  const CUstream stream = stream_new();
  word.set(0xf0);
  MUST(cuStreamWaitValue32(stream, word.device(), 0x30, CU_STREAM_WAIT_VALUE_AND));
  MUST(cuStreamSynchronize(stream));
  MUST(cuStreamWaitValue32(stream, word.device(), 0x0f, CU_STREAM_WAIT_VALUE_AND));
  ANSWERS(CUDA_ERROR_NOT_READY, query_later(stream));
  word.set(0x08);
  MUST(cuStreamSynchronize(stream));
}

ROW(streams, wait_value_nor) {
  const Context context;
  int able = 0;
  MUST(cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR,
                            context.device()));
  Word word;
  const CUstream stream = stream_new();
  word.set(0xffffff00U);
  const CUresult asked =
      cuStreamWaitValue32(stream, word.device(), 0xffU, CU_STREAM_WAIT_VALUE_NOR);
  ASSERT_EQ(asked, able != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
  if (able == 0) return;
  ANSWERS(CUDA_ERROR_NOT_READY, query_later(stream));
  word.set(0xfffffe00U);
  MUST(cuStreamSynchronize(stream));
}

ROW(streams, wait_value_64_uses_all_bits) {
  const Context context;
  Word word;
  const CUstream stream = stream_new();
  word.set64(0x1'0000'0000ULL);
  MUST(cuStreamWaitValue64(stream, word.device(), 0x1'0000'0000ULL, CU_STREAM_WAIT_VALUE_EQ));
  MUST(cuStreamSynchronize(stream));
  MUST(cuStreamWaitValue64(stream, word.device(), 0x2'0000'0000ULL, CU_STREAM_WAIT_VALUE_GEQ));
  ANSWERS(CUDA_ERROR_NOT_READY, query_later(stream));
  word.set64(0x3'0000'0000ULL);
  MUST(cuStreamSynchronize(stream));
}

ROW(streams, write_value_in_order) {
  const Context context;
  const Word word;
  const CUstream stream = stream_new();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuStreamWriteValue32(stream, word.device(), 42, CU_STREAM_WRITE_VALUE_DEFAULT));
  ANSWERS(CUDA_ERROR_NOT_READY, query_later(stream));
  EXPECT_EQ(word.value(), 0U);
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 42U);
}

ROW(streams, write_value_64) {
  const Context context;
  const Word word;
  const CUstream stream = stream_new();
  MUST(cuStreamWriteValue64(stream, word.device(), 0x1234'5678'9abc'def0ULL, 0));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value64(), 0x1234'5678'9abc'def0ULL);
}

ROW(streams, write_value_lets_another_stream_go) {
  const Context context;
  const Word word, done;
  const Store store;
  const CUstream waits = stream_new(), writes = stream_new();
  MUST(cuStreamWaitValue32(waits, word.device(), 3, CU_STREAM_WAIT_VALUE_GEQ));
  MUST(store(done, 1, waits));
  MUST(cuStreamWriteValue32(writes, word.device(), 3, 0));
  MUST(cuStreamSynchronize(waits));
  EXPECT_EQ(done.value(), 1U);
}

ROW(streams, word_addresses_are_checked) {
  const Context context;
  const Word word;
  const CUstream stream = stream_new();
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(stream, 0, 1, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(stream, 0, 1, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(stream, word.device() + 2, 1, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(stream, word.device() + 4, 1, 0));
}

ROW(streams, word_flags_are_checked) {
  const Context context;
  const Word word;
  const CUstream stream = stream_new();
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(stream, word.device(), 0, 0x10));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(stream, word.device(), 0, 0x10));
}

ROW(streams, words_are_not_managed_memory) {
  const Context context;
  CUdeviceptr managed = 0;
  MUST(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(stream_new(), managed, 1, 0));
}

ROW(streams, flush_needs_the_device) {
  const Context context;
  int able = 0;
  MUST(cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, context.device()));
  const Word word;
  const CUstream stream = stream_new();
  ANSWERS(able != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
          cuStreamWaitValue32(stream, word.device(), 0,
                              CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_FLUSH));
}

CUstreamBatchMemOpParams write_of(const Word& word, unsigned value) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = word.device();
  op.writeValue.value = value;
  return op;
}

CUstreamBatchMemOpParams wait_of(const Word& word, unsigned value) {
  CUstreamBatchMemOpParams op{};
  op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  op.waitValue.address = word.device();
  op.waitValue.value = value;
  op.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return op;
}

ROW(streams, batch_runs_in_array_order) {
  const Context context;
  Word gate, first, second;
  const CUstream stream = stream_new();
  CUstreamBatchMemOpParams barrier{};
  barrier.memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
  barrier.memoryBarrier.flags = CU_STREAM_MEMORY_BARRIER_TYPE_SYS;
  std::vector<CUstreamBatchMemOpParams> batch{write_of(first, 1), barrier, wait_of(gate, 1),
                                              write_of(first, 2), write_of(second, 3)};
  MUST(cuStreamBatchMemOp(stream, static_cast<unsigned>(batch.size()), batch.data(), 0));
  while (first.value() == 0) {
  }
  EXPECT_EQ(first.value(), 1U);
  EXPECT_EQ(second.value(), 0U);
  ANSWERS(CUDA_ERROR_NOT_READY, query_later(stream));
  gate.set(1);
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(first.value(), 2U);
  EXPECT_EQ(second.value(), 3U);
}

ROW(streams, batch_is_checked_whole) {
  const Context context;
  const Word word;
  const CUstream stream = stream_new();
  std::vector<CUstreamBatchMemOpParams> batch(256, write_of(word, 9));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(stream, 256, batch.data(), 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(stream, 1, batch.data(), 1));
  batch[1].operation = no_such<CUstreamBatchMemOpType>(77);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(stream, 2, batch.data(), 0));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 0U) << "a refused batch does nothing";
  ANSWERS(CUDA_SUCCESS, cuStreamBatchMemOp(stream, 1, batch.data(), 0));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 9U);
}

ROW(streams, first_memory_operations_need_the_device) {
  const Context context;
  int able = 0;
  MUST(
      cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, context.device()));
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  MUST(
      cuGetProcAddress("cuStreamWriteValue32", &found, 8000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  const auto write = reinterpret_cast<decltype(&cuStreamWriteValue32)>(found);
  const Word word;
  const CUstream stream = stream_new();
  ANSWERS(able != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
          write(stream, word.device(), 3, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), able != 0 ? 3U : 0U);
}

ROW(streams, writes_without_barrier_are_of_the_first_version) {
  const Context context;
  const Word word;
  const CUstream stream = stream_new();
  EXPECT_NE(cuStreamWriteValue32(stream, word.device(), 3, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER),
            CUDA_SUCCESS);
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 0U);
}

ROW(streams, batch_flush_needs_the_device) {
  const Context context;
  int able = 0;
  MUST(cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, context.device()));
  const CUstream stream = stream_new();
  CUstreamBatchMemOpParams flush{};
  flush.flushRemoteWrites.operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
  ANSWERS(able != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
          cuStreamBatchMemOp(stream, 1, &flush, 0));
  MUST(cuStreamSynchronize(stream));
}

ROW(streams, batch_of_64_bit_words) {
  const Context context;
  Word gate, word;
  const CUstream stream = stream_new();
  CUstreamBatchMemOpParams ops[2] = {};
  ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  ops[0].waitValue.address = gate.device();
  ops[0].waitValue.value64 = 0x2'0000'0000ULL;
  ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  ops[1].writeValue.address = word.device();
  ops[1].writeValue.value64 = 0x1234'5678'9abc'def0ULL;
  MUST(cuStreamBatchMemOp(stream, 2, ops, 0));
  ANSWERS(CUDA_ERROR_NOT_READY, query_later(stream));
  EXPECT_EQ(word.value64(), 0U);
  gate.set64(0x3'0000'0000ULL);
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(word.value64(), 0x1234'5678'9abc'def0ULL);
}

ROW(streams, kernels_see_the_words_of_their_stream) {
  const Context context;
  const Word word, seen;
  const CUfunction wait = kernel("wait_flag");
  const CUstream stream = stream_new();
  CUdeviceptr word_at = word.device(), seen_at = seen.device();
  MUST(cuStreamWriteValue32(stream, word.device(), 42, 0));
  MUST(launch(wait, 1, 1, {&word_at, &seen_at}, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(seen.value(), 42U);
}

}  // namespace
}  // namespace conformance
