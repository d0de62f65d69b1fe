// See estimate.h.
#include "interpose/estimate.h"

#include "interpose/account.h"
#include "interpose/activity.h"
#include "interpose/residual.h"

namespace sluice::interpose {
namespace {

constexpr uint64_t kPatienceNs = 20'000'000;

// One record for a device: two contexts on it with the same library share one.
uint64_t key_of(const void* owner, int device) {
  return reinterpret_cast<uint64_t>(owner) + (static_cast<uint64_t>(device + 1) << 56);
}

// While the account of this process stands still, as far as others let it.
class Pause {
 public:
  Pause() { (void)accounts_pause_for(kPatienceNs); }
  ~Pause() { accounts_resume(); }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
};

// What is left and what the tenant has, together: allocations of the tenant do not change it. False
// when the driver does not say.
bool read(int device, int gpu, uint64_t* bytes) {
  (void)pools_settle(device);
  graph_memory_settle(device);
  size_t left = 0, all = 0;
  if (driver.cuMemGetInfo_v2(&left, &all) != CUDA_SUCCESS) return false;
  *bytes = left + process.ledger.total(static_cast<uint32_t>(gpu));
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

Estimate::Estimate(bool wanted) {
  ThreadRecord* thread = nullptr;
  const int gpu = wanted ? gpu_to_estimate(&thread) : -1;
  if (gpu < 0) return;
  const ErrnoGuard guard;
  const DepthScope depth(thread);
  const Pause pause;
  if (!read(thread->device, gpu, &before_)) return;
  gpu_ = gpu;
  device_ = thread->device;
  context_ = thread->context;
}

// Within a pause. What came back since the beginning goes back at once, as far as `owner` has it.
uint64_t Estimate::taken_now() {
  taken_ = read(device_, gpu_, &after_) && after_ < before_ ? before_ - after_ : 0;
  return taken_;
}

bool Estimate::record(const void* owner, uint64_t bytes) {
  Record known{key_of(owner, device_), 0, context_, RecordKind::kLoaded, device_};
  (void)process.records.find(RecordKind::kLoaded, known.key, &known);
  known.bytes += bytes;
  return process.records.insert(known);
}

bool Estimate::charge(const void* owner) {
  if (gpu_ < 0) return true;
  const ErrnoGuard guard;
  const Pause pause;
  const auto index = static_cast<uint32_t>(gpu_);
  if (taken_now() == 0) {
    const uint64_t back = after_ > before_ ? after_ - before_ : 0;
    Record known;
    if (back == 0 || !process.records.remove(RecordKind::kLoaded, key_of(owner, device_), &known))
      return true;
    const uint64_t given = back < known.bytes ? back : known.bytes;
    process.ledger.release(index, given);
    known.bytes -= given;
    return known.bytes == 0 || process.records.insert(known);
  }
  if (!process.ledger.reserve(index, taken_, process.memory_max(gpu_))) return false;
  if (record(owner, taken_)) {
    process.ledger.hold(index, taken_);
    return true;
  }
  process.ledger.abort(index, taken_);
  return false;
}

bool Estimate::charge_late(const void* owner) {
  if (gpu_ < 0) return true;
  const ErrnoGuard guard;
  const Pause pause;
  if (taken_now() == 0) return true;
  const auto index = static_cast<uint32_t>(gpu_);
  const bool fits = process.ledger.reserve(index, taken_, process.memory_max(gpu_));
  if (fits) {
    process.ledger.hold(index, taken_);
  } else {
    process.ledger.hold_unasked(index, taken_);
    residual_late_above(gpu_);
    refuse();
  }
  // Without a record it stays charged until the process ends.
  (void)record(owner, taken_);
  return fits;
}

bool Estimate::was_others() const {
  const ErrnoGuard guard;
  const Pause pause;
  uint64_t now = 0;
  return read(device_, gpu_, &now) && now < after_ + taken_ / 2;
}

void Estimate::refuse() const { charge_refused(gpu_, taken_); }

void estimate_drop(const void* owner) {
  if (process_mode() != Mode::kActive) return;
  const AccountScope account;
  for (int device = 0; device < process.device_count; ++device) {
    Record known;
    if (process.records.remove(RecordKind::kLoaded, key_of(owner, device), &known))
      charge_release(device, known.bytes);
  }
}

}  // namespace sluice::interpose
