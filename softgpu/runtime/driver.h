// The driver as the runtime sees it: one table of entry points, found the way NVIDIA's own runtime
// finds them (one dlopen, one dlsym, then cuGetProcAddress by name and version), so that anything
// between a program and its driver meets the same questions. Knows nothing of the software driver:
// it works with whatever libcuda.so.1 the loader gives.
#pragma once

// The public declarations are what the library exports; everything else stays inside.
#pragma GCC visibility push(default)
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#include <cuda.h>
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>

namespace softgpu::runtime {

struct Driver {
#define ENTRY(name, version) PFN_cu##name##_v##version name;
#define STREAM_ENTRY(name, version) ENTRY(name, version)
#include "softgpu/runtime/driver_entries.inc"
#undef STREAM_ENTRY
#undef ENTRY
  PFN_cuGetProcAddress_v12000 GetProcAddress;
};

/// The table for the calling thread: with legacy default streams, or with per-thread default
/// streams inside a call that came in by a `_ptsz`/`_ptds` name. Never fails; entries of a missing
/// driver return CUDA_ERROR_NOT_SUPPORTED.
[[nodiscard]] const Driver& driver();

/// Loads and initialises the driver on the first call. Not cudaSuccess: every later call of the
/// runtime gives the same.
[[nodiscard]] cudaError_t driver_ready();

/// What driver_ready() said, cudaSuccess when nobody has asked yet; loads nothing.
[[nodiscard]] cudaError_t driver_start_error();

/// The driver's version without initialising it; 0 where no driver is installed.
[[nodiscard]] int driver_version();

/// While one lives, this thread's calls use the per-thread default stream.
class PerThreadScope {
 public:
  PerThreadScope();
  ~PerThreadScope();
  PerThreadScope(const PerThreadScope&) = delete;
  PerThreadScope& operator=(const PerThreadScope&) = delete;

 private:
  bool before_;
};

/// True inside a PerThreadScope.
[[nodiscard]] bool per_thread_default_stream();

}  // namespace softgpu::runtime
