// See pool.h.
#include "softgpu/driver/pool.h"

#include <algorithm>

namespace softgpu::driver {

Pool::~Pool() {
  const std::lock_guard lock(mutex_);
  for (const auto& [base, chunk] : chunks_)
    gpu_.memory_unmap(reinterpret_cast<void*>(base), chunk.size, chunk.offset);
}

/// The smallest block that fits, of those this stream may use now.
std::map<std::uintptr_t, Pool::Block>::iterator Pool::find_locked(const Stream* stream,
                                                                  std::size_t bytes) {
  auto best = blocks_.end();
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    const Block& block = at->second;
    if (block.used || block.size < bytes || (block.pending != nullptr && block.pending != stream))
      continue;
    if (best == blocks_.end() || block.size < best->second.size) best = at;
  }
  return best;
}

CUresult Pool::allocate(const StreamRef& stream, std::size_t asked, CUdeviceptr& address) {
  const std::size_t bytes = (asked + kPoolAlign - 1) / kPoolAlign * kPoolAlign;
  const std::lock_guard lock(mutex_);
  auto found = find_locked(stream.get(), bytes);
  if (found == blocks_.end()) {
    Chunk chunk;
    chunk.size = (bytes + kPoolChunk - 1) / kPoolChunk * kPoolChunk;
    if (!gpu_.client_need()) return CUDA_ERROR_OUT_OF_MEMORY;
    void* p = gpu_.memory_map(chunk.size, 1, nullptr, &chunk.offset);
    if (p == nullptr) {
      trim_locked(0);
      p = gpu_.memory_map(chunk.size, 1, nullptr, &chunk.offset);
    }
    if (p == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    chunks_[address_of(p)] = chunk;
    reserved_ += chunk.size;
    reserved_high_ = std::max(reserved_high_, reserved_);
    found = blocks_.emplace(address_of(p), Block{chunk.size, 0, false, nullptr}).first;
  }
  Block& block = found->second;
  if (block.size > bytes && block.pending == nullptr) {
    blocks_[found->first + bytes] = Block{block.size - bytes, 0, false, nullptr};
    block.size = bytes;
  }
  block.used = true;
  block.pending = nullptr;
  block.asked = asked;
  used_ += block.size;
  used_high_ = std::max(used_high_, used_);
  address = found->first;
  Allocation allocation;
  allocation.base = address;
  allocation.size = asked;
  allocation.kind = MemoryKind::kPool;
  allocation.gpu = &gpu_;
  allocation.pool = handle();
  MemoryMap::get().add(allocation);
  return CUDA_SUCCESS;
}

bool Pool::free_begin(CUdeviceptr address, const Stream* stream) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || !found->second.used) return false;
  found->second.used = false;
  found->second.pending = stream;
  used_ -= found->second.size;
  return true;
}

void Pool::free_finish(CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || found->second.used) return;  // taken again in stream order
  found->second.pending = nullptr;
  merge_locked(found);
}

void Pool::merge_locked(std::map<std::uintptr_t, Block>::iterator block) {
  const auto joinable = [&](auto left, auto right) {
    return left->first + left->second.size == right->first && !chunks_.contains(right->first) &&
           !left->second.used && !right->second.used && left->second.pending == nullptr &&
           right->second.pending == nullptr;
  };
  const auto next = std::next(block);
  if (next != blocks_.end() && joinable(block, next)) {
    block->second.size += next->second.size;
    blocks_.erase(next);
  }
  if (block == blocks_.begin()) return;
  const auto before = std::prev(block);
  if (!joinable(before, block)) return;
  before->second.size += block->second.size;
  blocks_.erase(block);
}

void Pool::trim(std::size_t keep) {
  const std::lock_guard lock(mutex_);
  trim_locked(keep);
}

void Pool::trim_locked(std::size_t keep) {
  for (auto at = chunks_.begin(); at != chunks_.end() && reserved_ > keep;) {
    const auto block = blocks_.find(at->first);
    const bool idle = block != blocks_.end() && !block->second.used &&
                      block->second.pending == nullptr && block->second.size == at->second.size;
    if (!idle) {
      ++at;
      continue;
    }
    gpu_.memory_unmap(reinterpret_cast<void*>(at->first), at->second.size, at->second.offset);
    reserved_ -= at->second.size;
    blocks_.erase(block);
    at = chunks_.erase(at);
  }
}

std::size_t Pool::release_threshold() {
  const std::lock_guard lock(mutex_);
  return threshold_;
}

void Pool::trim_all() {
  for (const auto& pool : Registry<Pool>::all().list()) pool->trim(pool->release_threshold());
}

CUresult Pool::attribute_get(CUmemPool_attribute attribute, void* value) {
  const std::lock_guard lock(mutex_);
  const auto store = [&](std::uint64_t v) { *static_cast<cuuint64_t*>(value) = v; };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) =
          reuse_[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      store(threshold_);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      store(reserved_);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      store(reserved_high_);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      store(used_);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      store(used_high_);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Pool::attribute_set(CUmemPool_attribute attribute, void* value) {
  const std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      reuse_[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] =
          *static_cast<int*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      threshold_ = *static_cast<cuuint64_t*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? used_high_ : reserved_high_) =
          attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? used_ : reserved_;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace softgpu::driver
