// See pool_import.h.
#include "softgpu/driver/pool_import.h"

#include <algorithm>
#include <utility>

#include "softgpu/driver/command.h"

namespace softgpu::driver {

std::shared_ptr<PoolImport> PoolImport::open(Gpu& gpu, const IpcHandle& token) {
  device::OwnFile file = ipc_file_open(token, gpu);
  if (!file.opened()) return nullptr;
  return std::make_shared<PoolImport>(gpu, token, std::move(file));
}

PoolImport::PoolImport(Gpu& gpu, const IpcHandle& token, device::OwnFile file)
    : Pool(gpu), token_(token), file_(std::move(file)) {}

PoolImport::~PoolImport() {
  for (const auto& [key, chunk] : chunks_) import_release(chunk.mapping);
}

CUresult PoolImport::allocate(const StreamRef&, std::size_t, CUdeviceptr&) {
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult PoolImport::free(CUdeviceptr address, const StreamRef& stream) {
  const auto self = std::static_pointer_cast<PoolImport>(shared_from_this());
  return command_submit(stream, HostCommand{[self, address] { self->free_now(address); }});
}

void PoolImport::free_now(CUdeviceptr address) {
  Allocation over;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(chunks_.begin(), chunks_.end(), [address](const auto& entry) {
      return entry.second.shown.contains(address);
    });
    if (found == chunks_.end()) return;
    found->second.shown.erase(address);
    if (found->second.shown.empty()) {
      over = found->second.mapping;
      chunks_.erase(found);
    }
  }
  if (over.gpu != nullptr) import_release(over);
  close_if_unused();
}

bool PoolImport::unused() {
  const std::lock_guard lock(mutex_);
  return chunks_.empty();
}

CUresult PoolImport::show(const PoolPointer& pointer, CUdeviceptr& address) {
  if (pointer.magic != kIpcMagic || pointer.kind != IpcKind::kPoolPointer ||
      pointer.pool != token_.key || pointer.at > pointer.chunk_bytes ||
      pointer.bytes > pointer.chunk_bytes - pointer.at)
    return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  auto found = chunks_.find(pointer.key);
  if (found == chunks_.end()) {
    IpcHandle range = token_;
    range.key = pointer.key;
    range.offset = pointer.chunk_offset;
    range.bytes = pointer.chunk_bytes;
    Chunk chunk;
    const CUresult result = import_map(gpu(), file_, range, chunk.mapping);
    if (result != CUDA_SUCCESS) return result;
    found = chunks_.emplace(pointer.key, std::move(chunk)).first;
  }
  const Allocation& mapping = found->second.mapping;
  if (pointer.at > mapping.size || pointer.bytes > mapping.size - pointer.at)
    return CUDA_ERROR_INVALID_VALUE;
  const std::uintptr_t at = mapping.base + pointer.at;
  if (!found->second.shown.insert(at).second) return CUDA_ERROR_INVALID_VALUE;
  Allocation shown;
  shown.base = at;
  shown.size = pointer.bytes;
  shown.kind = MemoryKind::kPool;
  shown.gpu = &gpu();
  shown.pool = handle();
  MemoryMap::get().add(shown);
  address = at;
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
