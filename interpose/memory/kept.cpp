// See kept.h.
#include "interpose/memory/kept.h"

#include <string.h>

#include "interpose/account.h"
#include "interpose/estimate.h"
#include "interpose/memory/ended.h"
#include "interpose/memory/others.h"
#include "interpose/residual.h"
#include "interpose/usage.h"

namespace sluice::interpose {
namespace {

// How long a call waits for others that read the device: a reading takes milliseconds at most.
constexpr uint64_t kPatienceNs = 20'000'000;
constexpr uint64_t kLookAgainNs = 200'000;

constexpr int kReadings = 3;

struct Kept {
  uint64_t bytes;
  // The sum (kept.h) when all of it was surely not back; 0 = never read.
  uint64_t basis;
  bool listed;  // NVML lists this process, and the sum is the one of figures
};
Kept kept[kDevicesMax];
// Of writes to `kept`. Read without it, too, so each member is written whole.
Lock lock;

// More than any device has. Figures are taken off it, and only differences count.
constexpr uint64_t kAll = uint64_t{1} << 60;

// The two figures for a device may differ by what the driver has for itself, so one of them is
// chosen for good.
enum class Source : uint32_t { kUnknown, kLibrary, kDriver };
Source source;

bool is_used(int device) {
  const int gpu = device_gpu(device);
  return gpu >= 0 && process_mode() == Mode::kActive && process.memory_max(gpu) != 0;
}

// With the lock held.
void bytes_set(int device, uint64_t bytes) {
  store_relaxed(kept[device].bytes, bytes);
  process.claims->released_bytes[process.slot][device_gpu(device)].store(bytes);
}

uint64_t kept_by_all(int gpu) {
  const uint32_t used = process.claims->slots_used.load();
  uint64_t sum = 0;
  for (uint32_t i = 0; i < protocol::kTenantProcessesMax && (used == 0 || i < used); ++i)
    sum += process.claims->released_bytes[i][gpu].load();
  return sum;
}

// What of it is kept by processes that have ended. Of these it may be on the device or not, until
// the broker empties their slots.
uint64_t kept_by_ended(int gpu) {
  const uint32_t used = process.claims->slots_used.load();
  uint64_t sum = 0;
  for (uint32_t i = 0; i < protocol::kTenantProcessesMax && (used == 0 || i < used); ++i) {
    const uint64_t bytes = process.claims->released_bytes[i][gpu].load();
    if (bytes != 0 && i != process.slot &&
        (slot_has_ended(i) || process_has_ended(process.claims->slots[i].own_pid.load())))
      sum += bytes;
  }
  return sum;
}

bool left_read(int gpu, LeftBy by, uint64_t* left) {
  uint64_t used = 0;
  size_t free = 0, all = 0;
  if (by == LeftBy::kLibrary) {
    if (!usage_of_gpu(gpu, &used)) return false;
  } else {
    if (driver.cuMemGetInfo_v2(&free, &all) != CUDA_SUCCESS) return false;
    used = all - free;
  }
  *left = kAll - used;
  return true;
}

// Calls of this process that may let go of shared memory. With the lock held.
uint32_t letting_go;

void letting_go_tell() {
  protocol::AtomicU32& word = process.claims->letting_go[process.slot / 32];
  const uint32_t bit = 1u << process.slot % 32;
  if (letting_go != 0) {
    word.set(bit);
  } else {
    word.clear(bit);
  }
}

// A process that has ended lets go of nothing more.
bool tenant_lets_go() {
  for (uint32_t i = 0; i < protocol::kTenantProcessesMax / 32; ++i) {
    for (uint32_t bits = process.claims->letting_go[i].load(); bits != 0; bits &= bits - 1) {
      const uint32_t slot = i * 32 + static_cast<uint32_t>(__builtin_ctz(bits));
      if (!slot_has_ended(slot)) return true;
    }
  }
  return false;
}

struct Bounds {
  uint64_t least = ~uint64_t{0}, most = 0;
  void take(uint64_t bytes) {
    if (bytes < least) least = bytes;
    if (bytes > most) most = bytes;
  }
};

// What the device has left, what NVML's figures of all processes have of it, and what the tenant
// keeps. The sum is less by what is on the device and in neither. These are read one after the
// other, so that what comes and goes meanwhile is in one of them alone: only the bounds of several
// readings are sure.
bool figures_read(int gpu, LeftBy by, DeviceSum* out) {
  Bounds left, figures, is_kept;
  const bool moves = tenant_lets_go();
  uint64_t ended = 0;
  for (int i = 0; i < kReadings; ++i) {
    uint64_t bytes_left = 0, in_figures = 0;
    if (!usage_of_processes(gpu, &in_figures) || !left_read(gpu, by, &bytes_left)) return false;
    left.take(bytes_left);
    figures.take(in_figures);
    is_kept.take(kept_by_all(gpu));
    // Behind the reading: a process that lives now had its memory then.
    const uint64_t of_ended = kept_by_ended(gpu);
    if (of_ended > ended) ended = of_ended;
  }
  *out = {left.least + figures.least + is_kept.least, left.most + figures.most + is_kept.most,
          false};
  out->still = out->least == out->most && !moves && !tenant_lets_go();
  out->least = less(out->least, ended);
  return true;
}

bool sum_read(int device, DeviceSum* out) {
  const int gpu = device_gpu(device);
  uint64_t used = 0;
  if (load_relaxed(source) == Source::kUnknown)
    store_relaxed(source, usage_of_gpu(gpu, &used) ? Source::kLibrary : Source::kDriver);
  const LeftBy by = load_relaxed(source) == Source::kLibrary ? LeftBy::kLibrary : LeftBy::kDriver;
  ThreadRecord* thread = this_thread;
  if (by == LeftBy::kDriver &&
      (thread == nullptr || !thread_context(thread) || thread->device != device))
    return false;
  return residual_is_measured(gpu) ? figures_read(gpu, by, out)
                                   : device_sum_read(device, gpu, by, out);
}

// The basis of a sum that has just been read. Figures may count memory that several processes hold
// more than once, and then the sum is more than there is.
uint64_t basis_of(const DeviceSum& now, bool listed) {
  return listed && now.most > kAll ? kAll : now.most;
}

// From the first figure on another sum counts. All that is kept is taken as not back.
void basis_look(int device) {
  const bool listed = residual_is_measured(device_gpu(device));
  DeviceSum now{};
  if (load_relaxed(kept[device].listed) == listed || !sum_read(device, &now)) return;
  const LockScope scope(lock);
  store_relaxed(kept[device].listed, listed);
  store_relaxed(kept[device].basis, basis_of(now, listed));
}

// While one process of the tenant reads a device to give something back, no other one does: both
// would give the same bytes back. Nor does a load or an unload of this process: its memory comes
// and goes before its charge. The word names the holder by its slot: a pid outlives execve, and
// without a broker processes of several PID namespaces may have the same one.
class Turn {
 public:
  explicit Turn(uint64_t patience_ns) {
    const uint64_t until_ns = clock_now_ns() + patience_ns;
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
  static protocol::AtomicU32& word() { return process.claims->reading_turn; }
  static bool take() {
    uint32_t before = word().load();
    // Another thread of this process, too, is waited for.
    if (before != 0 && before <= protocol::kTenantProcessesMax && !slot_has_ended(before - 1))
      return false;
    return __atomic_compare_exchange_n(&word().raw, &before, process.slot + 1, false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  }
  bool held_ = false;
};

// Takes off what is kept what the sum has grown by since it was `from`, `most` of it at most.
uint64_t take_back(int device, const DeviceSum& now, uint64_t from, uint64_t most) {
  if (now.least <= from) return 0;
  const uint64_t grown = now.least - from;
  const LockScope scope(lock);
  const uint64_t bytes = kept[device].bytes;
  uint64_t back = grown < most ? grown : most;
  if (back > bytes) back = bytes;
  bytes_set(device, bytes - back);
  return back;
}

// Gives back what the sum has grown by since it was `from`. What a process has by its figure and
// is not charged yet may be all of the growth, and stays. True if that is all that keeps some.
bool give_back(int device, const DeviceSum& now, uint64_t from) {
  const int gpu = device_gpu(device);
  if (now.least <= from || !(now.still || residual_is_measured(gpu))) return false;
  const uint64_t unread = residual_is_measured(gpu) ? tenant_unread(gpu) : 0;
  const uint64_t bytes = load_relaxed(kept[device].bytes), grown = now.least - from;
  const uint64_t back = take_back(device, now, from, less(grown, unread));
  if (back != 0) charge_release(device, back);
  return unread != 0 && back < bytes && back < grown;
}

// Reads a device before a call, and what has come back already. 0 = there is no figure.
uint64_t sum_before(int device) {
  DeviceSum now{};
  if (load_relaxed(kept[device].bytes) != 0) (void)kept_look(device, kPatienceNs);
  basis_look(device);
  if (!sum_read(device, &now)) return 0;
  const LockScope scope(lock);
  Kept& of = kept[device];
  if (of.bytes == 0 && now.still) store_relaxed(of.basis, basis_of(now, of.listed));
  return now.still || !of.listed ? now.most : 0;
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
  const bool listed = residual_is_measured(device_gpu(device));
  const LockScope scope(lock);
  Kept& of = kept[device];
  // Where figures tell, all that none of them has may be what is kept.
  if (of.basis == 0 && listed) {
    store_relaxed(of.basis, kAll);
    store_relaxed(of.listed, true);
  }
  // Without a basis nothing would notice that it is gone.
  if (of.basis == 0) return false;
  bytes_set(device, of.bytes + bytes);
  return true;
}

uint64_t kept_bytes(int gpu) { return process.claims->released_bytes[process.slot][gpu].load(); }

uint64_t kept_found(int device, uint64_t bytes) {
  if (load_relaxed(kept[device].bytes) == 0 || !is_used(device) ||
      !load_relaxed(kept[device].listed))
    return 0;
  const Turn turn(kPatienceNs);
  DeviceSum now{};
  if (!turn.held() || !sum_read(device, &now)) return 0;
  return take_back(device, now, load_relaxed(kept[device].basis), bytes);
}

bool kept_look(int device, uint64_t patience_ns) {
  if (!is_used(device)) return false;
  const ErrnoGuard guard;
  DeviceSum now{};
  if (load_relaxed(kept[device].bytes) == 0) {
    // What is kept from here on is seen by what changes from here on.
    if (residual_is_measured(device_gpu(device)) && sum_read(device, &now) && now.still) {
      const LockScope scope(lock);
      if (kept[device].bytes == 0) {
        store_relaxed(kept[device].basis, basis_of(now, true));
        store_relaxed(kept[device].listed, true);
      }
    }
    return false;
  }
  const Turn turn(patience_ns);
  if (!turn.held()) return false;
  basis_look(device);
  return sum_read(device, &now) && give_back(device, now, load_relaxed(kept[device].basis));
}

void kept_slot_taken() {
  uint32_t left = process.slot + 1;
  __atomic_compare_exchange_n(&process.claims->reading_turn.raw, &left, 0u, false, __ATOMIC_ACQ_REL,
                              __ATOMIC_RELAXED);
}

void kept_restore(uint64_t* bytes_by_device) {
  const LockScope scope(lock);
  for (int device = 0; device < kDevicesMax; ++device) {
    bytes_by_device[device] += kept[device].bytes;
    if (device_gpu(device) >= 0) bytes_set(device, kept[device].bytes);
  }
  letting_go_tell();
}

void kept_reset_after_fork() {
  lock.reset_after_fork();
  memset(kept, 0, sizeof kept);
  letting_go = 0;
  source = Source::kUnknown;
}

void LettingGo::begin() {
  const LockScope scope(lock);
  begun_ = true;
  ++letting_go;
  letting_go_tell();
}

LettingGo::~LettingGo() {
  if (!begun_) return;
  const LockScope scope(lock);
  --letting_go;
  letting_go_tell();
}

SharedEnd::SharedEnd(bool wanted) {
  if (!wanted || !is_programs_own()) return;
  const SystemGuard guard;
  const AccountScope account;
  if (!account.active()) return;
  devices_ = all_before(before_);
  letting_go_.begin();
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
    const uint64_t basis = load_relaxed(kept[device].basis);
    if (turn.held() && sum_read(device, &now))
      (void)give_back(device, now, before_[device] < basis ? before_[device] : basis);
  }
}

ImportCharge::ImportCharge() {
  const SystemGuard guard;
  if (!is_programs_own()) return;
  const AccountScope account;
  if (!account.active()) return;
  devices_ = all_before(before_);
  // Behind the sum, as what is given back in between is better seen as taken than the other way.
  for (int device = 0; device < kDevicesMax; ++device)
    if ((devices_ >> device & 1) != 0) kept_before_[device] = kept_by_all(device_gpu(device));
}

// The sum falls by what the import takes and no figure has, and by what others meanwhile find to be
// in a figure already and keep no more.
bool ImportCharge::charge(int device) {
  DeviceSum now{};
  const uint64_t kept_now = kept_by_all(device_gpu(device));
  if (!sum_read(device, &now)) return true;
  const uint64_t kept_less = less(kept_before_[device], kept_now);
  taken_ = less(less(before_[device], now.most), kept_less);
  if (taken_ == 0 || (load_relaxed(kept[device].listed) && !now.still)) return true;
  after_ = now.least;
  device_ = device;
  const int gpu = device_gpu(device);
  if (!charge_fits(gpu, taken_)) return false;
  charge_commit(device, taken_);
  const LockScope scope(lock);
  Kept& of = kept[device];
  if (of.bytes == 0) store_relaxed(of.basis, basis_of({0, now.most + taken_, true}, of.listed));
  bytes_set(device, of.bytes + taken_);
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
