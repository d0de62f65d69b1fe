// See view.h.
#include "interpose/view.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "interpose/family.h"
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

// Utilization is of about the last second, as NVML's is of its last sample (1/6 s to 1 s). A look
// is the moment of a call and what the tenant had used by then; an answer is what was used since a
// look that is as old as that, so that calls in a row, whoever makes them, agree.
constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kLookEveryNs = kSecondNs / 8;  // any three that are kept span as much
constexpr unsigned kLooksMax = 20;                // so these span more than a second

struct Look {
  uint64_t at_ns, used_ns;
};

struct Metered {
  Look looks[kLooksMax];  // the oldest first
  unsigned count;
  uint64_t used_ns;  // by all processes, those that have ended as well; only grows
  uint64_t counted_ns[protocol::kTenantProcessesMax];  // what of each slot is in it
};
Metered metered[protocol::kTenantGpusMax];
Lock metered_lock;

// When this process began, by CLOCK_MONOTONIC; `now_ns` where /proc does not say.
uint64_t process_began_ns(uint64_t now_ns) {
  constexpr uint64_t kTickNs = kSecondNs / 100;  // USER_HZ of x86-64
  const SystemGuard guard;
  const int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return now_ns;
  char text[1024] = {};
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  // A name may hold anything, so from the last bracket on, which ends the second field. The time is
  // the 22nd, in ticks since the machine's start.
  const char* at = n > 0 ? strrchr(text, ')') : nullptr;
  for (int field = 2; at != nullptr && field < 22; ++field) at = strchr(at + 1, ' ');
  timespec t;
  if (at == nullptr || clock_gettime(CLOCK_BOOTTIME, &t) != 0) return now_ns;
  uint64_t ticks = 0;
  for (++at; *at >= '0' && *at <= '9'; ++at) ticks = ticks * 10 + static_cast<uint64_t>(*at - '0');
  const uint64_t boot_ns =
      static_cast<uint64_t>(t.tv_sec) * kSecondNs + static_cast<uint64_t>(t.tv_nsec);
  const uint64_t began_ns = ticks * kTickNs;
  const uint64_t age_ns = boot_ns > began_ns ? boot_ns - began_ns : 0;
  return age_ns < now_ns ? now_ns - age_ns : now_ns;
}

// What the others had used before the first look was used nobody knows when. All of this process's
// is of the time since it began.
void metered_begin(Metered& one, int gpu, uint64_t now_ns) {
  const auto own_pid = static_cast<uint32_t>(getpid());
  for (uint32_t i = 0; i < protocol::kTenantProcessesMax; ++i) {
    const protocol::ClaimsSlot& slot = process.claims->slots[i];
    const bool own = i == process.slot && slot.own_pid.load() == own_pid;
    one.counted_ns[i] = own ? 0 : slot.gpus[gpu].busy_ns.load();
  }
  one.looks[0] = {process_began_ns(now_ns), one.used_ns};
  one.count = 1;
}

void metered_count(Metered& one, int gpu) {
  for (uint32_t i = 0; i < protocol::kTenantProcessesMax; ++i) {
    const uint64_t busy_ns = process.claims->slots[i].gpus[gpu].busy_ns.load();
    uint64_t& counted_ns = one.counted_ns[i];
    // It falls when a process ends and another takes its place.
    one.used_ns += busy_ns < counted_ns ? busy_ns : busy_ns - counted_ns;
    counted_ns = busy_ns;
  }
}

// The last one is always kept: its successor may come much later.
void look_keep(Metered& one, const Look& look) {
  const unsigned last = one.count - 1;
  if (last > 0 && look.at_ns - one.looks[last - 1].at_ns < kLookEveryNs) {
    one.looks[last] = look;
    return;
  }
  if (one.count == kLooksMax) {
    memmove(&one.looks[0], &one.looks[1], sizeof one.looks - sizeof one.looks[0]);
    --one.count;
  }
  one.looks[one.count++] = look;
}

// The look from which on an answer counts: the last one that is a second old, else the oldest.
const Look& look_since(const Metered& one, uint64_t now_ns) {
  unsigned i = one.count - 1;
  while (i > 0 && now_ns - one.looks[i].at_ns < kSecondNs) --i;
  return one.looks[i];
}

}  // namespace

MemoryView nvml_memory_view(int gpu, uint64_t real_total, uint64_t real_free) {
  if (gpu != kGpuUnused) return gpu_memory_view(gpu, real_total, real_free);
  Limits own;
  own.memory_bytes = process.memory_own;
  const uint64_t quota = limits_narrow(family_limits(), own).memory_bytes;
  return memory_view(quota, 0, real_total, real_free);
}

uint32_t nvml_sm_percent(int gpu) {
  return gpu != kGpuUnused ? process.entry(gpu).sm_percent : family_limits().sm_percent;
}

nvmlUtilization_t utilization_metered(int gpu) {
  if (gpu == kGpuUnused) return {};
  const ErrnoGuard guard;
  const LockScope scope(metered_lock);
  Metered& one = metered[gpu];
  const uint64_t now_ns = clock_now_ns();
  if (one.count == 0) metered_begin(one, gpu, now_ns);
  metered_count(one, gpu);
  const Look since = look_since(one, now_ns);
  look_keep(one, {now_ns, one.used_ns});
  const uint64_t elapsed_ns = now_ns - since.at_ns, used_ns = one.used_ns - since.used_ns;
  if (elapsed_ns == 0) return {};
  return {used_ns < elapsed_ns ? static_cast<unsigned>(used_ns * 100 / elapsed_ns) : 100, 0};
}

void view_reset_after_fork() {
  metered_lock.reset_after_fork();
  for (Metered& one : metered) one.count = 0;
}

int nvml_gpu(nvmlDevice_t device) {
  if (registration_mode(false) != Mode::kActive || nvml.nvmlDeviceGetUUID == nullptr) return -1;
  char text[96] = {};
  protocol::GpuUuid uuid;
  if (nvml.nvmlDeviceGetUUID(device, text, sizeof text) != 0 || !uuid_parse(text, &uuid)) return -1;
  const int gpu = process_gpu_of(uuid);
  if (load_acquire(process.alone) == 0) return gpu;
  process_quotas_choose();
  return gpu < 0 && !family_knows_tenant() ? kGpuUnused : gpu;
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
  if (gpu == kGpuUnused) return count;
  ended_look(gpu);
  for (const protocol::ClaimsSlot& slot : process.claims->slots) {
    if (slot.pid.load() == 0) continue;
    const protocol::ClaimsGpu& account = slot.gpus[gpu];
    const uint64_t bytes = account.reserved_bytes.load() + account.held_bytes.load();
    if (bytes > 0) out[count++] = TenantProcess{pid_shown(slot), bytes};
  }
  return count;
}

}  // namespace sluice::interpose
