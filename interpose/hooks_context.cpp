// Contexts: they cost memory that counts against the quota, their end frees everything in them, and
// the current one says which GPU a thread works on. A primary context is charged while the driver
// says that it is active, whoever retained it.
#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/endings.h"
#include "interpose/estimate.h"
#include "interpose/family.h"
#include "interpose/gate.h"
#include "interpose/green.h"
#include "interpose/memory/context_limits.h"
#include "interpose/memory/kept.h"
#include "interpose/memory/least.h"
#include "interpose/residual.h"
#include "interpose/room.h"
#include "interpose/say.h"
#include "interpose/touch.h"
#include "interpose/usage.h"

using namespace sluice::interpose;

namespace {

struct Primary {
  CUcontext context;
  bool charged;
  uint32_t ends;  // how many there were
};
Primary primaries[kDevicesMax];
Lock primaries_lock;

}  // namespace

bool sluice::interpose::primary_is_active(int device) {
  unsigned int flags = 0;
  int active = 0;
  return driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

namespace {

// What a context takes along when it ends.
void context_end(CUcontext context, int device) {
  context_drop(context);
  context_discharge(device);
}

// The driver has no room for a context that the quota has room for.
void context_refused(RoomWait& wait, CUresult result, CUdevice device) {
  const int gpu = device_gpu(device);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && gpu >= 0)
    wait.refused(gpu, process.entry(gpu).context_bytes);
}

bool is_alone(int gpu) { return gpu >= 0 && load_acquire(process.alone) != 0; }

// What was in use on each GPU before the context that is being made; 0 = not known.
uint64_t used_before[sluice::protocol::kTenantGpusMax];

void before_context(int device) {
  const int gpu = device_gpu(device);
  if (!is_alone(gpu)) return;
  usage_before_context(gpu);
  uint64_t used = 0;
  if (process.entry(gpu).context_bytes == 0 && !usage_of_gpu(gpu, &used)) used = 0;
  store_relaxed(used_before[gpu], used);
}

// Where nobody tells what this process uses, the first context costs what has come into use on the
// GPU since before it was made: others' allocations of that moment too, so that more than a context
// ever takes is not believed. False: the quota has no room for it.
bool context_estimate(int device, int gpu) {
  constexpr uint64_t kMost = uint64_t{2} << 30;
  const uint64_t before = load_relaxed(used_before[gpu]);
  uint64_t now = 0;
  if (residual_is_measured(gpu) || before == 0 || !usage_of_gpu(gpu, &now)) return true;
  if (now <= before || now - before > kMost) return true;
  const AccountScope account;
  if (!account.active()) return true;
  const uint64_t bytes = now - before;
  if (!charge_reserve(device, bytes)) return false;
  charge_commit(device, bytes);
  residual_take(gpu, bytes);
  context_cost_learn(device, bytes);
  return true;
}

// What the first context has cost, of all that no call tells: not what was there before it, such as
// memory that was imported, which the driver's figure shows for the first time together with it.
uint64_t context_cost_seen(int gpu) {
  const uint64_t all = residual_charged(gpu), before = load_relaxed(used_before[gpu]);
  uint64_t now = 0;
  if (before == 0 || !usage_of_gpu(gpu, &now) || now <= before) return all;
  return now - before < all ? now - before : all;
}

// After a context was made. Without a broker nobody has measured what one costs: the first on a GPU
// tells. False: it takes more than the quota has room for, and is to go.
bool context_fits(int device) {
  const int gpu = device_gpu(device);
  if (is_alone(gpu)) usage_after_context(gpu);
  if (!is_alone(gpu) || process.entry(gpu).context_bytes != 0) {
    residual_settle_device(device);
    return true;
  }
  if (!residual_settle_context(device) || !context_estimate(device, gpu)) return false;
  if (contexts_on(device) == 1) family_context_cost_set(gpu, context_cost_seen(gpu));
  return true;
}

template <class Call>
CUresult create_charged(RoomWait& wait, CUcontext* context, CUdevice device, Call call) {
  process_begin(device);
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active() || context == nullptr || device < 0 || device >= kDevicesMax) return call();
  if (const CUresult refusal = context_charge(device); refusal != CUDA_SUCCESS) return refusal;
  before_context(device);
  const CUcontext before = *context;
  CUresult result = call();
  if (result != CUDA_SUCCESS) {
    context_discharge(device);
    context_refused(wait, result, device);
  } else {
    context_endings_wait(*context);
    const auto key = reinterpret_cast<uint64_t>(*context);
    if (!process.records.insert(Record{key, 1, nullptr, RecordKind::kContext, device})) {
      unrecorded_say("a context's record");
      (void)driver.cuCtxDestroy_v2(*context);
      *context = before;
      context_discharge(device);
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  thread_context_forget();
  return result;
}

template <class Call>
CUresult destroy_discharged(CUcontext context, int* device, Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active()) return call();
  const ContextEnding ending(context);
  ContextRecord* meter = context_ending(context);
  Record record;
  const bool known =
      process.records.remove(RecordKind::kContext, reinterpret_cast<uint64_t>(context), &record);
  const CUresult result = call();
  context_ended(context, meter, result == CUDA_SUCCESS);
  if (known && result == CUDA_SUCCESS) {
    context_end(context, record.device);
    *device = record.device;
  }
  if (known && result != CUDA_SUCCESS) (void)process.records.insert(record);
  thread_context_forget();
  return result;
}

template <class Call>
CUresult destroy(CUcontext context, Call call) {
  int device = -1;
  SharedEnd shared(residual_is_shared());
  const CUresult result = destroy_discharged(context, &device, call);
  if (device < 0) return result;
  shared.ended();
  residual_settle_device(device);
  return result;
}

template <class Call>
CUresult create(CUcontext* context, CUdevice device, Call call) {
  const CUcontext untouched = context == nullptr ? nullptr : *context;
  const CUresult result =
      with_room([&](RoomWait& wait) { return create_charged(wait, context, device, call); });
  if (result != CUDA_SUCCESS || context_fits(device)) return result;
  (void)destroy(*context, [&] { return driver.cuCtxDestroy_v2(*context); });
  *context = untouched;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Call>
CUresult primary_discharge(CUdevice device, bool* ended, Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active() || device < 0 || device >= kDevicesMax) return call();
  const LockScope scope(primaries_lock);
  Primary& primary = primaries[device];
  ContextRecord* meter = primary.charged ? context_ending(primary.context) : nullptr;
  const CUresult result = call();
  const bool over = result == CUDA_SUCCESS && primary.charged && !primary_is_active(device);
  if (primary.charged) context_ended(primary.context, meter, over);
  if (over) {
    primary.charged = false;
    ++primary.ends;
    *ended = true;
    context_end(primary.context, device);
  }
  thread_context_forget();
  return result;
}

// After anything that may have ended the primary context.
template <class Call>
CUresult primary_release(CUdevice device, Call call) {
  bool ended = false;
  SharedEnd shared(residual_is_shared());
  const CUresult result = primary_discharge(device, &ended, call);
  if (!ended) return result;
  shared.ended();
  residual_settle_device(device);
  return result;
}

CUresult primary_retain(RoomWait& wait, CUcontext* context, CUdevice device, bool* begun) {
  process_begin(device);
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active() || device < 0 || device >= kDevicesMax) {
    return driver.cuDevicePrimaryCtxRetain(context, device);
  }
  if (context == nullptr) {  // the driver says no, whatever the quota says
    const CUresult result = driver.cuDevicePrimaryCtxRetain(context, device);
    if (result != CUDA_SUCCESS) return result;
    (void)driver.cuDevicePrimaryCtxRelease_v2(device);
  }
  const LockScope scope(primaries_lock);
  Primary& primary = primaries[device];
  const bool charge = !primary.charged;
  const CUresult refusal = charge ? context_charge(device) : CUDA_SUCCESS;
  if (refusal != CUDA_SUCCESS) return refusal;
  if (charge) before_context(device);
  const CUresult result = driver.cuDevicePrimaryCtxRetain(context, device);
  if (result == CUDA_SUCCESS) {
    primary.charged = true;
    *begun = charge;
    if (context != nullptr) primary.context = *context;
  } else if (charge) {
    context_discharge(device);
    context_refused(wait, result, device);
  }
  return result;
}

