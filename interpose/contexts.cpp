// The records of contexts and streams (meter.h): made on first sight, where they stay; an ended
// one's becomes another's.
#include <string.h>

#include "interpose/activity.h"
#include "interpose/memory/local_memory.h"
#include "interpose/meter.h"
#include "interpose/place.h"
#include "interpose/slabs.h"

namespace sluice::interpose {
namespace {

constinit Slabs<ContextRecord, 8> contexts;
constinit Lock contexts_lock;
uint32_t generations;

// How long the end of a context waits for fences that it has just put.
constexpr int kEndLooks = 50;
constexpr uint64_t kEndLookNs = 2'000;

bool is_per_thread(CUstream stream) { return stream == CU_STREAM_PER_THREAD; }

}  // namespace

uint32_t contexts_beside[kDevicesMax];

void stream_changed(StreamRecord& stream) {
  // Never the same for two records, nor 0: a record may become another stream's.
  uint32_t generation = __atomic_add_fetch(&generations, 1, __ATOMIC_RELAXED);
  if (generation == 0) generation = __atomic_add_fetch(&generations, 1, __ATOMIC_RELAXED);
  store_release(stream.generation, generation);
}

// With contexts_lock held.
static ContextRecord* context_find(CUcontext context) {
  for (uint32_t i = 0; i < contexts.count(); ++i) {
    ContextRecord& record = contexts[i];
    if (load_acquire(record.life) != kContextFree && record.context == context) return &record;
  }
  return nullptr;
}

// With contexts_lock held.
static ContextRecord* context_make(CUcontext context, int device) {
  ContextRecord* made = nullptr;
  for (uint32_t i = 0; i < contexts.count() && made == nullptr; ++i) {
    if (load_acquire(contexts[i].life) == kContextFree) made = &contexts[i];
  }
  const bool fresh = made == nullptr;
  if (fresh) made = contexts.next();
  if (made == nullptr) return nullptr;
  for (uint32_t i = 0; i < contexts.count(); ++i) {
    if (contexts[i].device == device && contexts[i].life != kContextFree)
      store_relaxed(contexts_beside[device], 1u);
  }
  made->context = context;
  made->device = device;
  store_relaxed(made->libraries, 0u);
  store_relaxed(made->stack_bytes, 0u);
  local_context_made();
  store_release(made->frontier_ns, kNoFrontier);
  if (fresh) contexts.publish();
  activity_begin(device);
  store_release(made->life, kContextAlive);
  local_context_made();  // again: a thread that ended the flag meanwhile did not find it
  return made;
}

ContextRecord* context_record(CUcontext context, int device) {
  constexpr uint64_t kLookNs = 50'000;
  for (;;) {
    {
      const LockScope scope(contexts_lock);
      ContextRecord* known = context_find(context);
      if (known == nullptr) return context_make(context, device);
      if (known->is_usable()) return known;
    }
    // It ends, and the handle may be another context's already; or it turns out to go on.
    sleep_ns(kLookNs);
  }
}

ContextRecord* context_at(int index) { return &contexts[static_cast<uint32_t>(index)]; }
int context_count() { return static_cast<int>(contexts.count()); }

uint64_t device_frontier(int device) {
  const uint32_t n = contexts.count();
  if (SLUICE_LIKELY(n == 1)) return load_acquire(contexts[0].frontier_ns);
  uint64_t earliest = kNoFrontier;
  for (uint32_t i = 0; i < n; ++i) {
    const ContextRecord& context = contexts[i];
    if (load_acquire(context.life) == kContextFree || context.device != device) continue;
    const uint64_t one = load_acquire(context.frontier_ns);
    if (one < earliest) earliest = one;
  }
  return earliest;
}

ContextRecord* context_ending(CUcontext context) {
  ContextRecord* record;
  {
    const LockScope scope(contexts_lock);
    record = context_find(context);
  }
  if (record == nullptr) return nullptr;
  const LockScope scope(record->lock);
  if (!record->is_usable()) return nullptr;  // somebody else ends it, too
  const CurrentScope current(context);
  if (current.result() == CUDA_SUCCESS) {
    fences_complete(*record, nullptr, Others::kFence);
    fences_harvest(*record);
    for (int i = 0; i < kEndLooks && launches_in_flight(*record) != 0; ++i) {
      sleep_ns(kEndLookNs);
      fences_harvest(*record);
    }
  }
  store_release(record->life, kContextEnding);
  return record;
}

// Threads that have the record for their current context's: the handle may come to mean another.
// One that has just found it and is not seen here sees that the context ends (thread_context_look).
static void threads_forget(const ContextRecord& record) {
  threads_barrier();
  for (int i = 0, n = thread_count(); i < n; ++i) {
    ThreadRecord& thread = *thread_at(i);
    if (load_relaxed(thread.context_record) != &record) continue;
    store_relaxed(thread.context_known, 0u);
    store_relaxed(thread.lease, static_cast<const uint32_t*>(nullptr));
  }
}

void context_ended(CUcontext context, ContextRecord* record, bool ended) {
  if (ended) captures_forget(context);
  if (record == nullptr) return;
  if (!ended) {
    store_release(record->life, kContextAlive);
    return;
  }
  threads_forget(*record);
  const LockScope scope(contexts_lock);
  const LockScope inner(record->lock);
  streams_changed(*record);
  unfinished_charge(*record);
  while (record->streams != nullptr) {
    StreamRecord* stream = record->streams;
    store_release(record->streams, stream->next);
    stream->next = record->spare;
    record->spare = stream;
  }
  record->base = nullptr;
  record->host_ahead_ns = 0;
  store_release(record->frontier_ns, kNoFrontier);
  record->pool_count = 0;
  record->mean_ns = 0;
  record->overlap = {};
  record->asked = 0;
  record->all_event = nullptr;
  record->tails = Tails::kUnknown;
  record->legacy_used = false;
  record->legacy_waits = false;
  record->intervals.clear();
  store_release(record->life, kContextFree);
}

void questions_forget() {
  for (uint32_t i = 0; i < contexts.count(); ++i) {
    ContextRecord& context = contexts[i];
    const LockScope scope(context.lock);
    context.asked = 0;
  }
}

StreamRecord* stream_record(ContextRecord& context, CUstream stream, ThreadRecord* thread) {
  const bool per_thread = is_per_thread(stream);
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->stream != stream || s->destroyed) continue;
    if (!per_thread || (s->owner == thread && s->owner_number == thread->number)) return s;
  }
  StreamRecord* made = context.spare;
  if (made != nullptr) {
    context.spare = made->next;
  } else {
    constexpr size_t kBatch = 8;
    auto* batch = static_cast<StreamRecord*>(pages_allocate(kBatch * sizeof(StreamRecord)));
    if (batch == nullptr) return nullptr;
    for (size_t i = 1; i < kBatch; ++i) {
      batch[i].next = context.spare;
      context.spare = &batch[i];
    }
    made = batch;
  }
  memset(static_cast<void*>(made), 0, sizeof *made);
  stream_changed(*made);
  made->stream = stream;
  made->context = &context;
  made->owner = thread;
  made->owner_number = thread->number;
  made->per_thread = per_thread;
  if (made->is_legacy()) context.legacy_used = true;
  made->next = context.streams;
  store_release(context.streams, made);
  return made;
}

void streams_changed(ContextRecord& context) {
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) stream_changed(*s);
}

void launches_look() {
  for (uint32_t i = 0; i < contexts.count(); ++i) {
    ContextRecord& context = contexts[i];
    if (!context.is_usable()) continue;
    const LockScope scope(context.lock);
    streams_changed(context);
  }
}

void meter_reset_after_fork() {
  contexts_lock.reset_after_fork();
  contexts.clear();
  memset(device_totals, 0, sizeof device_totals);
  activity_reset_after_fork();
  captures_reset_after_fork();
  graphs_reset_after_fork();
}

}  // namespace sluice::interpose
