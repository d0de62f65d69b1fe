// The lock of a segment: a futex that names the process that holds it by its life (life.h). A
// robust mutex would name a thread by the number that its own pid namespace gives it, and the
// kernel takes the lock away from a living thread when one with an equal number dies waiting.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "softgpu/device/device.h"
#include "softgpu/device/stopped.h"

namespace softgpu::device {
namespace {

/// How long a waiter sleeps before it looks whether the holder has died, or has taken a wake-up
/// along that was meant for others. A look costs a system call.
constexpr timespec kNap{0, 5'000'000};

/// The word becomes `to` if it is `seen`; otherwise `seen` becomes the word.
bool change(std::uint32_t* word, std::uint32_t& seen, std::uint32_t to) {
  return __atomic_compare_exchange_n(word, &seen, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/// False: the lock's holder had died.
bool lock_take(Segment& segment, Lives& lives) {
  std::uint32_t* const word = &segment.lock;
  std::uint32_t own = lives.own();
  HolderWatch holder(segment, lives);
  for (;;) {
    std::uint32_t seen = 0;
    if (change(word, seen, own)) return true;
    own |= kLockWaiters;  // others may sleep by the time that this thread wakes up
    if ((seen & kLockWaiters) == 0) {
      if (!change(word, seen, seen | kLockWaiters)) continue;
      seen |= kLockWaiters;
    }
    if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &kNap, nullptr, 0) == 0) continue;
    if (errno != ETIMEDOUT) continue;
    if (!lives.ended(seen & kLifeMask))
      holder.nap(seen & kLifeMask);
    else if (change(word, seen, own))
      return false;
  }
}

/// For waiters that find this process stopped within the lock.
void holder_tell(Segment& segment, const LifeName& own) {
  if (segment.holder.life == own.life) return;
  segment.holder = {0, own.pid, own.space, own.start_ticks};
  __atomic_store_n(&segment.holder.life, own.life, __ATOMIC_RELEASE);
}

void lock_give(Segment& segment, std::uint32_t own) {
  if ((__atomic_exchange_n(&segment.lock, 0U, __ATOMIC_RELEASE) & kLockWaiters) != 0)
    syscall(SYS_futex, &segment.lock, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  stop_again(segment, own);
}

}  // namespace

Lock::Lock(Device& device) : device_(device) {
  const bool taken = lock_take(*device_.segment_, *device_.lives_);
  holder_tell(*device_.segment_, device_.lives_->name());
  if (!taken) device_.repair_locked();
  model_advance(*device_.segment_, clock_ns());
}

Lock::~Lock() { lock_give(*device_.segment_, device_.lives_->own()); }

/// After a death in the middle of a change: the bits of a queue may not match the queue, and idle
/// time may have been counted twice.
void Device::repair_locked() {
  reap_locked();
  for (Idle& idle : segment_->idle) idle_forget(idle, segment_->now_ns);
  std::fill(std::begin(segment_->active), std::end(segment_->active), 0);
  std::fill(std::begin(segment_->active_clients), std::end(segment_->active_clients), 0);
  bits_each(segment_->taken, kQueuesMax / 64, [&](std::uint32_t queue) {
    const Queue& q = segment_->queues[queue];
    if (q.head != q.tail) queue_active(*segment_, queue, true);
  });
}

}  // namespace softgpu::device
