// See pool.h; attributes and access are in pool_attribute.cpp.
#include "softgpu/driver/pool.h"

#include <algorithm>

#include "softgpu/driver/command.h"

namespace softgpu::driver {

Pool::Pool(Gpu& gpu, const PoolOptions& options)
    : gpu_(gpu), options_(options), id_(ipc_key_make()) {}

Pool::~Pool() {
  for (const auto& [base, chunk] : chunks_) chunk_release(base, chunk);
}

PoolRef pool_find(CUmemoryPool handle) {
  PoolRef pool = Registry<Pool>::all().find(handle);
  return pool != nullptr && pool->open() ? pool : nullptr;
}

bool Pool::executed(const Block& block) {
  const OpRef freed = block.freed.lock();
  return freed == nullptr || freed->state.load(std::memory_order_acquire) != Op::kQueued;
}

/// Frees that have executed make their blocks anyone's, those that are looked at.
void Pool::settle_locked(const Observed& observed) {
  for (auto at = pending_.begin(); at != pending_.end();) {
    const auto block = blocks_.find(*at);
    if (observed(block->second) && executed(block->second)) {
      at = pending_.erase(at);
      block->second.stream = 0;
      list_locked(block);
    } else {
      ++at;
    }
  }
}

bool Pool::usable_locked(const Block& block, const StreamRef& stream, bool ordered) const {
  if (block.stream == stream->id) return true;
  if (!ordered) return false;
  const OpRef freed = block.freed.lock();
  return freed != nullptr && Stream::follows(*stream, *freed);
}

/// The smallest block that fits, of those this stream may use now.
Pool::Blocks::iterator Pool::find_locked(const StreamRef& stream, std::size_t bytes) {
  auto best = blocks_.end();
  const auto consider = [&](std::uintptr_t address) {
    const auto block = blocks_.find(address);
    if (best == blocks_.end() || block->second.size < best->second.size) best = block;
  };
  if (const auto fits = free_.lower_bound({bytes, 0}); fits != free_.end()) consider(fits->second);
  for (const bool ordered : {false, true}) {  // dependencies are looked for only when they must be
    if (ordered && (!reuse_events_ || best != blocks_.end())) break;
    for (const std::uintptr_t address : pending_) {
      const Block& block = blocks_.find(address)->second;
      if (block.size >= bytes && usable_locked(block, stream, ordered)) consider(address);
    }
  }
  return best;
}

/// A block that some stream has yet to come to the free of.
Pool::Blocks::iterator Pool::find_pending_locked(std::size_t bytes, OpRef& freed) {
  if (!reuse_by_waiting_) return blocks_.end();
  for (const std::uintptr_t address : pending_) {
    const auto block = blocks_.find(address);
    if (block->second.size < bytes) continue;
    freed = block->second.freed.lock();
    return block;
  }
  return blocks_.end();
}

Pool::Blocks::iterator Pool::grow_locked(std::size_t bytes) {
  Chunk chunk;
  chunk.size = round_up(bytes, kPoolChunk);
  if (!gpu_.client_need()) return blocks_.end();
  if (options_.bytes_max != 0) {
    const std::size_t limit = round_up(options_.bytes_max, kPoolChunk);
    if (chunk.size > limit) return blocks_.end();
    if (reserved_ > limit - chunk.size) trim_locked(0);
    if (reserved_ > limit - chunk.size) return blocks_.end();
  }
  void* p = gpu_.memory_map(chunk.size, chunk.offset);
  if (p == nullptr) {
    trim_locked(0);
    p = gpu_.memory_map(chunk.size, chunk.offset);
  }
  if (p == nullptr) return blocks_.end();
  chunks_[address_of(p)] = chunk;
  reserved_ += chunk.size;
  reserved_high_ = std::max(reserved_high_, reserved_);
  Block block;
  block.size = chunk.size;
  const auto whole = blocks_.emplace(address_of(p), block).first;
  list_locked(whole);
  return whole;
}

CUdeviceptr Pool::take_locked(Blocks::iterator found, std::size_t bytes, std::size_t asked) {
  Block& block = found->second;
  unlist_locked(found);
  if (block.size > bytes) {
    Block rest = block;  // freed where the whole was
    rest.size -= bytes;
    block.size = bytes;
    block.used = true;
    list_locked(blocks_.emplace(found->first + bytes, rest).first);
  }
  block.used = true;
  block.stream = 0;
  block.freed.reset();
  ++live_;
  used_ += block.size;
  used_high_ = std::max(used_high_, used_);
  Allocation allocation;
  allocation.base = found->first;
  allocation.size = asked;
  allocation.kind = MemoryKind::kPool;
  allocation.gpu = &gpu_;
  allocation.pool = handle();
  MemoryMap::get().add(allocation);
  return found->first;
}

CUresult Pool::allocate(const StreamRef& stream, std::size_t asked, CUdeviceptr& address) {
  if (asked > SIZE_MAX - kPoolChunk) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t bytes = round_up(asked, kPoolAlign);
  OpRef wait_for;
  {
    const std::lock_guard lock(mutex_);
    if (reuse_executed_) settle_locked([](const Block&) { return true; });
    auto found = find_locked(stream, bytes);
    if (found == blocks_.end()) found = grow_locked(bytes);
    if (found == blocks_.end()) found = find_pending_locked(bytes, wait_for);
    if (found == blocks_.end()) return CUDA_ERROR_OUT_OF_MEMORY;
    address = take_locked(found, bytes, asked);
  }
  if (wait_for != nullptr) stream->submit([](Stream&, Op&) {}, {wait_for});
  return CUDA_SUCCESS;
}

std::size_t Pool::mark_free_locked(CUdeviceptr address, const Stream* stream,
                                   std::weak_ptr<Op> freed) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || !found->second.used) return 0;
  const std::size_t size = found->second.size;
  found->second.used = false;
  found->second.stream = stream == nullptr ? 0 : stream->id;
  found->second.context = stream == nullptr ? 0 : stream->owner().id;
  found->second.blocking = stream != nullptr && stream->blocking();
  found->second.freed = std::move(freed);
  --live_;
  list_locked(found);
  return size;
}

