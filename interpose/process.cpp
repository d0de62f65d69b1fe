// See process.h.
#include "interpose/process.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/account.h"
#include "interpose/gate.h"
#include "interpose/helper.h"
#include "interpose/link.h"
#include "interpose/say.h"
#include "interpose/start.h"

namespace sluice::interpose {

constinit Process process;

namespace {

Lock start_lock;
Mode registered_mode;  // what registration came to; the driver may not be resolved yet
uint32_t fork_handled;

void mode_set(Mode mode) { __atomic_store_n(&process.mode, mode, __ATOMIC_RELEASE); }

void fork_child() {
  mode_set(Mode::kUnknown);
  registered_mode = Mode::kUnknown;
  process.lost_open = 0;
  process.devices_known = 0;
  process.lease = nullptr;
  process.claims = nullptr;
  start_lock.reset_after_fork();
  link_reset_after_fork();
  helper_reset_after_fork();
  threads_reset_after_fork();
  meter_reset_after_fork();
  gate_reset_after_fork();
  account_reset_after_fork();
}

bool pages_are_sane() {
  return process.lease->magic == protocol::kLeasePageMagic &&
         process.lease->version == protocol::kVersion &&
         process.claims->magic == protocol::kClaimsPageMagic && process.lease->gpu_count >= 1 &&
         process.lease->gpu_count <= protocol::kTenantGpusMax;
}

void pages_take(uint32_t slot) {
  link_pages_install();
  process.lease = link_lease();
  process.claims = link_claims();
  process.slot = slot;
  process.gpu_count = pages_are_sane() ? process.lease->gpu_count : 0;
  process.ledger.attach(process.claims, slot);
}

void refusal_say(const char* text) {
  Line line;
  line.text("this process may not use the GPU: ").text(text);
  line.say();
}

void unreachable_say() {
  Line line;
  line.text("no broker answers at ").text(link_path());
  line.text(
      "; the program runs without limits until one does (start sluiced, or unset SLUICE_TENANT)");
  line.say();
}

Mode registration_begin() {
  switch (link_register()) {
    case LinkResult::kNotATenant:
      return Mode::kInert;
    case LinkResult::kRefused:
      refusal_say(link_refusal());
      return Mode::kDenied;
    case LinkResult::kNobody:
      unreachable_say();
      return Mode::kOffline;
    case LinkResult::kRegistered:
      break;
  }
  pages_take(link_slot());
  if (process.gpu_count != 0) return Mode::kActive;
  refusal_say("the broker's pages are not of this version; use the libsluice.so that came with it");
  return Mode::kDenied;
}

}  // namespace

Mode registration_mode() {
  const Mode known = __atomic_load_n(&registered_mode, __ATOMIC_ACQUIRE);
  if (SLUICE_LIKELY(known != Mode::kUnknown)) return known;
  const ErrnoGuard guard;
  const LockScope scope(start_lock);
  if (registered_mode != Mode::kUnknown) return registered_mode;
  threads_prepare();
  const Mode mode = registration_begin();
  if (mode != Mode::kInert && fork_handled == 0) {
    fork_handled = 1;
    pthread_atfork(nullptr, nullptr, fork_child);
  }
  __atomic_store_n(&registered_mode, mode, __ATOMIC_RELEASE);
  return mode;
}

Mode process_start() {
  const ErrnoGuard guard;
  // Without a driver every hook's real function is one that says so; the mode stays open for a
  // driver loaded later.
  if (!resolve_driver()) return Mode::kInert;
  const Mode mode = registration_mode();
  const LockScope scope(start_lock);
  if (process_mode() != Mode::kUnknown) return process_mode();
  mode_set(mode);
  if (mode == Mode::kActive || mode == Mode::kOffline) helper_start(mode == Mode::kActive);
  return mode;
}

void process_init_done() {
  static uint32_t done;
  if (process_mode() < Mode::kOffline || __atomic_exchange_n(&done, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  // Registered after the driver's own handlers and so run before them.
  atexit(helper_stop);
}

void process_adopt_pages(uint32_t slot) {
  accounts_pause();
  pages_take(slot);
  store_release(process.devices_known, 0u);
  if (process.gpu_count != 0) {
    account_restore();
    registered_mode = Mode::kActive;
    mode_set(Mode::kActive);
  }
  accounts_resume();
}

void process_set_lost_open(bool open) { store_release(process.lost_open, open ? 1u : 0u); }

namespace {

bool devices_learn() {
  const DepthScope depth(thread_record());
  int count = 0;
  if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) return false;
  if (count > kDevicesMax) count = kDevicesMax;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    int8_t gpu = -1;
    CUdevice device;
    CUuuid uuid;
    if (driver.cuDeviceGet(&device, ordinal) == CUDA_SUCCESS &&
        driver.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) {
      for (uint32_t i = 0; i < process.gpu_count; ++i) {
        if (memcmp(process.lease->gpus[i].gpu.bytes, &uuid, sizeof uuid) == 0)
          gpu = static_cast<int8_t>(i);
      }
    }
    process.device_gpu[ordinal] = gpu;
  }
  process.device_count = count;
  store_release(process.devices_known, 1u);
  return true;
}

}  // namespace

int device_gpu_learn(int device) {
  if (SLUICE_UNLIKELY(load_acquire(process.devices_known) == 0)) {
    const ErrnoGuard guard;
    if (process_mode() != Mode::kActive || !devices_learn()) return -1;
  }
  return device >= 0 && device < process.device_count ? process.device_gpu[device] : -1;
}

bool thread_context_look(ThreadRecord* thread) {
  const DepthScope depth(thread);
  CUcontext context = nullptr;
  CUdevice device;
  if (driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr ||
      driver.cuCtxGetDevice(&device) != CUDA_SUCCESS || device < 0 || device >= kDevicesMax) {
    return false;
  }
  // Special stream handles mean another stream in another context.
  if (context != thread->context)
    memset(static_cast<void*>(thread->cache), 0, sizeof thread->cache);
  thread->context = context;
  thread->device = device;
  thread->gpu = device_gpu(device);
  thread->context_record = thread->gpu >= 0 ? context_record(context, device) : nullptr;
  // Offline, the GPU of the device is not known yet: ask again next time.
  const bool active = process_mode() == Mode::kActive;
  thread->context_known = active ? 1 : 0;
  const bool plain = active && thread->gpu >= 0 && load_relaxed(strict_fences) == 0;
  thread->raised = static_cast<uint32_t>(thread->gpu) + 1;
  if (thread->recent == nullptr) thread->recent = &thread->cache[0];
  thread->lease = plain ? &process.entry(thread->gpu).lease.raw : nullptr;
  return true;
}

}  // namespace sluice::interpose
