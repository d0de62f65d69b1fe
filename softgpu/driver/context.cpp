// The life of a context: what it takes when it opens, and how everything of it ends when it closes.
// See state.h; limits are in context_limits.cpp.
#include <algorithm>
#include <cstdio>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/image.h"
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
  alarm_watch();
  if (gpu.model.lost()) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (!gpu.model.context_take(gpu.client)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result =
      stream_create(shared_from_this(), Stream::kLegacy, CU_STREAM_DEFAULT, 0, legacy);
  if (result != CUDA_SUCCESS) {
    gpu.model.context_give(gpu.client);
    legacy.reset();
  }
  return result;
}

void Context::close() {
  if (closed.exchange(true)) return;
  stop = true;
  Registry<Context>::all().take(handle());
  std::vector<StreamRef> all;
  {
    const std::lock_guard lock(order);
    all.swap(streams);
    all.push_back(std::move(legacy));
    legacy.reset();
    marker.reset();
    awaited.clear();
  }
  for (const StreamRef& stream : all) {
    Registry<Stream>::all().take(stream.get());
    capture_leave(*stream);
    stream->retire();
  }
  {
    std::unique_lock lock(workers_mutex);
    workers_changed.wait(lock, [this] { return workers == 0; });
  }
  print_flush();
  ImageTable::get().leave(id);
  for (const auto& module : Registry<Module>::all().list()) {
    if (&module->owner() != this) continue;
    module->unload();
    Registry<Module>::all().take(module.get());
  }
  for (const Allocation& allocation : MemoryMap::get().of_context(handle()))
    if (MemoryMap::get().take(allocation.base)) memory_release(allocation);
  limits_release();
  gpu.model.context_give(gpu.client);
}

std::vector<StreamRef> Context::streams_all() {
  const std::lock_guard lock(order);
  std::vector<StreamRef> all = streams;
  if (legacy != nullptr) all.push_back(legacy);
  return all;
}

void Context::wait_all() {
  for (const StreamRef& stream : streams_all()) (void)Stream::wait(stream->last());
}

void Context::fail(CUresult error) {
  int expected = CUDA_SUCCESS;
  sticky_.compare_exchange_strong(expected, error);
}

void Context::print(std::string_view text) {
  const std::lock_guard lock(print_mutex_);
  printed_.emplace_back(text);
  printed_bytes_ += text.size();
  // The FIFO is circular: what came first is overwritten (CUDA programming guide, "Formatted
  // output", limitations).
  while (printed_.size() > 1 && printed_bytes_ > limits[CU_LIMIT_PRINTF_FIFO_SIZE]) {
    printed_bytes_ -= printed_.front().size();
    printed_.pop_front();
  }
}

void Context::print_flush() {
  const std::lock_guard lock(print_mutex_);
  if (printed_.empty()) return;
  for (const std::string& text : printed_) std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  printed_.clear();
  printed_bytes_ = 0;
}

}  // namespace softgpu::driver
