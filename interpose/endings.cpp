// See endings.h.
#include "interpose/endings.h"

#include "interpose/types.h"

namespace sluice::interpose {

namespace {

// More threads that end contexts in one moment are not seen.
constexpr int kPlaces = 32;
constexpr uint64_t kLookNs = 20'000;
constexpr uint64_t kPatienceNs = 2'000'000'000;

CUcontext endings[kPlaces];

bool is_ending(CUcontext context) {
  if (context == nullptr) return false;  // a place that is free
  for (const CUcontext& ending : endings) {
    if (load_acquire(ending) == context) return true;
  }
  return false;
}

}  // namespace

ContextEnding::ContextEnding(CUcontext context) {
  for (int i = 0; i < kPlaces && place_ < 0 && context != nullptr; ++i) {
    CUcontext nobody = nullptr;
    if (__atomic_compare_exchange_n(&endings[i], &nobody, context, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
      place_ = i;
  }
}

ContextEnding::~ContextEnding() {
  if (place_ >= 0) store_release(endings[place_], static_cast<CUcontext>(nullptr));
}

void context_endings_wait(CUcontext context) {
  if (SLUICE_LIKELY(!is_ending(context))) return;
  const ErrnoGuard guard;
  const uint64_t until_ns = clock_now_ns() + kPatienceNs;
  while (is_ending(context) && clock_now_ns() < until_ns) sleep_ns(kLookNs);
}

void context_endings_reset_after_fork() {
  for (CUcontext& ending : endings) ending = nullptr;
}

}  // namespace sluice::interpose
