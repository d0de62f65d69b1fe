// See ended.h. A broker watches by pidfds and compares what the whole device has in use
// (broker/daemon/left_behind.h). Here a slot's lock shows the end of its process, and NVML's figure
// of its pid what is left: what no figure has, such as memory that a descriptor holds, is taken for
// returned.
#include "interpose/memory/ended.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/family.h"
#include "interpose/memory/others.h"
#include "interpose/process.h"
#include "interpose/usage.h"

namespace sluice::interpose {
namespace {

// A guess: several times what a kernel takes to end an address space of some GiB, and short enough
// for a program that starts where another has just ended.
constexpr uint64_t kUntoldNs = 50'000'000;

// What other slots of the same pid are charged: what it executed since.
uint64_t charged_since(uint32_t slot, uint32_t pid, uint32_t gpu) {
  const protocol::ClaimsPage& claims = *family_claims();
  uint64_t sum = 0;
  for (uint32_t i = 0; i < protocol::kTenantProcessesMax; ++i) {
    if (i != slot && claims.slots[i].own_pid.load() == pid)
      sum += charged_on_device(claims, i, gpu);
  }
  return sum;
}

enum class Told : uint8_t { kGone, kThere, kNothing };

// Where NVML lists the pid, pids of this process's namespace are what it lists.
Told told(uint32_t slot, uint32_t pid, uint32_t gpu, uint64_t charged) {
  const int own_gpu = process_gpu_of(family_gpu_uuid(gpu));
  uint64_t bytes = 0;
  bool proven = false;
  if (own_gpu < 0 || !usage_read_by_own_pid(own_gpu, pid, &bytes, &proven)) return Told::kNothing;
  if (bytes > charged_since(slot, pid, gpu) + charged / 2) return Told::kThere;
  return proven ? Told::kGone : Told::kNothing;
}

bool is_over(uint32_t slot, uint64_t ended_for_ns) {
  const protocol::ClaimsPage& claims = *family_claims();
  const uint32_t pid = claims.slots[slot].own_pid.load();
  for (uint32_t gpu = 0, n = family_gpu_count(); gpu < n; ++gpu) {
    const uint64_t charged = charged_on_device(claims, slot, gpu);
    if (charged == 0) continue;
    const Told said = told(slot, pid, gpu, charged);
    if (said == Told::kNothing && ended_for_ns < kUntoldNs) return false;
    // Of a pid that lives behind that time it is another process's.
    if (said == Told::kThere && (ended_for_ns < kEndedForgottenNs || process_has_ended(pid)))
      return false;
  }
  return true;
}

}  // namespace

bool process_has_ended(uint32_t own_pid) {
  const auto pid = static_cast<pid_t>(own_pid);
  if (pid <= 0) return true;
  const ErrnoGuard guard;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return errno == ESRCH || (kill(pid, 0) != 0 && errno == ESRCH);
  pollfd end{fd, POLLIN, 0};
  const bool ended = poll(&end, 1, 0) > 0;
  close(fd);
  return ended;
}

bool slot_has_ended(uint32_t slot) {
  const protocol::ClaimsSlot& of = process.claims->slots[slot];
  if (of.pid.load() == 0 || of.end_seen.load() != 0) return true;
  return load_acquire(process.alone) != 0 && load_acquire(process.family_slot) != 0 &&
         family_slot_has_ended(slot);
}

void ended_sweep() {
  if (load_acquire(process.family_slot) == 0) return;
  const SystemGuard guard;
  family_sweep(is_over);
}

bool ended_are_charged(int gpu) {
  if (load_acquire(process.family_slot) == 0) return false;
  const int index = family_gpu_find(process.entry(gpu).gpu);
  return index >= 0 && family_ended_is_charged(static_cast<uint32_t>(index));
}

}  // namespace sluice::interpose
