// See usage.h.
#include "interpose/usage.h"

#include <string.h>

#include "interpose/link.h"
#include "interpose/process.h"

namespace sluice::interpose {
namespace {

constexpr unsigned kProcessesMax = 512;              // that NVML lists on one GPU
constexpr unsigned long long kNotAvailable = ~0ull;  // NVML_VALUE_NOT_AVAILABLE

enum class State : uint32_t { kUnknown, kReady, kNone };
State state;
nvmlDevice_t handles[protocol::kTenantGpusMax];
nvmlProcessInfo_t listed_processes[kProcessesMax];
Lock lock;

// Both fill the same structure; the third came with driver 510.
auto list_function() {
  return nvml.nvmlDeviceGetComputeRunningProcesses_v3 != nullptr
             ? nvml.nvmlDeviceGetComputeRunningProcesses_v3
             : nvml.nvmlDeviceGetComputeRunningProcesses_v2;
}

bool library_ready() {
  if (state != State::kUnknown) return state == State::kReady;
  const bool good = link_host_pid() != 0 && resolve_nvml() && nvml.nvmlInit_v2 != nullptr &&
                    nvml.nvmlDeviceGetHandleByUUID != nullptr && list_function() != nullptr &&
                    nvml.nvmlInit_v2() == 0;
  state = good ? State::kReady : State::kNone;
  return good;
}

// "GPU-01234567-89ab-cdef-0123-456789abcdef".
void uuid_write(const protocol::GpuUuid& uuid, char out[41]) {
  constexpr char kDigits[] = "0123456789abcdef";
  memcpy(out, "GPU-", 4);
  char* at = out + 4;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
    *at++ = kDigits[uuid.bytes[i] >> 4];
    *at++ = kDigits[uuid.bytes[i] & 15];
  }
  *at = '\0';
}

nvmlDevice_t handle_of(int gpu) {
  if (handles[gpu] != nullptr) return handles[gpu];
  char text[41];
  uuid_write(process.entry(gpu).gpu, text);
  if (nvml.nvmlDeviceGetHandleByUUID(text, &handles[gpu]) != 0) handles[gpu] = nullptr;
  return handles[gpu];
}

}  // namespace

bool usage_read(int gpu, uint64_t* bytes) {
  const ErrnoGuard guard;
  const LockScope scope(lock);
  if (!library_ready()) return false;
  const nvmlDevice_t device = handle_of(gpu);
  unsigned count = kProcessesMax;
  if (device == nullptr || list_function()(device, &count, listed_processes) != 0) return false;
  *bytes = 0;
  for (unsigned i = 0; i < count && i < kProcessesMax; ++i) {
    if (listed_processes[i].pid != link_host_pid()) continue;
    if (listed_processes[i].usedGpuMemory == kNotAvailable) return false;
    *bytes = listed_processes[i].usedGpuMemory;
  }
  return true;
}

void usage_forget() {
  const LockScope scope(lock);
  memset(handles, 0, sizeof handles);
  // A broker that is asked again may know the pid now.
  if (state == State::kNone) state = State::kUnknown;
}

void usage_reset_after_fork() {
  lock.reset_after_fork();
  memset(handles, 0, sizeof handles);
  state = State::kUnknown;
}

}  // namespace sluice::interpose
