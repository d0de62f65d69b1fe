// The shim's small change: a lock, an errno guard, clocks, and the words used throughout. libc
// only, no allocation, no knowledge of CUDA or of the broker.
//
//   device  a CUdevice ordinal of this process (0 .. kDevicesMax-1)
//   gpu     an index into LeasePage::gpus, -1 where a device is not one of the tenant's
//   hook    a function of ours under a driver name; "the real one" is the driver's
#pragma once

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

namespace sluice::interpose {

/// Returns a - b, or 0 where b is the larger one.
constexpr uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/// CUDA devices one process can see; more than any machine sold has.
inline constexpr int kDevicesMax = 64;

#define SLUICE_LIKELY(x) __builtin_expect(!!(x), 1)
#define SLUICE_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SLUICE_ALWAYS_INLINE inline __attribute__((always_inline))
#define SLUICE_NOINLINE __attribute__((noinline, cold))

/// A hook may change errno only if the real function did.
class ErrnoGuard {
 public:
  ErrnoGuard() : saved_(errno) {}
  ~ErrnoGuard() { errno = saved_; }
  ErrnoGuard(const ErrnoGuard&) = delete;
  ErrnoGuard& operator=(const ErrnoGuard&) = delete;

 private:
  int saved_;
};

/// The same around what is a cancellation point: reading, writing, sending, waiting for a
/// descriptor; and other libraries' work done for the shim. A thread that is cancelled meanwhile
/// goes on until it is back in the program: nothing here is unwound, so what it holds it would hold
/// for ever. Waits by futex and sleep_ns are none anyway, so a gate is as little a cancellation
/// point as a call of the driver.
class SystemGuard {
 public:
  SystemGuard() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~SystemGuard() { pthread_setcancelstate(before_, nullptr); }
  SystemGuard(const SystemGuard&) = delete;
  SystemGuard& operator=(const SystemGuard&) = delete;

 private:
  const ErrnoGuard errno_;
  int before_;
};

uint64_t clock_now_ns();     // CLOCK_MONOTONIC
void sleep_ns(uint64_t ns);  // no cancellation point

/// Moves a descriptor of the shim out of the numbers that are the program's: shells, daemons and
/// launchers name, reuse and close low ones. Returns its number from then on: at least 1000, or one
/// of the last eight that the limit on descriptors leaves, or `fd`. `inherited`: it stays open
/// across exec.
[[nodiscard]] int descriptor_move_up(int fd, bool inherited);

/// Waits while *word == expected; shared = the word lives in a page mapped by other processes too.
void futex_wait(const uint32_t* word, uint32_t expected, uint64_t timeout_ns, bool shared);
void futex_wake_all(uint32_t* word, bool shared);

/// A word-sized mutex. Needs no construction and no destruction, and a fork child may simply store
/// 0 into it.
class Lock {
 public:
  void acquire() {
    uint32_t expected = 0;
    if (!__atomic_compare_exchange_n(&word_, &expected, 1, false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
      acquire_slow();
  }
  bool try_acquire() {
    uint32_t expected = 0;
    return __atomic_compare_exchange_n(&word_, &expected, 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
  }
  /// Tries for about as long as a neighbour's fence takes to record, then gives up.
  bool try_acquire_briefly();
  /// Waits so long at most.
  bool acquire_for(uint64_t patience_ns);
  void release() {
    if (__atomic_exchange_n(&word_, 0, __ATOMIC_RELEASE) == 2) futex_wake_all(&word_, false);
  }
  void reset_after_fork() { __atomic_store_n(&word_, 0, __ATOMIC_RELAXED); }

 private:
  void acquire_slow();
  uint32_t word_ = 0;  // 0 free, 1 held, 2 held and somebody sleeps
};

/// A mutex for a few instructions that call nothing and wait for nothing. Giving it back is a plain
/// store: nobody sleeps on it, who finds it held spins and then lets others run.
class BriefLock {
 public:
  void acquire() {
    if (SLUICE_UNLIKELY(__atomic_exchange_n(&word_, 1, __ATOMIC_ACQUIRE) != 0)) acquire_slow();
  }
  void release() { __atomic_store_n(&word_, 0, __ATOMIC_RELEASE); }
  void reset_after_fork() { __atomic_store_n(&word_, 0, __ATOMIC_RELAXED); }

 private:
  void acquire_slow();
  uint32_t word_ = 0;
};

template <class L>
class LockScope {
 public:
  explicit LockScope(L& lock) : lock_(lock) { lock_.acquire(); }
  ~LockScope() { lock_.release(); }
  LockScope(const LockScope&) = delete;
  LockScope& operator=(const LockScope&) = delete;

 private:
  L& lock_;
};

/// Zeroed pages straight from the kernel (the program's malloc may be anybody's). nullptr when
/// there are none.
void* pages_allocate(size_t bytes);
void pages_free(void* address, size_t bytes);

template <class T>
T load_relaxed(const T& value) {
  return __atomic_load_n(&value, __ATOMIC_RELAXED);
}
template <class T>
T load_acquire(const T& value) {
  return __atomic_load_n(&value, __ATOMIC_ACQUIRE);
}
template <class T>
void store_relaxed(T& target, T value) {
  __atomic_store_n(&target, value, __ATOMIC_RELAXED);
}
template <class T>
void store_release(T& target, T value) {
  __atomic_store_n(&target, value, __ATOMIC_RELEASE);
}

/// Adds one to what only the caller writes: one instruction, whole for whoever reads it.
SLUICE_ALWAYS_INLINE void count_up(uint64_t& count) {
#if defined(__SANITIZE_THREAD__)
  store_relaxed(count, count + 1);
#else
  ++count;
#endif
}

/// A word that others read while it is written: each access is whole, and who reads it sees what
/// was written before it. On x86-64 it costs what a plain word does.
template <class T>
class Shared {
 public:
  constexpr Shared() = default;
  constexpr Shared(T value) : value_(value) {}
  Shared& operator=(T value) {
    store_release(value_, value);
    return *this;
  }
  operator T() const { return load_acquire(value_); }
  T operator->() const { return load_acquire(value_); }

 private:
  T value_{};
};

}  // namespace sluice::interpose
