// See touch.h.
#include "interpose/touch.h"

#include "interpose/account.h"

namespace sluice::interpose {
namespace {

// The calling thread's record when the call is the program's own, under a tenant, on one of its
// GPUs.
ThreadRecord* caller_on_gpu() {
  if (process_enter() != Mode::kActive) return nullptr;
  ThreadRecord* thread = thread_record();
  if (thread == nullptr || thread->depth != 0) return nullptr;
  return thread_context(thread) && thread->gpu >= 0 ? thread : nullptr;
}

}  // namespace

TouchScope::TouchScope() {
  const ThreadRecord* thread = caller_on_gpu();
  if (thread != nullptr) hold_wait(thread->gpu);
}

BlockingScope::BlockingScope() {
  const ThreadRecord* thread = caller_on_gpu();
  if (thread == nullptr) return;
  hold_wait(thread->gpu);
  if (thread->last_stream != nullptr) wait_prepare(nullptr, true);
}

void wait_prepare(CUstream only, bool all) {
  ThreadRecord* thread = caller_on_gpu();
  if (thread == nullptr || thread->context_record == nullptr) return;
  const ErrnoGuard guard;
  const DepthScope depth(thread);
  ContextRecord& context = *thread->context_record;
  const LockScope scope(context.lock);
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (all || s->stream == only) fences_complete(context, s, false);
  }
}

void wait_done() {
  ThreadRecord* thread = caller_on_gpu();
  if (thread == nullptr || thread->context_record == nullptr) return;
  const ErrnoGuard guard;
  const DepthScope depth(thread);
  // A wait is where memory comes back to the device.
  pools_settle(thread->device);
  residual_settle_deferred(thread->device);
  ContextRecord& context = *thread->context_record;
  const LockScope scope(context.lock);
  if (context.streams != nullptr) fences_harvest(context);
}

}  // namespace sluice::interpose
