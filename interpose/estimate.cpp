// See estimate.h.
#include "interpose/estimate.h"

#include "interpose/account.h"
#include "interpose/memory/context_limits.h"
#include "interpose/meter.h"
#include "interpose/residual.h"
#include "interpose/usage.h"

namespace sluice::interpose {
namespace {

// How long threads in the middle of an allocation are waited for; what one has reserved is not
// counted then.
constexpr uint64_t kPauseNs = 2'000'000;
constexpr int kReadings = 10;
constexpr uint64_t kBetweenReadingsNs = 100'000;
// A load that waits for work of the GPU may hold another one up so long. That one is estimated
// beside it: what both took is charged, be it to the wrong one of them.
constexpr uint64_t kTurnNs = 2'000'000'000;
constexpr uint64_t kTurnLookNs = 200'000;

Lock turn;

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
  Pause() : still_(accounts_pause_for(kPauseNs)) {}
  ~Pause() { accounts_resume(); }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  bool still() const { return still_; }

 private:
  const bool still_;
};

bool left_read(int gpu, LeftBy by, uint64_t* left) {
  if (by == LeftBy::kDriver) {
    size_t free = 0, all = 0;
    if (driver.cuMemGetInfo_v2(&free, &all) != CUDA_SUCCESS) return false;
    *left = free;
    return true;
  }
  uint64_t used = 0;
  if (!usage_of_gpu(gpu, &used)) return false;
  // Only differences count, and no device has so much.
  constexpr uint64_t kAll = uint64_t{1} << 60;
  *left = kAll - used;
  return true;
}

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

bool estimate_turn_take(uint64_t patience_ns) {
  const uint64_t until_ns = clock_now_ns() + patience_ns;
  while (!turn.try_acquire()) {
    if (clock_now_ns() >= until_ns) return false;
    sleep_ns(kTurnLookNs);
  }
  return true;
}

void estimate_turn_give() { turn.release(); }

bool device_sum_read(int device, int gpu, LeftBy by, DeviceSum* out) {
  const Pause pause;
  (void)pools_settle(device);
  graph_memory_settle(device);
  for (int i = 0;; ++i) {
    const uint64_t total = process.ledger.total(static_cast<uint32_t>(gpu));
    uint64_t left = 0;
    if (!left_read(gpu, by, &left)) return false;
    const uint64_t reserved = reserved_by_all(gpu);
    const bool still = process.ledger.total(static_cast<uint32_t>(gpu)) == total;
    if ((!still || reserved != 0) && i + 1 < kReadings) {
      sleep_ns(kBetweenReadingsNs);
      continue;
    }
    *out = {left + total - (reserved < total ? reserved : total), left + total,
            still && pause.still()};
    return true;
  }
}

Estimate::Estimate(bool wanted) {
  ThreadRecord* thread = nullptr;
  const int gpu = wanted ? gpu_to_estimate(&thread) : -1;
  if (gpu < 0) return;
  const SystemGuard guard;
  locked_ = estimate_turn_take(kTurnNs);
  const DepthScope depth(thread);
  DeviceSum now{};
  if (!device_sum_read(thread->device, gpu, LeftBy::kDriver, &now)) {
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
  const bool read = device_sum_read(device_, gpu_, LeftBy::kDriver, &after_);
  taken_ = read && after_.most < before_ ? before_ - after_.most : 0;
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
  DeviceSum now{};
  return device_sum_read(device_, gpu_, LeftBy::kDriver, &now) &&
         now.most < after_.least + taken_ / 2;
}

void Estimate::refuse() const { charge_refused(gpu_, taken_); }

EstimateEnd::EstimateEnd(const void* owner) : owner_(owner) {
  if (!estimate_is_used()) return;
  const ErrnoGuard guard;
  locked_ = estimate_turn_take(kTurnNs);
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

void estimate_reset_after_fork() { turn.reset_after_fork(); }

}  // namespace sluice::interpose