CUresult Pool::free(CUdeviceptr address, const StreamRef& stream) {
  // Before the block is anybody's: nobody can have got it in between.
  OpRef op;
  const CUresult result = command_submit(stream, FreeCommand{shared_from_this(), address}, &op);
  if (result != CUDA_SUCCESS) return result;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t size = mark_free_locked(address, stream.get(), op);
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    used_ -= size;
  }
  close_if_unused();
  return CUDA_SUCCESS;
}

void Pool::free_now(CUdeviceptr address) {
  {
    const std::lock_guard lock(mutex_);
    if (mark_free_locked(address, nullptr, {}) == 0) return;
    trim_locked(threshold_);
  }
  close_if_unused();
}

bool Pool::joinable_locked(Blocks::iterator left, Blocks::iterator right) const {
  return left->first + left->second.size == right->first && !chunks_.contains(right->first) &&
         !left->second.used && !right->second.used && left->second.stream == 0 &&
         right->second.stream == 0;
}

/// Enters a block that is not used where those who look for one find it. What is anyone's becomes
/// one with its neighbours.
void Pool::list_locked(Blocks::iterator block) {
  if (block->second.stream != 0) {
    pending_.insert(block->first);
    return;
  }
  if (const auto next = std::next(block); next != blocks_.end() && joinable_locked(block, next)) {
    free_.erase({next->second.size, next->first});
    block->second.size += next->second.size;
    blocks_.erase(next);
  }
  if (block != blocks_.begin() && joinable_locked(std::prev(block), block)) {
    const auto before = std::prev(block);
    free_.erase({before->second.size, before->first});
    before->second.size += block->second.size;
    blocks_.erase(block);
    block = before;
  }
  free_.insert({block->second.size, block->first});
}

void Pool::unlist_locked(Blocks::iterator block) {
  pending_.erase(block->first);
  free_.erase({block->second.size, block->first});
}

void Pool::trim(std::size_t keep) {
  const std::lock_guard lock(mutex_);
  trim_locked(keep);
}

void Pool::trim_locked(std::size_t keep) {
  for (auto at = free_.lower_bound({kPoolChunk, 0}); at != free_.end() && reserved_ > keep;) {
    const auto chunk = chunks_.find(at->second);
    const bool idle = chunk != chunks_.end() && chunk->second.size == at->first;
    if (!idle || reserved_ - chunk->second.size < keep) {
      ++at;
      continue;
    }
    chunk_release(chunk->first, chunk->second);
    reserved_ -= chunk->second.size;
    blocks_.erase(chunk->first);
    chunks_.erase(chunk);
    at = free_.erase(at);
  }
}

void Pool::chunk_release(std::uintptr_t base, const Chunk& chunk) {
  gpu_.memory_unmap(reinterpret_cast<void*>(base), chunk.size, chunk.offset, chunk.key);
}

void Pool::settle_all(const Observed& observed) {
  for (const auto& pool : Registry<Pool>::all().list()) {
    const std::lock_guard lock(pool->mutex_);
    pool->settle_locked(observed);
    pool->trim_locked(pool->threshold_);
  }
}

void Pool::synchronized(const Stream& stream) {
  settle_all([&](const Block& block) {
    return block.stream == stream.id ||
           (stream.kind == Stream::kLegacy && block.blocking && block.context == stream.owner().id);
  });
}

void Pool::synchronized(const Context& context) {
  settle_all([&](const Block& block) { return block.context == context.id; });
}

void Pool::close() {
  open_ = false;
  close_if_unused();
}

void Pool::close_if_unused() {
  // Frees that are still in a stream hold the pool until they have executed.
  if (!open_ && unused()) Registry<Pool>::all().take(handle());
}

bool Pool::unused() {
  const std::lock_guard lock(mutex_);
  return live_ == 0;
}

}  // namespace softgpu::driver
