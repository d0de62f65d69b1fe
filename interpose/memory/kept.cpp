// See kept.h.
#include "interpose/memory/kept.h"

#include <string.h>

#include "interpose/account.h"
#include "interpose/estimate.h"
#include "interpose/residual.h"
#include "interpose/usage.h"

namespace sluice::interpose {
namespace {

// How long a call waits for others that read the device: a reading takes milliseconds at most.
constexpr uint64_t kPatienceNs = 20'000'000;
constexpr uint64_t kLookAgainNs = 200'000;

struct Kept {
  uint64_t bytes;
  // The sum (kept.h) when all of it was surely not back; 0 = never read.
  uint64_t basis;
};
Kept kept[kDevicesMax];
Lock lock;  // of `kept`

// The two figures for a device may differ by what the driver has for itself, so one of them is
// chosen for good.
enum class Source : uint32_t { kUnknown, kLibrary, kDriver };
Source source;

bool is_used(int device) {
  const int gpu = device_gpu(device);
  return gpu >= 0 && process_mode() == Mode::kActive && process.memory_max(gpu) != 0 &&
         !residual_is_measured(gpu);
}

bool sum_read(int device, DeviceSum* out) {
  const int gpu = device_gpu(device);
  uint64_t used = 0;
  if (load_relaxed(source) == Source::kUnknown)
    store_relaxed(source, usage_of_gpu(gpu, &used) ? Source::kLibrary : Source::kDriver);
  if (load_relaxed(source) == Source::kLibrary)
    return device_sum_read(device, gpu, LeftBy::kLibrary, out);
  ThreadRecord* thread = this_thread;
  return thread != nullptr && thread_context(thread) && thread->device == device &&
         device_sum_read(device, gpu, LeftBy::kDriver, out);
}

bool has_slot(uint32_t pid) {
  for (const protocol::ClaimsSlot& slot : process.claims->slots) {
    if (slot.pid.load() == pid) return true;
  }
  return false;
}

// While one process of the tenant reads a device to give something back, no other one does: both
// would give the same bytes back. Nor does a load or an unload of this process: its memory comes
// and goes before its charge.
class Turn {
 public:
  explicit Turn(uint64_t patience_ns) {
    const uint64_t until_ns = clock_now_ns() + patience_ns;
    pid_ = process.claims->slots[process.slot].pid.load();
    for (;;) {
      if (take()) break;
      if (clock_now_ns() >= until_ns) return;
      sleep_ns(kLookAgainNs);
    }
    held_ = estimate_turn_take(patience_ns);
    if (!held_) word().store(0);
  }
  ~Turn() {
    if (!held_) return;
    estimate_turn_give();
    word().store(0);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool held() const { return held_; }

 private:
  static protocol::AtomicU32& word() { return process.claims->kept_look; }
  bool take() const {
    uint32_t before = word().load();
    // Another thread of this process, too, is waited for.
    if (before != 0 && has_slot(before)) return false;
    return __atomic_compare_exchange_n(&word().raw, &before, pid_, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
  }
  uint32_t pid_ = 0;
  bool held_ = false;
};

// Gives back what the sum has grown by since it was `from`.
void give_back(int device, const DeviceSum& now, uint64_t from) {
  if (!now.still || now.least <= from) return;
  uint64_t back = now.least - from;
  {
    const LockScope scope(lock);
    Kept& of = kept[device];
    if (back > of.bytes) back = of.bytes;
    of.bytes -= back;
  }
  if (back != 0) charge_release(device, back);
}

// Reads a device before a call, and what has come back already. 0 = there is no figure.
uint64_t sum_before(int device) {
  DeviceSum now{};
  if (load_relaxed(kept[device].bytes) != 0) kept_look(device, kPatienceNs);
  if (!sum_read(device, &now)) return 0;
  const LockScope scope(lock);
  Kept& of = kept[device];
  if (of.bytes == 0 && now.still) of.basis = now.most;
  return now.most;
}

uint64_t all_before(uint64_t* before) {
  uint64_t devices = 0;
  for (int device = 0; device < process.device_count && device < kDevicesMax; ++device) {
    before[device] = is_used(device) ? sum_before(device) : 0;
    if (before[device] != 0) devices |= uint64_t{1} << device;
  }
  return devices;
}

// Calls from within another hook, and of processes that are not accounted, change nothing.
bool is_programs_own() {
  if (process_mode() != Mode::kActive || load_acquire(process.devices_known) == 0) return false;
  const ThreadRecord* thread = thread_record();
  return thread != nullptr && thread->depth == 0;
}

}  // namespace

bool kept_add(int device, uint64_t bytes) {
  if (!is_used(device)) return false;
  const LockScope scope(lock);
  // Without a basis nothing would notice that it is gone.
  if (kept[device].basis == 0) return false;
  kept[device].bytes += bytes;
  return true;
}

void kept_look(int device, uint64_t patience_ns) {
  if (load_relaxed(kept[device].bytes) == 0) return;
  const ErrnoGuard guard;
  const int gpu = device_gpu(device);
  if (gpu >= 0 && residual_is_measured(gpu)) {
    // The driver's figure has it from now on.
    const LockScope scope(lock);
    residual_take(gpu, kept[device].bytes);
    kept[device].bytes = 0;
    return;
  }
  if (!is_used(device)) return;
  const Turn turn(patience_ns);
  DeviceSum now{};
  if (turn.held() && sum_read(device, &now)) give_back(device, now, kept[device].basis);
}

void kept_sum(uint64_t* bytes_by_device) {
  const LockScope scope(lock);
  for (int device = 0; device < kDevicesMax; ++device)
    bytes_by_device[device] += kept[device].bytes;
}

void kept_reset_after_fork() {
  lock.reset_after_fork();
  memset(kept, 0, sizeof kept);
  source = Source::kUnknown;
}

SharedEnd::SharedEnd(bool wanted) {
  if (!wanted || !is_programs_own()) return;
  const SystemGuard guard;
  const AccountScope account;
  if (account.active()) devices_ = all_before(before_);
}

void SharedEnd::ended() {
  if (devices_ == 0) return;
  const SystemGuard guard;
  const AccountScope account;
  if (!account.active()) return;
  for (int device = 0; device < kDevicesMax; ++device) {
    if ((devices_ >> device & 1) == 0 || load_relaxed(kept[device].bytes) == 0) continue;
    const Turn turn(kPatienceNs);
    DeviceSum now{};
    const uint64_t basis = kept[device].basis;
    if (turn.held() && sum_read(device, &now))
      give_back(device, now, before_[device] < basis ? before_[device] : basis);
  }
}

ImportCharge::ImportCharge() {
  const SystemGuard guard;
  if (!is_programs_own()) return;
  const AccountScope account;
  if (account.active()) devices_ = all_before(before_);
}

bool ImportCharge::charge(int device) {
  DeviceSum now{};
  if (!sum_read(device, &now) || now.most >= before_[device]) return true;
  taken_ = before_[device] - now.most;
  after_ = now.least;
  device_ = device;
  const int gpu = device_gpu(device);
  if (!charge_fits(gpu, taken_)) return false;
  charge_commit(device, taken_);
  const LockScope scope(lock);
  Kept& of = kept[device];
  if (of.bytes == 0) of.basis = now.most + taken_;
  of.bytes += taken_;
  return true;
}

bool ImportCharge::fits() {
  if (devices_ == 0) return true;
  const SystemGuard guard;
  const AccountScope account;
  for (int device = 0; device < kDevicesMax && account.active(); ++device) {
    if ((devices_ >> device & 1) != 0 && !charge(device)) return false;
  }
  return true;
}

bool ImportCharge::was_others() const {
  const SystemGuard guard;
  const AccountScope account;
  DeviceSum now{};
  return account.active() && sum_read(device_, &now) && now.most < after_ + taken_ / 2;
}

void ImportCharge::refuse() const { charge_refused(device_gpu(device_), taken_); }

}  // namespace sluice::interpose
