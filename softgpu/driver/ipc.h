// Device memory and events that other processes open. A handle names the process that exports by
// its life on the GPU (device/life.h), a file of it (/proc/PID/fd) and a range in that file, so
// that nothing has to be cleaned up when a process is killed: the file ends with its last
// descriptor and mapping. The device's account (device.h: shared objects) says who holds a range
// and charges it once. Knows nothing of streams.
#pragma once

#include <type_traits>

#include "softgpu/driver/memory.h"

namespace softgpu::driver {

inline constexpr std::uint32_t kIpcMagic = 0x53474950;

enum class IpcKind : std::uint32_t { kMemory = 1, kEvent, kPool, kPoolPointer };

/// What the 64 opaque bytes of a handle hold.
struct IpcHandle {
  std::uint32_t magic = 0;
  IpcKind kind = IpcKind::kMemory;
  unsigned char uuid[16] = {};
  std::uint32_t life = 0;
  std::int32_t file = -1;
  std::uint64_t inode = 0;  // of the file
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t key = 0;  // names the shared object or the pool; of an event, nothing
};
static_assert(sizeof(IpcHandle) == CU_IPC_HANDLE_SIZE);
static_assert(std::is_trivially_copyable_v<IpcHandle>);

/// A handle of this process on `gpu`, whose client it becomes: so others find it.
IpcHandle ipc_handle_make(IpcKind kind, Gpu& gpu);
/// INVALID_VALUE: these bytes are no handle of this kind, or of no device that this process sees.
CUresult ipc_handle_read(const void* bytes, IpcKind kind, IpcHandle& handle, Gpu*& gpu);
bool ipc_handle_own(const IpcHandle& handle, const Gpu& gpu);
/// Tells others where `file` is. False: the program closed it.
bool ipc_file_tell(const device::OwnFile& file, IpcHandle& handle);
/// Opens the exporter's file; not opened when the process or its file is gone, or when the process
/// is of a pid namespace that this one cannot see.
device::OwnFile ipc_file_open(const IpcHandle& handle, Gpu& gpu);
/// Whether this driver made the file: descriptors and handles come from anywhere.
bool ipc_file_ours(int file);
/// Tells a key from the inode number that names a piece (virtual.h).
inline constexpr std::uint64_t kIpcKeyBit = 1ULL << 63;
/// A name for a shared object that no other has, on any device.
std::uint64_t ipc_key_make();

/// Makes an allocation of this process one that others can open, and tells its name in the account.
CUresult memory_share(const Allocation& allocation, std::uint64_t& key);
/// Maps a range of another process's device memory; the file stays the caller's. The result is a
/// kImported allocation that is not in the map yet.
CUresult import_map(Gpu& gpu, const device::OwnFile& file, const IpcHandle& range,
                    Allocation& import);
/// Unmaps it; whoever is the last to hold the range gives its pages back.
void import_release(const Allocation& import);

}  // namespace softgpu::driver
