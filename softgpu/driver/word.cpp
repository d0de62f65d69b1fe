// See word.h.
#include "softgpu/driver/word.h"

#include "softgpu/driver/memory.h"

namespace softgpu::driver {
namespace {

constexpr unsigned kConditions = CU_STREAM_WAIT_VALUE_NOR;

CUresult flags_check(const Word& word) {
  if (!word.wait) return word.flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if ((word.flags & ~(kConditions | CU_STREAM_WAIT_VALUE_FLUSH)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  // Only a platform with other devices that write here could flush; none is told of.
  return (word.flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

}  // namespace

CUresult word_check(const Word& word) {
  const CUresult result = flags_check(word);
  if (result != CUDA_SUCCESS) return result;
  const MemoryMap& map = MemoryMap::get();
  if (word.address % word.bytes != 0 || !map.covers(word.address, word.bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const auto memory = map.find(word.address);
  return memory && memory->kind == MemoryKind::kManaged ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

namespace {

/// One operation of a batch. Barriers and flushes have nothing to do: the words of a stream are
/// written in order.
CUresult batch_word(const CUstreamBatchMemOpParams& op, WordsCommand& words) {
  const auto& wait = op.waitValue;
  const auto& write = op.writeValue;
  Word word;
  switch (op.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      word = {wait.address, wait.value, 4, wait.flags, true};
      break;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      word = {wait.address, wait.value64, 8, wait.flags, true};
      break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      word = {write.address, write.value, 4, write.flags, false};
      break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      word = {write.address, write.value64, 8, write.flags, false};
      break;
    case CU_STREAM_MEM_OP_BARRIER:
      return op.memoryBarrier.flags <= CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return op.flushRemoteWrites.flags == 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  words.words.push_back(word);
  return word_check(word);
}

}  // namespace

CUresult words_read(const CUstreamBatchMemOpParams* ops, unsigned count, WordsCommand& words) {
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; ++i) result = batch_word(ops[i], words);
  return result;
}

}  // namespace softgpu::driver
