// See usage.h.
#include "interpose/usage.h"

#include <string.h>
#include <unistd.h>

#include "interpose/link.h"
#include "interpose/process.h"

namespace sluice::interpose {
namespace {

constexpr unsigned kProcessesMax = 4096;  // that NVML lists on one GPU: more contexts than fit one
constexpr unsigned long long kNotAvailable = ~0ull;  // NVML_VALUE_NOT_AVAILABLE

enum class State : uint32_t { kUnknown, kReady, kNone };
State state;
nvmlDevice_t handles[protocol::kTenantGpusMax];
nvmlProcessInfo_t listed_processes[kProcessesMax];
uint32_t own_pid;                           // proven to be NVML's name of this process; 0 = not
bool own_absent[protocol::kTenantGpusMax];  // NVML does not list the own pid there
Lock lock;

uint32_t pid_of_nvml() {
  const uint32_t told = link_host_pid();
  return told != 0 ? told : own_pid;
}

// Both fill the same structure; the third came with driver 510.
auto list_function() {
  return nvml.nvmlDeviceGetComputeRunningProcesses_v3 != nullptr
             ? nvml.nvmlDeviceGetComputeRunningProcesses_v3
             : nvml.nvmlDeviceGetComputeRunningProcesses_v2;
}

bool library_ready() {
  if (state != State::kUnknown) return state == State::kReady;
  const bool good = resolve_nvml() && nvml.nvmlInit_v2 != nullptr &&
                    nvml.nvmlDeviceGetHandleByUUID != nullptr && list_function() != nullptr &&
                    nvml.nvmlInit_v2() == 0;
  state = good ? State::kReady : State::kNone;
  return good;
}

nvmlDevice_t handle_of(int gpu) {
  if (handles[gpu] != nullptr) return handles[gpu];
  char text[41];
  uuid_write(process.entry(gpu).gpu, text);
  if (nvml.nvmlDeviceGetHandleByUUID(text, &handles[gpu]) != 0) handles[gpu] = nullptr;
  return handles[gpu];
}

// The processes on a GPU in listed_processes; false when NVML does not say.
bool list(int gpu, unsigned* count) {
  if (!library_ready()) return false;
  const nvmlDevice_t device = handle_of(gpu);
  *count = kProcessesMax;
  return device != nullptr && list_function()(device, count, listed_processes) == 0;
}

const nvmlProcessInfo_t* listed(unsigned count, uint32_t pid) {
  for (unsigned i = 0; i < count && i < kProcessesMax; ++i) {
    if (listed_processes[i].pid == pid) return &listed_processes[i];
  }
  return nullptr;
}

// In a PID namespace other than the broker's, NVML may list processes by the numbers of either.
// With both numbers of this process in the list one of them is another process: there is no figure
// then.
bool is_ambiguous(unsigned count) {
  const auto own = static_cast<uint32_t>(getpid());
  const uint32_t pid = pid_of_nvml();
  return pid != own && listed(count, pid) != nullptr && listed(count, own) != nullptr;
}

}  // namespace

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

bool usage_read(int gpu, uint64_t* bytes) {
  const SystemGuard guard;
  const LockScope scope(lock);
  const uint32_t pid = pid_of_nvml();
  unsigned count = 0;
  if (pid == 0 || !list(gpu, &count) || is_ambiguous(count)) return false;
  const nvmlProcessInfo_t* process_listed = listed(count, pid);
  *bytes = process_listed == nullptr ? 0 : process_listed->usedGpuMemory;
  return *bytes != kNotAvailable;
}

bool usage_read_of(int gpu, const uint32_t* pids, uint64_t* bytes, uint32_t count) {
  const SystemGuard guard;
  const LockScope scope(lock);
  unsigned listed_count = 0;
  if (pid_of_nvml() == 0 || !list(gpu, &listed_count) || is_ambiguous(listed_count)) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const nvmlProcessInfo_t* process_listed = listed(listed_count, pids[i]);
    const bool told = process_listed != nullptr && process_listed->usedGpuMemory != kNotAvailable;
    bytes[i] = told ? process_listed->usedGpuMemory : 0;
  }
  return true;
}

bool usage_read_by_own_pid(int gpu, uint32_t pid, uint64_t* bytes, bool* proven) {
  const SystemGuard guard;
  const LockScope scope(lock);
  unsigned count = 0;
  if (!list(gpu, &count)) return false;
  const nvmlProcessInfo_t* process_listed = listed(count, pid);
  *bytes = process_listed == nullptr ? 0 : process_listed->usedGpuMemory;
  *proven = pid_of_nvml() == static_cast<uint32_t>(getpid());
  return *bytes != kNotAvailable;
}

bool usage_of_gpu(int gpu, uint64_t* bytes) {
  const SystemGuard guard;
  const LockScope scope(lock);
  nvmlMemory_t memory{};
  if (!library_ready() || nvml.nvmlDeviceGetMemoryInfo == nullptr) return false;
  const nvmlDevice_t device = handle_of(gpu);
  if (device == nullptr || nvml.nvmlDeviceGetMemoryInfo(device, &memory) != 0) return false;
  *bytes = memory.used;
  return true;
}

bool usage_of_processes(int gpu, uint64_t* bytes) {
  const SystemGuard guard;
  const LockScope scope(lock);
  unsigned count = 0;
  if (!list(gpu, &count)) return false;
  *bytes = 0;
  for (unsigned i = 0; i < count && i < kProcessesMax; ++i) {
    const unsigned long long used = listed_processes[i].usedGpuMemory;
    if (used != kNotAvailable) *bytes += used;
  }
  return true;
}

void usage_before_context(int gpu) {
  const SystemGuard guard;
  const LockScope scope(lock);
  if (pid_of_nvml() != 0) return;
  unsigned count = 0;
  own_absent[gpu] = list(gpu, &count) && listed(count, static_cast<uint32_t>(getpid())) == nullptr;
}

void usage_after_context(int gpu) {
  const SystemGuard guard;
  const LockScope scope(lock);
  if (pid_of_nvml() != 0 || !own_absent[gpu]) return;
  const auto pid = static_cast<uint32_t>(getpid());
  unsigned count = 0;
  if (list(gpu, &count) && listed(count, pid) != nullptr) own_pid = pid;
}

bool usage_pid_is_proven() {
  const LockScope scope(lock);
  return own_pid != 0;
}

void usage_forget() {
  const LockScope scope(lock);
  memset(handles, 0, sizeof handles);
  // A library that could not be used before is tried once more.
  if (state == State::kNone) state = State::kUnknown;
}

void usage_reset_after_fork() {
  lock.reset_after_fork();
  memset(handles, 0, sizeof handles);
  memset(own_absent, 0, sizeof own_absent);
  own_pid = 0;
  state = State::kUnknown;
}

}  // namespace sluice::interpose