template <class Call>
CUresult current_change(Call call) {
  process_enter();
  const CUresult result = call();
  thread_context_forget();
  return result;
}

}  // namespace

CUcontext sluice::interpose::primary_known(int device, uint32_t* ends) {
  if (device < 0 || device >= kDevicesMax) return nullptr;
  const LockScope scope(primaries_lock);
  *ends = primaries[device].ends;
  return primaries[device].charged ? primaries[device].context : nullptr;
}

void sluice::interpose::primary_may_have_ended(int device, CUcontext context, uint32_t ends,
                                               ContextRecord* record) {
  const LockScope scope(primaries_lock);
  context_ended(context, record, primaries[device].ends != ends || !primary_is_active(device));
}

bool sluice::interpose::primary_look(int device, CUcontext* context) {
  if (device < 0 || device >= kDevicesMax) return false;
  const LockScope scope(primaries_lock);
  Primary& primary = primaries[device];
  if (!primary_is_active(device)) {
    if (primary.charged) context_end(primary.context, device);
    primary.charged = false;
    ++primary.ends;
    return false;
  }
  *context = primary.context;
  if (primary.charged && primary.context != nullptr) return true;
  // Somebody else holds it, as other green contexts do.
  const bool held = driver.cuDevicePrimaryCtxRetain(context, device) == CUDA_SUCCESS;
  if (held) (void)driver.cuDevicePrimaryCtxRelease_v2(device);
  return held;
}

