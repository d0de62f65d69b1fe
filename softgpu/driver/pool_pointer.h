// How an allocation of a shareable pool is named to another process: what the 64 opaque bytes of
// CUmemPoolPtrExportData hold.
#pragma once

#include <type_traits>

#include "softgpu/driver/ipc.h"

namespace softgpu::driver {

struct PoolPointer {
  std::uint32_t magic = 0;
  IpcKind kind = IpcKind::kPoolPointer;
  std::uint64_t pool = 0;  // the key of its token
  std::uint64_t key = 0;   // of the chunk: the shared object in the device's account
  std::uint64_t chunk_offset = 0, chunk_bytes = 0;  // in the exporter's file
  std::uint64_t at = 0, bytes = 0;                  // in the chunk
};
static_assert(sizeof(PoolPointer) <= sizeof(CUmemPoolPtrExportData));
static_assert(std::is_trivially_copyable_v<PoolPointer>);

}  // namespace softgpu::driver
