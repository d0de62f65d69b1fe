// The life of a context: what it takes when it opens, and how everything of it ends when it closes.
// See state.h.
#include <algorithm>
#include <cstdio>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {

CUresult Context::open() {
  static std::atomic<std::uint64_t> next_id{1};
  id = next_id++;
  limits[CU_LIMIT_STACK_SIZE] = 1024;
  limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
  limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
  limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  if (!gpu.client_need()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!gpu.model.memory_take(gpu.client, gpu.model.settings().context_bytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result =
      stream_create(shared_from_this(), Stream::kLegacy, CU_STREAM_DEFAULT, 0, legacy);
  if (result != CUDA_SUCCESS) {
    gpu.model.memory_give(gpu.client, gpu.model.settings().context_bytes);
    legacy.reset();
  }
  return result;
}

void Context::close() {
  if (closed.exchange(true)) return;
  stop = true;
  Registry<Context>::all().take(this);
  std::vector<StreamRef> all;
  {
    const std::lock_guard lock(order);
    all.swap(streams);
    all.push_back(std::move(legacy));
    legacy.reset();
  }
  for (const StreamRef& stream : all) {
    Registry<Stream>::all().take(stream.get());
    stream->retire();
  }
  {
    std::unique_lock lock(workers_mutex);
    workers_changed.wait(lock, [this] { return workers == 0; });
  }
  print_flush();
  for (const auto& module : Registry<Module>::all().list()) {
    if (&module->owner() != this) continue;
    module->unload();
    Registry<Module>::all().take(module.get());
  }
  for (const Allocation& allocation : MemoryMap::get().of_context(handle()))
    if (MemoryMap::get().take(allocation.base)) memory_release(allocation);
  gpu.model.memory_give(gpu.client, gpu.model.settings().context_bytes);
}

void Context::fail(CUresult error) {
  int expected = CUDA_SUCCESS;
  sticky_.compare_exchange_strong(expected, error);
}

void Context::print(std::string_view text) {
  const std::lock_guard lock(print_mutex_);
  printed_ += text;
}

void Context::print_flush() {
  const std::lock_guard lock(print_mutex_);
  if (printed_.empty()) return;
  std::fwrite(printed_.data(), 1, printed_.size(), stdout);
  std::fflush(stdout);
  printed_.clear();
}

}  // namespace softgpu::driver