bool sluice::interpose::contexts_stay_for(uint64_t patience_ns) {
  if (!green_ends_stop_for(patience_ns)) return false;
  if (primaries_lock.acquire_for(patience_ns)) return true;
  green_ends_go();
  return false;
}

void sluice::interpose::contexts_may_end() {
  primaries_lock.release();
  green_ends_go();
}

namespace {

void contexts_meet_of(RecordKind kind) {
  constexpr uint64_t kRoom = 64;
  Record few[kRoom];
  Record* records = few;
  const uint64_t count = process.records.list(kind, few, kRoom);
  const size_t bytes = count * sizeof(Record);
  // Nothing is added meanwhile.
  if (count > kRoom) records = static_cast<Record*>(pages_allocate(bytes));
  if (records == nullptr) return unrecorded_say("a context's record");
  if (count > kRoom) (void)process.records.list(kind, records, count);
  for (uint64_t i = 0; i < count; ++i) {
    const Record& record = records[i];
    const auto handle = kind == RecordKind::kContext
                            ? reinterpret_cast<CUcontext>(record.key)
                            : static_cast<CUcontext>(const_cast<void*>(record.context));
    if (handle != nullptr && device_gpu(record.device) >= 0)
      (void)context_record(handle, record.device);
  }
  if (count > kRoom) pages_free(records, bytes);
}

}  // namespace

void sluice::interpose::contexts_meet() {
  contexts_meet_of(RecordKind::kContext);
  contexts_meet_of(RecordKind::kGreen);
  for (int device = 0; device < process.device_count; ++device) {
    const Primary& primary = primaries[device];
    if (primary.charged && primary.context != nullptr && device_gpu(device) >= 0 &&
        primary_is_active(device)) {
      (void)context_record(primary.context, device);
    }
  }
}

void sluice::interpose::primaries_reset_after_fork() {
  primaries_lock.reset_after_fork();
  green_reset_after_fork();
  for (Primary& primary : primaries) primary = {};
}

SLUICE_HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  bool begun = false;
  const CUcontext untouched = context == nullptr ? nullptr : *context;
  const CUresult result =
      with_room([&](RoomWait& wait) { return primary_retain(wait, context, device, &begun); });
  if (!begun || context_fits(device)) return result;
  (void)primary_release(device, [&] { return driver.cuDevicePrimaryCtxRelease_v2(device); });
  if (context != nullptr) *context = untouched;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

SLUICE_HOOK CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return primary_release(device, [&] { return driver.cuDevicePrimaryCtxRelease(device); });
}

