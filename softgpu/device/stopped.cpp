// See stopped.h.
#include "softgpu/device/stopped.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>

#include "softgpu/device/descriptor.h"
#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

/// Naps between two looks at /proc: 100 ms.
constexpr std::uint32_t kNapsPerLook = 20;
/// What waking up does not get out of the lock within so many looks is ended: a second.
constexpr std::uint32_t kLooksMax = 10;

std::uint32_t holder_of(const Segment& segment) {
  return __atomic_load_n(&segment.lock, __ATOMIC_ACQUIRE) & kLifeMask;
}

/// The process of `life` as it calls itself. All zero: it is in no table.
LifeName name_of(const Segment& segment, std::uint32_t life) {
  const LifeName last = segment.holder;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (last.life == life && holder_of(segment) == life) return last;
  const auto* const found = std::find_if(std::begin(segment.clients), std::end(segment.clients),
                                         [life](const Account& a) { return a.life == life; });
  if (found == std::end(segment.clients)) return {};
  return {life, found->pid, found->space, found->start_ticks};
}

bool process_signal(int process, int signal) {
  return syscall(SYS_pidfd_send_signal, process, signal, nullptr, 0) == 0;
}

std::string sentence(int pid, const Segment& segment, const char* what) {
  return "softgpu: process " + std::to_string(pid) +
         ", which is stopped while it has the lock of GPU " + std::to_string(segment.index) + ", " +
         what + "\n";
}

}  // namespace

void HolderWatch::nap(std::uint32_t life) {
  if (life != life_) naps_ = stopped_ = 0;
  life_ = life;
  if (++naps_ % kNapsPerLook == 0) look();
}

void HolderWatch::look() {
  const LifeName name = name_of(segment_, life_);
  const int pid = name.life == 0 ? 0 : process_pid({name.pid, name.space}, name.start_ticks);
  const int process = pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1;
  if (process < 0) return;
  // The pid is that of `life` if it has the right age, and still was the living one's just now.
  const bool right =
      name.start_ticks != 0 && process_start_ticks(pid) == name.start_ticks && !lives_.ended(life_);
  const ProcessStop stop = right ? process_stop(pid) : ProcessStop::kRuns;
  // A stopped process takes no lock: if it has this one now, it was stopped within.
  if (stop == ProcessStop::kRuns || holder_of(segment_) != life_)
    stopped_ = 0;
  else
    act(pid, process, stop == ProcessStop::kTraced);
  close(process);
}

void HolderWatch::act(int pid, int process, bool traced) {
  ++stopped_;
  if (!process_signal(process, 0)) {
    if (stopped_ == kLooksMax)
      line_write(STDERR_FILENO, sentence(pid, segment_, "holds up all others: continue or end it"));
    return;
  }
  if (stopped_ >= kLooksMax) {
    line_write(STDERR_FILENO, sentence(pid, segment_, "does not go on and is ended"));
    process_signal(process, SIGKILL);
    return;
  }
  if (traced) return;  // only its debugger lets it go on
  __atomic_store_n(&segment_.stop_again, life_, __ATOMIC_RELEASE);
  process_signal(process, SIGCONT);
}

void stop_again(Segment& segment, std::uint32_t own) {
  if (__atomic_load_n(&segment.stop_again, __ATOMIC_RELAXED) != own) return;
  if (__atomic_compare_exchange_n(&segment.stop_again, &own, 0U, false, __ATOMIC_ACQ_REL,
                                  __ATOMIC_RELAXED))
    raise(SIGSTOP);
}

}  // namespace softgpu::device
