// The system calls behind types.h.
#include "interpose/types.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sluice::interpose {

uint64_t clock_now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

void sleep_ns(uint64_t ns) {
  timespec t{static_cast<time_t>(ns / 1000000000u), static_cast<long>(ns % 1000000000u)};
  syscall(SYS_nanosleep, &t, nullptr);
}

// Above what programs that count descriptors look at: daemons close 3 to 255, or to 1023.
static constexpr int kDescriptorMin = 1000;
// Room for those that the shim has, and as many of libraries that do the same.
static constexpr int kDescriptorsAtTop = 8;

int descriptor_move_up(int fd, bool inherited) {
  rlimit limit;
  int least = kDescriptorMin;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kDescriptorMin + kDescriptorsAtTop)
    least = static_cast<int>(limit.rlim_cur) - kDescriptorsAtTop;
  const int moved = least > fd ? fcntl(fd, inherited ? F_DUPFD : F_DUPFD_CLOEXEC, least) : -1;
  if (moved >= 0) {
    close(fd);
    return moved;
  }
  if (inherited) fcntl(fd, F_SETFD, 0);
  return fd;
}

void futex_wait(const uint32_t* word, uint32_t expected, uint64_t timeout_ns, bool shared) {
  const timespec t{static_cast<time_t>(timeout_ns / 1000000000u),
                   static_cast<long>(timeout_ns % 1000000000u)};
  syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, expected, &t, nullptr, 0);
}

void futex_wake_all(uint32_t* word, bool shared) {
  syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Lock::acquire_slow() {
  for (int i = 0; i < 64; ++i) {
    if (try_acquire()) return;
    __builtin_ia32_pause();
  }
  const ErrnoGuard guard;
  while (__atomic_exchange_n(&word_, 2, __ATOMIC_ACQUIRE) != 0)
    futex_wait(&word_, 2, 100000000u, false);
}

void BriefLock::acquire_slow() {
  const ErrnoGuard guard;
  for (uint32_t round = 0; __atomic_exchange_n(&word_, 1, __ATOMIC_ACQUIRE) != 0; ++round) {
    for (int i = 0; i < 64 && load_relaxed(word_) != 0; ++i) __builtin_ia32_pause();
    if (round > 4) sched_yield();
    if (round > 64) sleep_ns(50000);  // the holder's thread has a lower priority than ours
  }
}

bool Lock::try_acquire_briefly() {
  for (int i = 0; i < 256; ++i) {
    if (try_acquire()) return true;
    __builtin_ia32_pause();
  }
  return false;
}

bool Lock::acquire_for(uint64_t patience_ns) {
  if (try_acquire_briefly()) return true;
  const ErrnoGuard guard;
  const uint64_t until_ns = clock_now_ns() + patience_ns;
  while (__atomic_exchange_n(&word_, 2, __ATOMIC_ACQUIRE) != 0) {
    const uint64_t now_ns = clock_now_ns();
    if (now_ns >= until_ns) return false;
    futex_wait(&word_, 2, until_ns - now_ns, false);
  }
  return true;
}

void* pages_allocate(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

void pages_free(void* address, size_t bytes) { munmap(address, bytes); }

}  // namespace sluice::interpose
