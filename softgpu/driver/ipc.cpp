// See ipc.h.
#include "softgpu/driver/ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "softgpu/driver/memory_strict.h"

namespace softgpu::driver {
bool ipc_file_ours(int file) {
  char path[64], target[256];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(path, target, sizeof target);
  constexpr char kPrefix[] = "/memfd:softgpu";
  return length >= static_cast<ssize_t>(sizeof kPrefix - 1) &&
         std::memcmp(target, kPrefix, sizeof kPrefix - 1) == 0;
}

IpcHandle ipc_handle_make(IpcKind kind, Gpu& gpu) {
  IpcHandle handle;
  handle.magic = kIpcMagic;
  handle.kind = kind;
  std::memcpy(handle.uuid, gpu.model.settings().uuid, sizeof handle.uuid);
  (void)gpu.client_need();
  handle.life = gpu.model.lives().own();
  return handle;
}

CUresult ipc_handle_read(const void* bytes, IpcKind kind, IpcHandle& handle, Gpu*& gpu) {
  std::memcpy(&handle, bytes, sizeof handle);
  if (handle.magic != kIpcMagic || handle.kind != kind) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& candidate : Process::get().gpus()) {
    if (std::memcmp(candidate->model.settings().uuid, handle.uuid, sizeof handle.uuid) != 0)
      continue;
    gpu = candidate.get();
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

bool ipc_handle_own(const IpcHandle& handle, const Gpu& gpu) {
  return handle.life == gpu.model.lives().own();
}

bool ipc_file_tell(const device::OwnFile& file, IpcHandle& handle) {
  handle.file = file.number();
  handle.inode = file.inode();
  return handle.file >= 0;
}

device::OwnFile ipc_file_open(const IpcHandle& handle, Gpu& gpu) {
  const auto exporter = gpu.model.client_of(handle.life);
  if (!exporter) return {};
  const int pid = device::process_pid({exporter->pid, exporter->space}, exporter->start_ticks);
  if (pid == 0) return {};
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, handle.file);
  device::OwnFile file(open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  const bool exported = file.inode() == handle.inode && ipc_file_ours(file.number());
  return exported ? std::move(file) : device::OwnFile();
}

std::uint64_t ipc_key_make() {
  std::uint64_t key = 0;
  if (getrandom(&key, sizeof key, 0) != sizeof key)
    key = static_cast<std::uint64_t>(device::clock_ns()) ^
          (static_cast<std::uint64_t>(getpid()) << 40);
  return key | kIpcKeyBit;
}

CUresult memory_share(const Allocation& allocation, std::uint64_t& key) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const auto now = MemoryMap::get().find(allocation.base);
  if (!now || now->base != allocation.base) return CUDA_ERROR_INVALID_VALUE;
  key = now->inode;
  if (key != 0) return CUDA_SUCCESS;
  key = ipc_key_make();
  Gpu& gpu = *allocation.gpu;
  if (!gpu.memory_share(key, allocation.size)) return CUDA_ERROR_OUT_OF_MEMORY;
  bool told = false;  // unless it was freed, and the address is another allocation's, meanwhile
  MemoryMap::get().change(allocation.base, [&](Allocation& a) {
    told = a.id == now->id;
    if (told) a.inode = key;
  });
  if (!told) {
    gpu.model.shared_release(gpu.client, key);
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult import_map(Gpu& gpu, const device::OwnFile& file, const IpcHandle& range,
                    Allocation& import) {
  struct stat status {};
  if (fstat(file.number(), &status) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (range.bytes == 0 || range.offset % kHostPage != 0 || range.offset > size ||
      range.bytes > size - range.offset)
    return CUDA_ERROR_INVALID_VALUE;
  if (!gpu.client_need()) return CUDA_ERROR_OUT_OF_MEMORY;
  // From here on the range keeps its pages: whoever frees it now is not the last.
  if (!gpu.model.shared_hold(gpu.client, range.key)) return CUDA_ERROR_INVALID_VALUE;
  void* p = file.map(nullptr, round_up(range.bytes, kHostPage), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_NORESERVE, range.offset);
  if (p != MAP_FAILED &&
      !strict_close(p, round_up(range.bytes, kHostPage), PROT_READ | PROT_WRITE)) {
    munmap(p, round_up(range.bytes, kHostPage));
    p = MAP_FAILED;
  }
  if (p == MAP_FAILED) {
    gpu.model.shared_release(gpu.client, range.key);
    return CUDA_ERROR_MAP_FAILED;
  }
  import.base = address_of(p);
  import.size = range.bytes;
  import.kind = MemoryKind::kImported;
  import.gpu = &gpu;
  import.offset = range.offset;
  import.inode = range.key;
  return CUDA_SUCCESS;
}

void import_release(const Allocation& import) {
  void* const pages = reinterpret_cast<void*>(import.base);
  const bool last = import.gpu->model.shared_release(import.gpu->client, import.inode);
  // The contents of a piece (virtual.h) last as long as a descriptor of it.
  if (last && (import.inode & kIpcKeyBit) != 0)
    device::mapped_pages_drop(pages, round_up(import.size, kHostPage));
  munmap(pages, round_up(import.size, kHostPage));
}

}  // namespace softgpu::driver
