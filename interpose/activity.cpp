// See activity.h.
#include "interpose/activity.h"

#include <string.h>

#include "interpose/meter.h"
#include "interpose/process.h"

namespace sluice::interpose {
namespace {

using protocol::ActivityGpu;
using protocol::ActivitySlot;

struct DeviceActivity {
  BriefLock lock;
  Stretches stretches;
  uint32_t pending;  // stretches that are not settled
  uint32_t idle;     // as last told
};
constinit DeviceActivity activities[kDevicesMax];

ActivitySlot* slot_page() {
  if (process_mode() != Mode::kActive || load_acquire(process.alone) != 0) return nullptr;
  return &process.claims->activity[process.slot];
}

ActivityGpu* gpu_page(int device) {
  ActivitySlot* slot = slot_page();
  const int gpu = slot != nullptr ? device_gpu(device) : -1;
  return gpu >= 0 ? &slot->gpus[gpu] : nullptr;
}

void gap_tell(ActivityGpu& page, const Stretches::Stretch& gap) {
  const uint64_t length_ns = gap.end_ns - gap.begin_ns;
  if (length_ns < kGapMinNs) {
    store_relaxed(page.short_ns.raw, load_relaxed(page.short_ns.raw) + length_ns);
    return;
  }
  const uint64_t number = load_relaxed(page.gaps.raw);
  protocol::Gap& entry = page.ring[number % protocol::kGapsMax];
  store_relaxed(entry.serial.raw, uint64_t{0});
  __atomic_thread_fence(__ATOMIC_RELEASE);
  store_relaxed(entry.begin_ns.raw, gap.begin_ns);
  store_relaxed(entry.end_ns.raw, gap.end_ns);
  store_relaxed(entry.thread.raw, gap.thread);
  store_release(entry.serial.raw, number + 1);
  store_release(page.gaps.raw, number + 1);
  if (gap.thread != 0) store_relaxed(page.thread.raw, gap.thread);
}

}  // namespace

void Stretches::add(const Stretch& stretch) {
  if (stretch.end_ns <= settled_ns_ || stretch.end_ns <= stretch.begin_ns) return;
  if (count_ == kStretchesMax) {
    // So many at once: what lies between the first two counts as busy.
    if (kept_[1].end_ns > kept_[0].end_ns) kept_[0].end_ns = kept_[1].end_ns;
    --count_;
    memmove(kept_ + 1, kept_ + 2, (count_ - 1) * sizeof(Stretch));
  }
  unsigned at = count_++;
  for (; at > 0 && kept_[at - 1].begin_ns > stretch.begin_ns; --at) kept_[at] = kept_[at - 1];
  kept_[at] = stretch;
}

bool Stretches::gap_take(uint64_t frontier_ns, Stretch* gap) {
  while (count_ > 0 && kept_[0].begin_ns <= frontier_ns) {
    const Stretch first = kept_[0];
    if (--count_ != 0) memmove(kept_, kept_ + 1, count_ * sizeof(Stretch));
    const uint64_t before_ns = settled_ns_;
    if (first.end_ns > settled_ns_) settled_ns_ = first.end_ns;
    if (before_ns == 0 || first.begin_ns <= before_ns) continue;
    *gap = Stretch{before_ns, first.begin_ns, first.thread};
    return true;
  }
  return false;
}

void activity_begin(int device) {
  const ErrnoGuard guard;
  DeviceActivity& activity = activities[device];
  const LockScope scope(activity.lock);
  activity.stretches.begin(clock_now_ns());
}

void activity_busy(int device, uint64_t begin_ns, uint64_t end_ns, uint32_t thread) {
  DeviceActivity& activity = activities[device];
  const LockScope scope(activity.lock);
  activity.stretches.add({begin_ns, end_ns, thread});
  store_relaxed(activity.pending, activity.stretches.pending());
}

void activity_wakes(int device) {
  store_relaxed(activities[device].idle, 0u);
  if (ActivityGpu* page = gpu_page(device); page != nullptr) store_release(page->idle.raw, 0u);
}

void activity_settle(int device) {
  DeviceActivity& activity = activities[device];
  const uint64_t frontier_ns = device_frontier(device);
  const bool idle = frontier_ns == kNoFrontier;
  // Mostly there is nothing new.
  if (load_relaxed(activity.pending) == 0 && idle == (load_relaxed(activity.idle) != 0)) return;
  ActivityGpu* page = gpu_page(device);
  if (page == nullptr) return;
  const LockScope scope(activity.lock);
  Stretches::Stretch gap;
  while (activity.stretches.gap_take(frontier_ns, &gap)) gap_tell(*page, gap);
  store_relaxed(activity.pending, activity.stretches.pending());
  store_relaxed(activity.idle, idle ? 1u : 0u);
  // Not idle comes before what it stands for changes, idle after it.
  if (!idle) store_release(page->idle.raw, 0u);
  store_release(page->settled_ns.raw, activity.stretches.settled_ns());
  if (idle) store_release(page->idle.raw, 1u);
}

void activity_reset_after_fork() {
  for (DeviceActivity& activity : activities) {
    activity.lock.reset_after_fork();
    activity.stretches = Stretches();
    activity.pending = activity.idle = 0;
  }
}

WaitScope::WaitScope(protocol::WaitReason reason) : reason_(reason) {
  ThreadRecord* thread = this_thread;
  ActivitySlot* page = slot_page();
  if (thread == nullptr || page == nullptr || thread->waiting != 0) return;
  // The shim's own calls of the driver are part of whatever the program waits for.
  if (reason == protocol::WaitReason::kSync && thread->depth != 0) return;
  const ErrnoGuard guard;
  thread->waiting = 1;
  since_ns_ = clock_now_ns();
  if (thread->index >= protocol::kOpenWaitsMax) return;
  protocol::OpenWait& open = page->open[thread->index];
  store_relaxed(open.thread.raw, thread->number);
  store_relaxed(open.reason.raw, static_cast<uint32_t>(reason));
  store_release(open.since_ns.raw, since_ns_);
}

WaitScope::~WaitScope() {
  if (since_ns_ == 0) return;
  const ErrnoGuard guard;
  ThreadRecord* thread = this_thread;
  thread->waiting = 0;
  ActivitySlot* page = slot_page();
  if (page == nullptr) return;
  if (thread->index < protocol::kOpenWaitsMax)
    store_release(page->open[thread->index].since_ns.raw, uint64_t{0});
  const uint64_t now_ns = clock_now_ns();
  if (now_ns - since_ns_ < kWaitMinNs) return;
  const uint64_t number = __atomic_fetch_add(&page->waits.raw, 1, __ATOMIC_RELAXED);
  protocol::ThreadWait& entry = page->ring[number % protocol::kWaitsMax];
  store_relaxed(entry.serial.raw, uint64_t{0});
  __atomic_thread_fence(__ATOMIC_RELEASE);
  store_relaxed(entry.begin_ns.raw, since_ns_);
  store_relaxed(entry.end_ns.raw, now_ns);
  store_relaxed(entry.thread.raw, thread->number);
  store_relaxed(entry.reason.raw, static_cast<uint32_t>(reason_));
  store_release(entry.serial.raw, number + 1);
}

}  // namespace sluice::interpose
