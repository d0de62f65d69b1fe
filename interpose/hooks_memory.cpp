// Device memory that is allocated and freed at once: cuMemAlloc, pitched, managed, and cuMemFree,
// which also frees stream-ordered memory. Reserve against the quota, call the driver, hold or give
// back; the record remembers what a pointer costs and whose it is, so that a free on any thread is
// credited to the right device. In a tenant that may be swapped, cuMemAlloc and cuMemAllocPitch
// give movable memory instead (swap.h).
#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/free.h"
#include "interpose/gate.h"
#include "interpose/memory/device_pages.h"
#include "interpose/room.h"
#include "interpose/say.h"
#include "interpose/swap.h"

using namespace sluice::interpose;

namespace {

// What an allocating call answers in, as it was before: a refusal leaves it so.
template <class Pointer, class Size = size_t>
class Outputs {
 public:
  explicit Outputs(Pointer* pointer, Size* pitch = nullptr)
      : pointer_(pointer),
        pitch_(pitch),
        pointer_before_(pointer == nullptr ? Pointer{} : *pointer),
        pitch_before_(pitch == nullptr ? Size{} : *pitch) {}
  CUdeviceptr given() const { return *pointer_; }
  /// Frees what the driver gave. False: it is still there.
  bool take_back() const {
    const auto free = [this] { return driver.cuMemFree_v2(*pointer_); };
    const bool freed = relaxed_call(free) == CUDA_SUCCESS;
    restore();
    return freed;
  }
  void restore() const {
    *pointer_ = pointer_before_;
    if (pitch_ != nullptr) *pitch_ = pitch_before_;
  }

