// See endings.h.
#include "interpose/endings.h"

#include "interpose/slabs.h"
#include "interpose/types.h"

namespace sluice::interpose {

namespace {

constexpr uint64_t kLookNs = 20'000;
constexpr uint64_t kPatienceNs = 2'000'000'000;

// Not on the threads' stacks, which go with a thread that ends in the driver's call.
struct Ending {
  CUcontext context;  // nullptr = free
};

constinit Slabs<Ending, 32> endings;
Lock lock;  // of who adds one

bool is_ending(CUcontext context) {
  if (context == nullptr) return false;  // a place that is free
  for (uint32_t i = 0; i < endings.count(); ++i) {
    if (load_acquire(endings[i].context) == context) return true;
  }
  return false;
}

int place_take(CUcontext context) {
  const uint32_t count = endings.count();
  for (uint32_t i = 0; i < count; ++i) {
    CUcontext nobody = nullptr;
    if (__atomic_compare_exchange_n(&endings[i].context, &nobody, context, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
      return static_cast<int>(i);
  }
  const LockScope scope(lock);
  Ending* added = endings.next();
  if (added == nullptr) return -1;
  store_release(added->context, context);
  endings.publish();
  return static_cast<int>(endings.count() - 1);
}

}  // namespace

// Without memory for one more, those who have a place are waited for.
ContextEnding::ContextEnding(CUcontext context) {
  if (context == nullptr || (place_ = place_take(context)) >= 0) return;
  const ErrnoGuard guard;
  const uint64_t until_ns = clock_now_ns() + kPatienceNs;
  while ((place_ = place_take(context)) < 0 && clock_now_ns() < until_ns) sleep_ns(kLookNs);
}

ContextEnding::~ContextEnding() {
  if (place_ >= 0)
    store_release(endings[static_cast<uint32_t>(place_)].context, static_cast<CUcontext>(nullptr));
}

void context_endings_wait(CUcontext context) {
  if (SLUICE_LIKELY(!is_ending(context))) return;
  const ErrnoGuard guard;
  const uint64_t until_ns = clock_now_ns() + kPatienceNs;
  while (is_ending(context) && clock_now_ns() < until_ns) sleep_ns(kLookNs);
}

void context_endings_reset_after_fork() {
  lock.reset_after_fork();
  endings.clear();
}

}  // namespace sluice::interpose
