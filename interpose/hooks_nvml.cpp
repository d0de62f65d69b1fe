// NVML's memory figures for the tenant's GPUs. NVML numbers devices its own way and sees all of
// them, so a device is matched by UUID; GPUs that are not the tenant's are shown as they are.
#include <string.h>

#include "interpose/start.h"
#include "interpose/view.h"

using namespace sluice::interpose;
namespace protocol = sluice::protocol;

namespace {

constexpr nvmlReturn_t kNvmlLibraryNotFound = 12;

// "GPU-01234567-89ab-cdef-0123-456789abcdef" to its 16 bytes.
bool uuid_parse(const char* text, protocol::GpuUuid* out) {
  if (strncmp(text, "GPU-", 4) != 0) return false;
  int digits = 0;
  memset(out, 0, sizeof *out);
  for (text += 4; *text != '\0' && digits < 32; ++text) {
    if (*text == '-') continue;
    const char c = static_cast<char>(*text | 0x20);
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0) return false;
    uint8_t& byte = out->bytes[digits / 2];
    byte = static_cast<uint8_t>(byte << 4 | value);
    ++digits;
  }
  return digits == 32;
}

int device_gpu_of(nvmlDevice_t device) {
  if (registration_mode() != Mode::kActive || nvml.nvmlDeviceGetUUID == nullptr) return -1;
  char text[96] = {};
  protocol::GpuUuid uuid;
  if (nvml.nvmlDeviceGetUUID(device, text, sizeof text) != 0 || !uuid_parse(text, &uuid)) return -1;
  return process_gpu_of(uuid);
}

template <class Memory>
void memory_narrow(int gpu, Memory* memory) {
  const MemoryView view = gpu_memory_view(gpu, memory->total, memory->free);
  memory->total = view.total_bytes;
  memory->free = view.free_bytes;
  memory->used = view.total_bytes - view.free_bytes;
}

}  // namespace

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (!resolve_nvml() || nvml.nvmlDeviceGetMemoryInfo == nullptr) return kNvmlLibraryNotFound;
  const nvmlReturn_t result = nvml.nvmlDeviceGetMemoryInfo(device, memory);
  const int gpu = result == 0 ? device_gpu_of(device) : -1;
  if (gpu >= 0) memory_narrow(gpu, memory);
  return result;
}

SLUICE_HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (!resolve_nvml() || nvml.nvmlDeviceGetMemoryInfo_v2 == nullptr) return kNvmlLibraryNotFound;
  const nvmlReturn_t result = nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
  const int gpu = result == 0 ? device_gpu_of(device) : -1;
  if (gpu >= 0) {
    // What the driver keeps for itself is not the tenant's to see.
    memory->reserved = 0;
    memory_narrow(gpu, memory);
  }
  return result;
}
