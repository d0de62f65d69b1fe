// What a shareable pool tells other processes of itself and of its allocations. See pool.h; the
// other side is in pool_import.h.
#include "softgpu/driver/pool.h"

namespace softgpu::driver {

CUresult Pool::describe(IpcHandle& token) {
  if (!options_.shareable) return CUDA_ERROR_INVALID_VALUE;
  if (!gpu_.client_need()) return CUDA_ERROR_OUT_OF_MEMORY;
  token = ipc_handle_make(IpcKind::kPool, gpu_);
  token.key = id_;
  return ipc_file_tell(gpu_.memory_file(), token) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult Pool::describe(CUdeviceptr address, PoolPointer& pointer) {
  if (!options_.shareable) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  auto next = chunks_.upper_bound(address);
  const auto block = blocks_.find(address);
  if (next == chunks_.begin() || block == blocks_.end() || !block->second.used)
    return CUDA_ERROR_INVALID_VALUE;
  auto& [base, chunk] = *std::prev(next);
  if (chunk.key == 0) {
    const std::uint64_t key = ipc_key_make();
    if (!gpu_.memory_share(key, chunk.size)) return CUDA_ERROR_OUT_OF_MEMORY;
    chunk.key = key;
  }
  pointer.magic = kIpcMagic;
  pointer.pool = id_;
  pointer.key = chunk.key;
  pointer.chunk_offset = chunk.offset;
  pointer.chunk_bytes = chunk.size;
  pointer.at = address - base;
  pointer.bytes = block->second.size;
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