 private:
  Pointer* pointer_;
  Size* pitch_;
  Pointer pointer_before_;
  Size pitch_before_;
};

template <class Pointer, class Size>
SLUICE_ALWAYS_INLINE CUresult pointer_record(const Outputs<Pointer, Size>& outputs, uint64_t bytes,
                                             int device) {
  const Record record{outputs.given(), bytes, this_thread->context, RecordKind::kPointer, device};
  if (SLUICE_LIKELY(process.records.insert(record))) return CUDA_SUCCESS;
  unrecorded_say("an allocation's record");
  if (outputs.take_back()) charge_release(device, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Charges what the driver gave, and keeps the record.
template <class Pointer, class Size>
SLUICE_ALWAYS_INLINE CUresult pointer_charge(PagesReading& reading,
                                             const Outputs<Pointer, Size>& outputs,
                                             PagedAllocation& paged, uint64_t bytes, int device) {
  if (!paged.charge(bytes, reading)) {
    (void)outputs.take_back();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return pointer_record(outputs, paged.charged(), device);
}

// Without memory for it, managed memory is taken for what is always on the device.
void managed_record(CUdeviceptr pointer) {
  const ErrnoGuard guard;
  Record record;
  if (!process.records.find(RecordKind::kPointer, pointer, &record)) return;
  store_release(managed_seen, 1u);
  record.kind = RecordKind::kManaged;
  (void)process.records.insert(record);
}

// What the driver says to an allocation that the quota allows.
CUresult driver_refused(RoomWait& wait, CUresult result, int device, uint64_t bytes) {
  charge_abort(device, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) wait.refused(device_gpu(device), bytes);
  return result;
}

// True when movable memory was given or refused; else the driver is to be asked.
bool allocate_movable(RoomWait& wait, CUdeviceptr* pointer, uint64_t bytes, int device,
                      CUresult* result) {
  const SwapResult got = swap_allocate(device, this_thread->context, bytes, pointer);
  if (got.answer == SwapAnswer::kNoRoom) wait.refused(device_gpu(device), got.charged);
  *result = got.result;
  return got.answer != SwapAnswer::kByDriver;
}

// Pointers of the first version have 32 bits, which only the driver can find room for.
bool allocate_movable(RoomWait&, CUdeviceptr_v1*, uint64_t, int, CUresult*) { return false; }

enum class Movable : bool { kNo, kYes };

// `call` fills *pointer. `wrong`: the driver refuses the other arguments.
template <Movable Kind, class Pointer, class Call>
CUresult allocate_once(RoomWait& wait, PagesReading& reading, const Outputs<Pointer>& outputs,
                       Pointer* pointer, uint64_t bytes, bool wrong, Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  const int device = account.active() ? account.device() : -1;
  if (device < 0 || pointer == nullptr) return call();
  CUresult result;
  if (Kind == Movable::kYes && swap_wanted(device) && bytes != 0 &&
      allocate_movable(wait, pointer, bytes, device, &result)) {
    return result;
  }
  PagedAllocation paged(device, bytes);
  const uint64_t asked = paged.asked();
  if (!reading.reserve(device, asked)) {
    if (reading.comes_first()) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const CUresult fault = context_fault(); fault != CUDA_SUCCESS) return fault;
    return charge_refuse(device, asked, wrong, call, [&] { (void)outputs.take_back(); });
  }
  result = call();
  if (SLUICE_UNLIKELY(result != CUDA_SUCCESS)) return driver_refused(wait, result, device, asked);
  return pointer_charge(reading, outputs, paged, bytes, device);
}

// Takes back what the tenant is above its quota with once it is read.
template <class Pointer, class Size>
SLUICE_NOINLINE CUresult take_back_read(const PagesReading& reading,
                                        const Outputs<Pointer, Size>& outputs) {
  const CUdeviceptr given = outputs.given();
  const auto free = [&] { return relaxed_call([&] { return driver.cuMemFree_v2(given); }); };
  if (memory_free<Free::kNow>(given, nullptr, free) == CUDA_SUCCESS) outputs.restore();
  reading.taken_back();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Attempt, class Pointer, class Size = size_t>
SLUICE_ALWAYS_INLINE CUresult allocate_read(Attempt attempt, Pointer* pointer,
                                            Size* pitch = nullptr) {
  const Outputs<Pointer, Size> outputs(pointer, pitch);
  PagesReading reading;
  const CUresult result = with_readings(reading, [&] {
    return with_room([&](RoomWait& wait) { return attempt(wait, reading, outputs); });
  });
  if (result != CUDA_SUCCESS || SLUICE_LIKELY(reading.within())) return result;
  return take_back_read(reading, outputs);
}

template <Movable Kind, class Pointer, class Call>
CUresult allocate(Pointer* pointer, uint64_t bytes, Call call, bool wrong = false) {
  return allocate_read(
      [&](RoomWait& wait, PagesReading& reading, const Outputs<Pointer>& outputs) {
        return allocate_once<Kind>(wait, reading, outputs, pointer, bytes, wrong, call);
      },
      pointer);
}

// The driver chooses the pitch. The largest alignment sold is 512 bytes, which movable memory has.
constexpr uint64_t kPitchAlignment = 512;

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Which powers of two no pitch that was seen is explained by: rows are padded to a multiple of one
// of the others, as long as there are any. What surely must fit, rows padded to the least of them,
// is reserved; so nothing is above the quota for a moment once a row has shown that the padding of
// such rows is the same whichever it is.
uint32_t alignments_excluded;  // a bit each, from 1 on

void padding_learn(uint64_t width, uint64_t pitch) {
  uint32_t excluded = 0;
  for (uint64_t alignment = 1; alignment <= kPitchAlignment; alignment *= 2) {
    if (round_up(width, alignment) != pitch) excluded |= static_cast<uint32_t>(alignment);
  }
  __atomic_fetch_or(&alignments_excluded, excluded, __ATOMIC_RELAXED);
}

uint64_t pitch_least(uint64_t width) {
  const uint32_t excluded = load_relaxed(alignments_excluded);
  for (uint64_t alignment = 1; alignment <= kPitchAlignment; alignment *= 2) {
    if ((excluded & alignment) == 0) return round_up(width, alignment);
  }
  return width;
}

// What the driver allows; anything else it answers itself.
bool pitch_is_sane(uint64_t width, uint64_t height, unsigned int element) {
  return width != 0 && height != 0 && (element == 4 || element == 8 || element == 16);
}

struct Rows {
  uint64_t width, height;
  unsigned int element;
};

template <class Pointer, class Size, class Call>
CUresult allocate_pitched_once(RoomWait& wait, PagesReading& reading,
                               const Outputs<Pointer, Size>& outputs, Pointer* pointer, Size* pitch,
                               const Rows& rows, Call call) {
  const AccountScope account;
  const uint64_t width = rows.width, height = rows.height;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  const int device = account.active() ? account.device() : -1;
  const uint64_t row = round_up(width, kPitchAlignment);
  uint64_t bytes;
  if (device < 0 || pointer == nullptr || pitch == nullptr ||
      __builtin_mul_overflow(row, height, &bytes)) {
    return call();
  }
  CUresult result;
  if (swap_wanted(device) && row >= width && pitch_is_sane(width, height, rows.element) &&
      allocate_movable(wait, pointer, bytes, device, &result)) {
    if (result == CUDA_SUCCESS) *pitch = static_cast<Size>(row);
    return result;
  }
  PagedAllocation paged(device, pitch_least(width) * height);
  const uint64_t asked = paged.asked();
  if (!reading.reserve(device, asked)) {
    if (reading.comes_first()) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const CUresult fault = context_fault(); fault != CUDA_SUCCESS) return fault;
    return charge_refuse(device, asked, !pitch_is_sane(width, height, rows.element), call,
                         [&] { (void)outputs.take_back(); });
  }
  result = call();
  if (result != CUDA_SUCCESS) return driver_refused(wait, result, device, asked);
  padding_learn(width, *pitch);
  return pointer_charge(reading, outputs, paged, static_cast<uint64_t>(*pitch) * height, device);
}

template <class Pointer, class Size, class Call>
CUresult allocate_pitched(Pointer* pointer, Size* pitch, const Rows& rows, Call call) {
  return allocate_read(
      [&](RoomWait& wait, PagesReading& reading, const Outputs<Pointer, Size>& outputs) {
        return allocate_pitched_once(wait, reading, outputs, pointer, pitch, rows, call);
      },
      pointer, pitch);
}

}  // namespace

SLUICE_HOOK CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  return allocate<Movable::kYes>(pointer, bytes,
                                 [&] { return driver.cuMemAlloc_v2(pointer, bytes); });
}

SLUICE_HOOK CUresult cuMemAlloc(CUdeviceptr_v1* pointer, unsigned int bytes) {
  return allocate<Movable::kNo>(pointer, bytes, [&] { return driver.cuMemAlloc(pointer, bytes); });
}

SLUICE_HOOK CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned int flags) {
  const bool wrong = flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST;
  const CUresult result = allocate<Movable::kNo>(
      pointer, bytes, [&] { return driver.cuMemAllocManaged(pointer, bytes, flags); }, wrong);
  if (result == CUDA_SUCCESS && pointer != nullptr) managed_record(*pointer);
  return result;
}

SLUICE_HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width,
                                        size_t height, unsigned int element) {
  return allocate_pitched(pointer, pitch, Rows{width, height, element}, [&] {
    return driver.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
  });
}

SLUICE_HOOK CUresult cuMemAllocPitch(CUdeviceptr_v1* pointer, unsigned int* pitch,
                                     unsigned int width, unsigned int height,
                                     unsigned int element) {
  return allocate_pitched(pointer, pitch, Rows{width, height, element}, [&] {
    return driver.cuMemAllocPitch(pointer, pitch, width, height, element);
  });
}

SLUICE_HOOK CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return memory_free<Free::kNow>(pointer, nullptr, [&] { return driver.cuMemFree_v2(pointer); });
}

SLUICE_HOOK CUresult cuMemFree(CUdeviceptr_v1 pointer) {
  return memory_free<Free::kNow>(pointer, nullptr, [&] { return driver.cuMemFree(pointer); });
}
