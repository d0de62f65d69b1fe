// Memory of a GPU as this process has it: ranges of one file, each mapped with a margin on either
// side. See state.h.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "softgpu/device/descriptor.h"
#include "softgpu/device/own_file.h"
#include "softgpu/driver/memory_strict.h"
#include "softgpu/driver/state.h"

namespace softgpu::driver {
namespace {

/// Bytes mapped before and behind each piece of memory, which belong to no other. Hardware maps
/// memory in pages of this size, so a kernel that leaves its buffer by a row or two meets
/// neighbours there and no fault; programs do. Here it meets bytes of its own. They cost no device
/// memory, and none of the host's until they are touched. With exact bounds they fault.
constexpr std::size_t kMargin = 2u << 20;
/// Addresses that are kept at a time for what the arena will hold next.
constexpr std::size_t kWindow = 256u << 20;
/// The arena's size from the start. Its end only goes up, and no program comes near this one.
constexpr std::uint64_t kArenaBytes = 1ULL << 60;

/// Where the memory of a piece of `bytes` is mapped, margins included.
struct Extent {
  std::size_t inner, whole;
  explicit Extent(std::size_t bytes)
      : inner(round_up(bytes, kHostPage)), whole(inner + 2 * kMargin) {}
};

}  // namespace

bool Gpu::client_need() {
  const std::lock_guard lock(mutex);
  if (client != device::kNone && model.client_need(client)) return true;
  // Without contexts its place may have gone to another process. With one, others found this one
  // dead (context_alarm.cpp).
  if (client == device::kNone || !has_contexts()) client = model.client_open();
  if (client == device::kNone)
    Process::get().complain("out of memory: " + std::to_string(device::kClientsMax) +
                            " processes have contexts or memory on GPU " + std::to_string(ordinal) +
                            ", which may have no more");
  return client != device::kNone;
}

bool Gpu::has_contexts() const {
  const auto all = Registry<Context>::all().list();
  return std::any_of(all.begin(), all.end(), [this](const ContextRef& context) {
    return &context->gpu == this && !context->closed;
  });
}

/// Made once: what a program closed is not made anew, as with hardware.
const device::OwnFile& Gpu::file_need_locked() {
  if (arena_.opened()) return arena_;
  arena_bytes_ = std::min(kArenaBytes, device::file_size_limit());
  arena_ = device::OwnFile::in_memory("softgpu", arena_bytes_);
  return arena_;
}

const device::OwnFile& Gpu::memory_file() {
  const std::lock_guard lock(mutex);
  return file_need_locked();
}

bool Gpu::memory_share(std::uint64_t name, std::size_t bytes) {
  if (model.shared_adopt(client, name, pages_.alone(bytes))) return true;
  Process::get().complain("out of memory: this process has " + std::to_string(device::kSharedEach) +
                          " objects that others may hold, and may have no more");
  return false;
}

/// Maps the next `whole` bytes of the arena. Addresses go up as the file does, so that the kernel
/// makes one mapping of neighbours: a process may have 65,530 (vm.max_map_count).
void* Gpu::arena_map_locked(std::size_t whole) {
  if (!file_need_locked().opened()) return MAP_FAILED;
  if (whole > arena_bytes_ || arena_end_ > arena_bytes_ - whole) {
    errno = EFBIG;
    return MAP_FAILED;
  }
  if (window_left_ < whole) {
    if (window_left_ > 0) munmap(window_, window_left_);
    window_left_ = std::max(whole, kWindow);
    void* const window =
        mmap(nullptr, window_left_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (window == MAP_FAILED) window_left_ = 0;
    if (window == MAP_FAILED) return MAP_FAILED;
    window_ = static_cast<std::byte*>(window);
  }
  void* const p = arena_.map(window_, whole, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_NORESERVE | MAP_FIXED, arena_end_);
  if (p == MAP_FAILED) return MAP_FAILED;
  window_ += whole;
  window_left_ -= whole;
  return p;
}

void* Gpu::memory_map(std::size_t bytes, std::uint64_t& offset) {
  const Extent extent(bytes);
  const std::lock_guard lock(mutex);
  const std::uint64_t at = arena_end_;
  if (!pages_.take(at + kMargin, bytes)) return nullptr;
  void* p = arena_map_locked(extent.whole);
  std::byte* const inner = p != MAP_FAILED ? static_cast<std::byte*>(p) + kMargin : nullptr;
  if (inner != nullptr &&
      (!bounds_close(p, kMargin) || !bounds_close(inner + extent.inner, kMargin) ||
       !strict_close(inner, extent.inner, PROT_READ | PROT_WRITE))) {
    const int error = errno;
    munmap(p, extent.whole);
    errno = error;
    p = MAP_FAILED;
  }
  if (p == MAP_FAILED) {
    Process::get().complain_of_mapping(errno);
    pages_.give(at + kMargin, bytes);
    return nullptr;
  }
  arena_end_ = at + extent.whole;
  offset = at + kMargin;
  return inner;
}

void Gpu::memory_unmap(void* p, std::size_t bytes, std::uint64_t offset, std::uint64_t shared) {
  const Extent extent(bytes);
  std::byte* const whole = static_cast<std::byte*>(p) - kMargin;
  // What another process still shows must keep its contents; the last of them frees the pages. The
  // margins are shown by none.
  if (shared != 0) pages_.forget(offset, bytes);
  if (shared != 0 && !model.shared_release(client, shared)) {
    device::mapped_pages_drop(whole, kMargin);
    device::mapped_pages_drop(whole + kMargin + extent.inner, kMargin);
  } else {
    device::mapped_pages_drop(whole, extent.whole);
  }
  munmap(whole, extent.whole);
  if (shared == 0) pages_.give(offset, bytes);
}

}  // namespace softgpu::driver
