// See view.h.
#include "interpose/view.h"

#include <string.h>

#include "interpose/start.h"
#include "interpose/usage.h"

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

struct Metered {
  uint64_t at_ns, busy_ns;
};
Metered metered_last[protocol::kTenantGpusMax];
Lock metered_lock;

}  // namespace

nvmlUtilization_t utilization_metered(int gpu) {
  const ErrnoGuard guard;
  const LockScope scope(metered_lock);
  Metered& last = metered_last[gpu];
  uint64_t busy_ns = 0;
  for (const protocol::ClaimsSlot& slot : process.claims->slots)
    busy_ns += slot.gpus[gpu].busy_ns.load();
  const uint64_t now_ns = clock_now_ns(), elapsed_ns = now_ns - last.at_ns;
  // The sum falls when a process ends.
  const uint64_t used_ns = busy_ns > last.busy_ns ? busy_ns - last.busy_ns : 0;
  const bool first = last.at_ns == 0;
  last = {now_ns, busy_ns};
  if (first || elapsed_ns == 0) return {};
  const uint64_t percent = used_ns * 100 / elapsed_ns;
  return {percent > 100 ? 100 : static_cast<unsigned>(percent), 0};
}

void view_reset_after_fork() {
  metered_lock.reset_after_fork();
  for (Metered& last : metered_last) last = {};
}

int nvml_gpu(nvmlDevice_t device) {
  if (registration_mode(false) != Mode::kActive || nvml.nvmlDeviceGetUUID == nullptr) return -1;
  char text[96] = {};
  protocol::GpuUuid uuid;
  if (nvml.nvmlDeviceGetUUID(device, text, sizeof text) != 0 || !uuid_parse(text, &uuid)) return -1;
  return process_gpu_of(uuid);
}

uint32_t tenant_pid(uint32_t host_pid) {
  // Without a broker the slots have the pids of this process's namespace, NVML those of its own.
  if (load_acquire(process.alone) != 0 && !usage_pid_is_proven()) return 0;
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