SLUICE_HOOK CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return primary_release(device, [&] { return driver.cuDevicePrimaryCtxRelease_v2(device); });
}

SLUICE_HOOK CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return primary_release(device, [&] { return driver.cuDevicePrimaryCtxReset(device); });
}

SLUICE_HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return primary_release(device, [&] { return driver.cuDevicePrimaryCtxReset_v2(device); });
}

SLUICE_HOOK CUresult cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  return create(context, device, [&] { return driver.cuCtxCreate(context, flags, device); });
}

SLUICE_HOOK CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return create(context, device, [&] { return driver.cuCtxCreate_v2(context, flags, device); });
}

SLUICE_HOOK CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count,
                                    unsigned int flags, CUdevice device) {
  return create(context, device,
                [&] { return driver.cuCtxCreate_v3(context, affinity, count, flags, device); });
}

SLUICE_HOOK CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params,
                                    unsigned int flags, CUdevice device) {
  return create(context, device,
                [&] { return driver.cuCtxCreate_v4(context, params, flags, device); });
}

SLUICE_HOOK CUresult cuCtxDestroy(CUcontext context) {
  return destroy(context, [&] { return driver.cuCtxDestroy(context); });
}

SLUICE_HOOK CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroy(context, [&] { return driver.cuCtxDestroy_v2(context); });
}

SLUICE_HOOK CUresult cuCtxSetCurrent(CUcontext context) {
  // Runtimes set what is set already, often.
  const ThreadRecord* thread = this_thread;
  const bool same =
      thread != nullptr && load_relaxed(thread->context_known) != 0 && thread->context == context;
  process_enter();
  const CUresult result = driver.cuCtxSetCurrent(context);
  if (!same) thread_context_forget();
  return result;
}

SLUICE_HOOK CUresult cuCtxPushCurrent(CUcontext context) {
  return current_change([&] { return driver.cuCtxPushCurrent(context); });
}

SLUICE_HOOK CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return current_change([&] { return driver.cuCtxPushCurrent_v2(context); });
}

SLUICE_HOOK CUresult cuCtxPopCurrent(CUcontext* context) {
  return current_change([&] { return driver.cuCtxPopCurrent(context); });
}

SLUICE_HOOK CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  return current_change([&] { return driver.cuCtxPopCurrent_v2(context); });
}

SLUICE_HOOK CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUcontext before = context == nullptr ? nullptr : *context;
  const CUresult result = driver.cuCtxFromGreenCtx(context, green);
  if (result != CUDA_SUCCESS || context == nullptr || green_converted(green, *context))
    return result;
  *context = before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Contexts of cuCtxCreate were counted once: detaching as often as attaching, and once more, ends
// them. `bytes` of the record is that count.
SLUICE_HOOK CUresult cuCtxAttach(CUcontext* context, unsigned int flags) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = driver.cuCtxAttach(context, flags);
  Record record;
  if (account.active() && result == CUDA_SUCCESS &&
      process.records.find(RecordKind::kContext, reinterpret_cast<uint64_t>(*context), &record)) {
    ++record.bytes;
    (void)process.records.insert(record);
  }
  return result;
}

SLUICE_HOOK CUresult cuCtxDetach(CUcontext context) {
  Record record;
  {
    const AccountScope account;
    if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
    const bool known =
        account.active() &&
        process.records.find(RecordKind::kContext, reinterpret_cast<uint64_t>(context), &record);
    if (known && record.bytes > 1) {
      const CUresult result = driver.cuCtxDetach(context);
      --record.bytes;
      if (result == CUDA_SUCCESS) (void)process.records.insert(record);
      return result;
    }
  }
  return destroy(context, [&] { return driver.cuCtxDetach(context); });
}

// Heap and printf buffer are taken with the first kernel that uses them, if any does, and reserved
// here. Stacks are taken at once: what they surely take is asked of the quota before; what is taken
// and does not fit is given back by setting the limit that was there.
SLUICE_HOOK CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  return limit_takes_later(limit) ? limit_set_reserved(limit, value)
                                  : limit_set_at_once(limit, value);
}
