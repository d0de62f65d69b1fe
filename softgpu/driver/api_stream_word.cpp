// Entry points: words of memory written and waited for in stream order.
#include "softgpu/driver/api_stream.h"
#include "softgpu/driver/word.h"

using namespace softgpu::driver;

namespace {

constexpr unsigned kBatchMax = 255;  // cuda.h: must be less than 256

CUresult word_submit(CUstream handle, const Word& word, const char* name) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream, name);
  if (result == CUDA_SUCCESS) result = word_check(word);
  return result == CUDA_SUCCESS ? command_submit(stream, WordsCommand{{word}}) : result;
}

CUresult batch_submit(CUstream handle, unsigned count, const CUstreamBatchMemOpParams* ops,
                      unsigned flags, const char* name) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (count > kBatchMax || flags != 0 || (ops == nullptr && count != 0))
    return CUDA_ERROR_INVALID_VALUE;
  WordsCommand words;
  result = words_read(ops, count, words);
  return result == CUDA_SUCCESS ? command_submit(stream, std::move(words)) : result;
}

/// The first version allowed a write to be reordered; ours never is.
unsigned first_version_flags(unsigned flags) {
  return flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER};
}

}  // namespace

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags) {
  return word_submit(stream, {address, value, 4, flags, false}, __func__);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned int flags) {
  return word_submit(stream, {address, value, 8, flags, false}, __func__);
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                unsigned int flags) {
  return word_submit(stream, {address, value, 4, flags, true}, __func__);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                unsigned int flags) {
  return word_submit(stream, {address, value, 8, flags, true}, __func__);
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* ops,
                               unsigned int flags) {
  return batch_submit(stream, count, ops, flags, __func__);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned int flags) {
  return word_submit(stream, {address, value, 4, first_version_flags(flags), false}, __func__);
}
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned int flags) {
  return word_submit(stream, {address, value, 8, first_version_flags(flags), false}, __func__);
}
CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* given,
                            unsigned int flags) {
  if (given == nullptr || count > kBatchMax)
    return batch_submit(stream, count, given, flags, __func__);
  std::vector<CUstreamBatchMemOpParams> ops(given, given + count);
  for (auto& op : ops) {
    if (op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
        op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
      op.writeValue.flags = first_version_flags(op.writeValue.flags);
    if (op.operation == CU_STREAM_MEM_OP_BARRIER) return CUDA_ERROR_INVALID_VALUE;  // came later
  }
  return batch_submit(stream, count, ops.data(), flags, __func__);
}
