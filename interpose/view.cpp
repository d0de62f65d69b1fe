// See view.h.
#include "interpose/view.h"

#include <string.h>

#include "interpose/start.h"

namespace sluice::interpose {
namespace {

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

uint32_t pid_shown(const protocol::ClaimsSlot& slot) {
  const uint32_t own = slot.own_pid.load();
  return own != 0 ? own : slot.pid.load();
}

}  // namespace

int nvml_gpu(nvmlDevice_t device) {
  if (registration_mode(false) != Mode::kActive || nvml.nvmlDeviceGetUUID == nullptr) return -1;
  char text[96] = {};
  protocol::GpuUuid uuid;
  if (nvml.nvmlDeviceGetUUID(device, text, sizeof text) != 0 || !uuid_parse(text, &uuid)) return -1;
  return process_gpu_of(uuid);
}

uint32_t tenant_pid(uint32_t host_pid) {
  for (const protocol::ClaimsSlot& slot : process.claims->slots) {
    if (host_pid != 0 && slot.pid.load() == host_pid) return pid_shown(slot);
  }
  return 0;
}

unsigned tenant_processes(int gpu, TenantProcess* out) {
  unsigned count = 0;
  for (const protocol::ClaimsSlot& slot : process.claims->slots) {
    if (slot.pid.load() == 0) continue;
    const protocol::ClaimsGpu& account = slot.gpus[gpu];
    const uint64_t bytes = account.reserved_bytes.load() + account.held_bytes.load();
    if (bytes > 0) out[count++] = TenantProcess{pid_shown(slot), bytes};
  }
  return count;
}

}  // namespace sluice::interpose
