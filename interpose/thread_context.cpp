// Which context a thread has current, on which GPU, and whether its launches may take the short way
// there (process.h).
#include <string.h>

#include "interpose/gate.h"
#include "interpose/process.h"

namespace sluice::interpose {
namespace {

// With the current context in the record: its GPU, by the pages that are in place.
void thread_gpu_look(ThreadRecord* thread) {
  const CUcontext context = thread->context;
  thread->gpu = device_gpu(thread->device);
  ContextRecord* record = thread->gpu >= 0 ? context_record(context, thread->device) : nullptr;
  store_relaxed(thread->context_record, record);
  // Offline, the GPU of the device is not known yet: ask again next time.
  const bool active = process_mode() == Mode::kActive;
  const bool recorded = record != nullptr;
  thread->raised = static_cast<uint32_t>(thread->gpu) + 1;
  const bool plain = active && recorded && load_relaxed(strict_fences) == 0;
  // Otherwise a launch may name a kernel that something is still to be loaded for.
  const bool short_way = plain && kernels_are_in(record);
  if (plain) thread->exclusive_count = &thread->exclusive_launches[thread->gpu];
  // So it is with a context that there was no memory for; until then nothing of it takes a short
  // way.
  store_release(thread->context_known, active && (recorded || thread->gpu < 0) ? 1u : 0u);
  const uint32_t* asked = nullptr;
  if (short_way) {
    asked =
        process.leases_go_together() ? &process.together : &process.entry(thread->gpu).lease.raw;
  }
  store_release(thread->lease, asked);
  // From now on without short ways: whoever said so meanwhile may have looked before.
  if (SLUICE_UNLIKELY(plain && load_acquire(strict_fences) != 0))
    store_release(thread->lease, static_cast<const uint32_t*>(nullptr));
}

}  // namespace

bool thread_context_look(ThreadRecord* thread) {
  const DepthScope depth(thread);
  CUcontext context = nullptr;
  CUdevice device;
  if (driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr ||
      driver.cuCtxGetDevice(&device) != CUDA_SUCCESS || device < 0 || device >= kDevicesMax) {
    return false;
  }
  // Special stream handles mean another stream in another context.
  if (context != thread->context || thread->recent == nullptr) {
    memset(static_cast<void*>(thread->cache), 0, sizeof thread->cache);
    thread->recent = &stream_cache_none;
  }
  thread->context = context;
  thread->device = device;
  for (;;) {
    const uint32_t numbering = load_acquire(process.numbering);
    // A launch under way is inside by the number that was.
    if (thread->inside == 0) store_release(thread->renumbered, 0u);
    thread_gpu_look(thread);
    fence_raised();
    const ContextRecord* record = thread->context_record;
    const bool ends = record != nullptr && !record->is_usable();
    if (SLUICE_UNLIKELY(!kernels_are_in(record)))
      store_release(thread->lease, static_cast<const uint32_t*>(nullptr));
    if (SLUICE_LIKELY(!ends && load_acquire(process.numbering) == numbering)) return true;
  }
}

void threads_look_again(bool now) {
  if (now) threads_barrier();
  for (int i = 0, n = thread_count(); i < n; ++i) {
    ThreadRecord& thread = *thread_at(i);
    store_relaxed(thread.context_known, 0u);
    if (now) store_release(thread.lease, static_cast<const uint32_t*>(nullptr));
  }
}

}  // namespace sluice::interpose
