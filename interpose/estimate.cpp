// See estimate.h.
#include "interpose/estimate.h"

#include "interpose/account.h"
#include "interpose/memory/context_limits.h"
#include "interpose/meter.h"
#include "interpose/residual.h"

namespace sluice::interpose {
namespace {

// How long threads in the middle of an allocation are waited for; what one has reserved is not
// counted then.
constexpr uint64_t kPauseNs = 2'000'000;
constexpr int kReadings = 10;
constexpr uint64_t kBetweenReadingsNs = 100'000;
// A load that waits for work of the GPU may hold another one up so long; that one is not estimated.
constexpr uint64_t kTurnNs = 2'000'000'000;
constexpr uint64_t kTurnLookNs = 200'000;

Lock turn;

bool turn_take() {
  const uint64_t until_ns = clock_now_ns() + kTurnNs;
  while (!turn.try_acquire()) {
    if (clock_now_ns() >= until_ns) return false;
    sleep_ns(kTurnLookNs);
  }
  return true;
}

// What all processes of the tenant are in the middle of taking.
uint64_t reserved_by_all(int gpu) {
  uint64_t sum = 0;
  for (const protocol::ClaimsSlot& slot : process.claims->slots)
    sum += slot.gpus[gpu].reserved_bytes.load();
  return sum;
}

// While the account of this process stands still, as far as others let it.
class Pause {
 public:
  Pause() { (void)accounts_pause_for(kPauseNs); }
  ~Pause() { accounts_resume(); }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
};

// The GPU of the thread's context, if it is to be estimated there; -1 otherwise.
int gpu_to_estimate(ThreadRecord** out) {
  if (process_mode() != Mode::kActive || load_acquire(process.devices_known) == 0) return -1;
  ThreadRecord* thread = thread_record();
  if (thread == nullptr || thread->depth != 0 || !thread_context(thread)) return -1;
  const int gpu = device_gpu(thread->device);
  if (gpu < 0 || process.memory_max(gpu) == 0 || residual_is_measured(gpu)) return -1;
  *out = thread;
  return gpu;
}

}  // namespace

bool estimate_is_used() {
  ThreadRecord* thread = nullptr;
  return gpu_to_estimate(&thread) >= 0;
}

bool Estimate::read(int device, int gpu, Basis* out) {
  const Pause pause;
  (void)pools_settle(device);
  graph_memory_settle(device);
  for (int i = 0;; ++i) {
    const uint64_t total = process.ledger.total(static_cast<uint32_t>(gpu));
    size_t left = 0, all = 0;
    if (driver.cuMemGetInfo_v2(&left, &all) != CUDA_SUCCESS) return false;
    const uint64_t reserved = reserved_by_all(gpu);
    const bool still = process.ledger.total(static_cast<uint32_t>(gpu)) == total;
    if ((!still || reserved != 0) && i + 1 < kReadings) {
      sleep_ns(kBetweenReadingsNs);
      continue;
    }
    *out = {left + total - (reserved < total ? reserved : total), left + total};
    return true;
  }
}

Estimate::Estimate(bool wanted) {
  ThreadRecord* thread = nullptr;
  const int gpu = wanted ? gpu_to_estimate(&thread) : -1;
  if (gpu < 0) return;
  const SystemGuard guard;
  locked_ = turn_take();
  const DepthScope depth(thread);
  Basis now{};
  if (!locked_ || !read(thread->device, gpu, &now)) {
    close();
    return;
  }
  before_ = now.least;
  gpu_ = gpu;
  device_ = thread->device;
  context_ = thread->context;
}

void Estimate::close() {
  if (locked_) turn.release();
  locked_ = false;
}

void Estimate::taken_read() {
  taken_ = read(device_, gpu_, &after_) && after_.most < before_ ? before_ - after_.most : 0;
  if (taken_ != 0) taken_ -= limits_estimated(context_, taken_);
}

bool Estimate::record(const void* owner, uint64_t bytes) {
  Record known{key_in_context(owner, context_), 0, context_, RecordKind::kLoaded, device_};
  (void)process.records.find(RecordKind::kLoaded, known.key, &known);
  known.bytes += bytes;
  return process.records.insert(known);
}

// What came back since the beginning, as far as `owner` has it.
bool Estimate::give_back(const void* owner) {
  const AccountScope account;
  Record known;
  if (after_.least <= before_ ||
      !process.records.remove(RecordKind::kLoaded, key_in_context(owner, context_), &known))
    return true;
  const uint64_t back = after_.least - before_;
  const uint64_t given = back < known.bytes ? back : known.bytes;
  charge_release(device_, given);
  known.bytes -= given;
  return known.bytes == 0 || process.records.insert(known);
}

bool Estimate::charge(const void* owner) {
  if (gpu_ < 0) return true;
  const SystemGuard guard;
  taken_read();
  if (taken_ == 0) return give_back(owner);
  const AccountScope account;
  if (!charge_fits(gpu_, taken_)) return false;
  if (record(owner, taken_)) {
    charge_commit(device_, taken_);
    return true;
  }
  charge_abort(device_, taken_);
  return false;
}

bool Estimate::charge_late(const void* owner) {
  if (gpu_ < 0) return true;
  const SystemGuard guard;
  taken_read();
  if (taken_ == 0) return true;
  const AccountScope account;
  const bool fits = charge_fits(gpu_, taken_);
  if (fits) {
    charge_commit(device_, taken_);
  } else {
    process.ledger.hold_unasked(static_cast<uint32_t>(gpu_), taken_);
    residual_late_above(gpu_);
    refuse();
  }
  // Without a record it stays charged until the process ends.
  (void)record(owner, taken_);
  return fits;
}

bool Estimate::was_others() const {
  const SystemGuard guard;
  Basis now{};
  return read(device_, gpu_, &now) && now.most < after_.least + taken_ / 2;
}

void Estimate::refuse() const { charge_refused(gpu_, taken_); }

namespace {

// What stays charged of exported memory, on each device: its address, with the device for a
// context, is its owner.
const char shared_kept = 0;
const ThreadRecord* shared_ending;  // whose SharedEnd has the turn
int shared_ending_device;
// What the device had left, and the tenant has, together, when the rest of it was surely not back;
// 0 = never.
uint64_t shared_basis[kDevicesMax];

uint64_t shared_key(int device) {
  return key_in_context(&shared_kept,
                        reinterpret_cast<const void*>(static_cast<uintptr_t>(device) + 1));
}

// Gives back at most `bytes` of it, of a device for which `basis` was read before. What is given
// back has come to the device and gone from the tenant: the basis of the rest stays.
void shared_give(int device, uint64_t bytes, uint64_t basis) {
  Record known;
  if (!process.records.remove(RecordKind::kLoaded, shared_key(device), &known)) return;
  const uint64_t given = bytes < known.bytes ? bytes : known.bytes;
  if (given != 0) charge_release(device, given);
  known.bytes -= given;
  if (known.bytes == 0) {
    shared_basis[device] = 0;
    return;
  }
  (void)process.records.insert(known);
  if (shared_basis[device] == 0) shared_basis[device] = basis - given;
}

}  // namespace

void Estimate::shared_give_back() {
  if (gpu_ < 0) return;
  const SystemGuard guard;
  taken_read();
  const AccountScope account;
  shared_give(device_, after_.least > before_ ? after_.least - before_ : 0, after_.most);
}

SharedEnd::SharedEnd(bool wanted) : estimate_(wanted) {
  if (!estimate_.active()) return;
  shared_ending_device = this_thread->device;
  store_release(shared_ending, static_cast<const ThreadRecord*>(this_thread));
}

SharedEnd::~SharedEnd() {
  if (estimate_.active()) store_release(shared_ending, static_cast<const ThreadRecord*>(nullptr));
}

bool shared_keep(int device, uint64_t bytes) {
  if (this_thread == nullptr || load_acquire(shared_ending) != this_thread ||
      shared_ending_device != device)
    return false;
  Record known{shared_key(device), 0, nullptr, RecordKind::kLoaded, device};
  (void)process.records.find(RecordKind::kLoaded, known.key, &known);
  known.bytes += bytes;
  return process.records.insert(known);
}

void shared_kept_look(int device) {
  Record known;
  Estimate::Basis now{};
  const uint64_t basis = shared_basis[device];
  if (basis == 0 || !process.records.find(RecordKind::kLoaded, shared_key(device), &known) ||
      this_thread->device != device || !Estimate::read(device, device_gpu(device), &now) ||
      now.least <= basis)
    return;
  shared_give(device, now.least - basis, basis);
}

EstimateEnd::EstimateEnd(const void* owner) : owner_(owner) {
  if (!estimate_is_used()) return;
  const ErrnoGuard guard;
  locked_ = turn_take();
}

EstimateEnd::~EstimateEnd() {
  if (ended_ && process_mode() == Mode::kActive) {
    const ErrnoGuard guard;
    const AccountScope account;
    for (int i = 0, n = context_count(); i < n; ++i) {
      Record known;
      const uint64_t key = key_in_context(owner_, context_at(i)->context);
      if (process.records.remove(RecordKind::kLoaded, key, &known))
        charge_release(known.device, known.bytes);
    }
  }
  if (locked_) turn.release();
}

uint64_t estimate_key_moved(const Record& record, const void* context) {
  return record.key ^ key_in_context(nullptr, record.context) ^ key_in_context(nullptr, context);
}

void estimate_reset_after_fork() {
  turn.reset_after_fork();
  store_release(shared_ending, static_cast<const ThreadRecord*>(nullptr));
  for (uint64_t& basis : shared_basis) basis = 0;
}

}  // namespace sluice::interpose
