// See threads.h.
#include "interpose/threads.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/slabs.h"

// A handle that no driver gives: our own object's address, known without a constructor.
struct CUstream_st {
  char unused;
};
static CUstream_st no_stream;

namespace sluice::interpose {

__thread ThreadRecord* this_thread __attribute__((tls_model("initial-exec")));
uint32_t strict_fences;
constinit StreamCache stream_cache_none = {&no_stream, nullptr, 0, 0, 0, 0, 0, nullptr};

namespace {

constinit Slabs<ThreadRecord, 64> threads;
uint32_t ended_count;  // records whose thread has ended, for others; not before `taken` says so
Lock list_lock;
pthread_key_t exit_key;
constexpr uint64_t kStoresNs = 1'000'000;
uint32_t exit_key_made;

void thread_end(void* record) {
  auto* thread = static_cast<ThreadRecord*>(record);
  this_thread = nullptr;
  store_release(thread->inside, 0u);
  store_release(thread->touching, 0u);
  store_release(thread->accounting, 0u);
  store_release(thread->taken, 0u);
  __atomic_add_fetch(&ended_count, 1, __ATOMIC_RELEASE);
}

ThreadRecord* record_take() {
  const LockScope scope(list_lock);
  if (exit_key_made == 0) {
    if (pthread_key_create(&exit_key, thread_end) != 0) return nullptr;
    exit_key_made = 1;
  }
  const uint32_t count = load_acquire(ended_count) == 0 ? 0 : threads.count();
  for (uint32_t i = 0; i < count; ++i) {
    ThreadRecord* record = &threads[i];
    if (load_acquire(record->taken) != 0) continue;
    __atomic_sub_fetch(&ended_count, 1, __ATOMIC_RELAXED);
    uint64_t launches[8], works[8];  // counted ones stay counted
    memcpy(launches, record->exclusive_launches, sizeof launches);
    memcpy(works, record->exclusive_works, sizeof works);
    memset(record, 0, sizeof *record);
    memcpy(record->exclusive_launches, launches, sizeof launches);
    memcpy(record->exclusive_works, works, sizeof works);
    store_relaxed(record->taken, 1u);
    record->index = i;
    return record;
  }
  ThreadRecord* record = threads.next();
  if (record == nullptr) return nullptr;
  store_relaxed(record->taken, 1u);
  record->index = threads.count();
  threads.publish();
  return record;
}

}  // namespace

ThreadRecord* thread_record_make() {
  const ErrnoGuard guard;
  ThreadRecord* record = record_take();
  if (record == nullptr) return nullptr;
  record->device = record->gpu = -1;
  store_relaxed(record->number, static_cast<uint32_t>(syscall(SYS_gettid)));
  if (pthread_setspecific(exit_key, record) != 0) {
    store_release(record->taken, 0u);
    __atomic_add_fetch(&ended_count, 1, __ATOMIC_RELEASE);
    return nullptr;
  }
  this_thread = record;
  return record;
}

ThreadRecord* thread_at(int index) { return &threads[static_cast<uint32_t>(index)]; }
int thread_count() { return static_cast<int>(threads.count()); }

void threads_prepare() {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0) {
    store_release(strict_fences, 1u);
  }
}

// membarrier worked and does not any more: the program has set up a filter for its system calls.
// From now on every raise of a word is followed by a fence; what a processor still holds back of
// those before, it does for far less than this.
SLUICE_NOINLINE static void strict_begin() {
  store_release(strict_fences, 1u);
  sleep_ns(kStoresNs);
  for (int i = 0, n = thread_count(); i < n; ++i)
    store_release(thread_at(i)->lease, static_cast<const uint32_t*>(nullptr));
}

void threads_barrier() {
  if (load_relaxed(strict_fences) == 0) {
    const ErrnoGuard guard;
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return;
    strict_begin();
  }
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void threads_reset_after_fork() {
  list_lock.reset_after_fork();
  store_relaxed(ended_count, threads.count() - (this_thread != nullptr ? 1u : 0u));
  for (int i = 0; i < thread_count(); ++i) {
    ThreadRecord* record = thread_at(i);
    const ThreadRecord before = *record;
    memset(record, 0, sizeof *record);
    if (record == this_thread) {
      record->taken = 1;
      // A signal handler may have forked in the middle of a call, which returns in both.
      record->depth = before.depth;
      record->touching = before.touching;
      record->caller = before.caller;
      record->caller_rbx = before.caller_rbx;
      record->exclusive_count = before.exclusive_count;
      record->recent = before.recent;
      memcpy(record->cache, before.cache, sizeof record->cache);
    }
    record->device = record->gpu = -1;
    record->index = static_cast<uint32_t>(i);
    store_relaxed(record->number, static_cast<uint32_t>(syscall(SYS_gettid)));
  }
}

}  // namespace sluice::interpose
