// Entry points: lookup by name and version, export tables, the profiler's switches.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "softgpu/driver/lookup.h"
#include "softgpu/driver/profile.h"
#include "softgpu/driver/state.h"

using namespace softgpu::driver;

namespace {

/// The newest ABI of `base` that `version` knows; per-thread when asked for and there is one.
const Entry* entry_find(std::string_view base, int version, bool per_thread, bool& known) {
  const Entry* end = kEntries + kEntryCount;
  const Entry* at = std::lower_bound(kEntries, end, base,
                                     [](const Entry& e, std::string_view b) { return e.base < b; });
  const Entry *legacy = nullptr, *own = nullptr;
  for (known = at != end && at->base == base; at != end && at->base == base; ++at) {
    if (at->since > version) continue;
    const Entry*& best = at->per_thread ? own : legacy;
    if (best == nullptr || at->since >= best->since) best = at;
  }
  return per_thread && own != nullptr ? own : legacy;
}

CUresult lookup(const char* name, void** out, int version, cuuint64_t flags,
                CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr cuuint64_t kKnown =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (version > kDriverVersion || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  bool known = false;
  const Entry* entry =
      entry_find(name, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, known);
  *out = entry == nullptr ? nullptr : entry->function;
  if (status != nullptr)
    *status = entry != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : known          ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}

/// The first private table without which NVIDIA's runtime does not start.
constexpr unsigned char kForeignRuntime[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                               0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};

void foreign_runtime_explain() {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  std::fputs(
      "softgpu: this program carries NVIDIA's CUDA runtime, which only starts on NVIDIA's driver; "
      "the software GPU runs "
      "programs on its own runtime: build with `nvcc -cudart shared` and put the software GPU's "
      "library directory into "
      "LD_LIBRARY_PATH, or relink with NVCC_APPEND_FLAGS=\"-L<that directory>\" to use its "
      "libcudart_static.a\n",
      stderr);
}

}  // namespace

/// Without a status a name that is not found is an error, and `*out` is left alone.
CUresult cuGetProcAddress(const char* name, void** out, int version, cuuint64_t flags) {
  void* found = nullptr;
  const CUresult result = lookup(name, out == nullptr ? nullptr : &found, version, flags, nullptr);
  if (result != CUDA_SUCCESS) return result;
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = found;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char* name, void** out, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  return lookup(name, out, version, flags, status);
}

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  if (std::memcmp(id->bytes, kForeignRuntime, sizeof kForeignRuntime) == 0)
    foreign_runtime_explain();
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuProfilerStart() { return enter_any(); }
CUresult cuProfilerStop() { return enter_any(); }
