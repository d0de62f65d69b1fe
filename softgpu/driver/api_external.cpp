// Entry points: memory of other APIs, given as a file descriptor. Over a software GPU there are no
// other APIs. What is taken is what cuMemExportToShareableHandle gives: on a GPU, too, such a
// descriptor and one that a graphics API exports name memory of the same driver.
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "softgpu/driver/ipc.h"
#include "softgpu/driver/virtual.h"

using namespace softgpu::driver;

namespace {

/// An import: a reference to a piece, which stays charged once, whoever else holds it.
class ExternalMemory {
 public:
  ExternalMemory(PieceRef imported, std::size_t size) : piece(std::move(imported)), bytes(size) {}
  CUexternalMemory handle() { return reinterpret_cast<CUexternalMemory>(this); }

  const PieceRef piece;
  const std::size_t bytes;  // what the program said that there is
};

template <class T, std::size_t N>
bool all_zero(const T (&words)[N]) {
  return std::all_of(std::begin(words), std::end(words), [](T word) { return word == 0; });
}

}  // namespace

CUresult cuImportExternalMemory(CUexternalMemory* out,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* what) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || what == nullptr || what->size == 0 || !all_zero(what->reserved) ||
      (what->flags & ~unsigned{CUDA_EXTERNAL_MEMORY_DEDICATED}) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (what->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
  PieceRef piece;
  result = Piece::import(what->handle.fd, piece);
  if (result == CUDA_ERROR_INVALID_VALUE) return CUDA_ERROR_INVALID_HANDLE;
  if (result != CUDA_SUCCESS) return result;
  if (what->size > piece->bytes) return CUDA_ERROR_INVALID_VALUE;
  close(what->handle.fd);  // an import that succeeds takes the descriptor over
  const auto memory = std::make_shared<ExternalMemory>(std::move(piece), what->size);
  Registry<ExternalMemory>::all().add(memory);
  *out = memory->handle();
  return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr* out, CUexternalMemory handle,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* what) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  const auto memory = Registry<ExternalMemory>::all().find(handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || what == nullptr || what->flags != 0 || !all_zero(what->reserved) ||
      what->size == 0 || what->offset > memory->bytes || what->size > memory->bytes - what->offset)
    return CUDA_ERROR_INVALID_VALUE;
  IpcHandle range;
  range.offset = what->offset;
  range.bytes = what->size;
  range.key = memory->piece->inode();
  Allocation buffer;
  result = import_map(memory->piece->gpu, memory->piece->file(), range, buffer);
  if (result != CUDA_SUCCESS) return result;
  buffer.kind = MemoryKind::kExternal;
  buffer.context = context->handle();
  MemoryMap::get().add(buffer);
  *out = buffer.base;
  return CUDA_SUCCESS;
}

CUresult cuDestroyExternalMemory(CUexternalMemory handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  // Buffers hold the memory for themselves and are freed with cuMemFree.
  return Registry<ExternalMemory>::all().take(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE
                                                                 : CUDA_SUCCESS;
}
