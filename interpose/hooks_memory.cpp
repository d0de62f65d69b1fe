// Device memory that is allocated and freed at once: cuMemAlloc, pitched, managed, and cuMemFree,
// which also frees stream-ordered memory. Reserve against the quota, call the driver, hold or give
// back; the record remembers what a pointer costs and whose it is, so that a free on any thread is
// credited to the right device.
#include "interpose/account.h"
#include "interpose/free.h"
#include "interpose/gate.h"

using namespace sluice::interpose;

namespace {

void pointer_free(CUdeviceptr pointer) {
  if (driver.cuMemFree_v2(pointer) != CUDA_SUCCESS) return;
}

CUresult pointer_record(CUdeviceptr pointer, uint64_t bytes, int device) {
  const Record record{pointer, bytes, this_thread->context, RecordKind::kPointer, device};
  if (process.records.insert(record)) return CUDA_SUCCESS;
  pointer_free(pointer);
  charge_release(device, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// `call` fills *pointer.
template <class Pointer, class Call>
CUresult allocate(Pointer* pointer, uint64_t bytes, Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  const int device = account.active() ? account.device() : -1;
  if (device < 0) return call();
  if (!charge_reserve(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    charge_abort(device, bytes);
    return result;
  }
  charge_commit(device, bytes);
  return pointer_record(*pointer, bytes, device);
}

// The driver chooses the pitch: reserve for the row length in the largest pitch alignment sold (512
// bytes), settle after.
constexpr uint64_t kPitchAlignment = 512;

template <class Pointer, class Size, class Call>
CUresult allocate_pitched(Pointer* pointer, Size* pitch, uint64_t width, uint64_t height,
                          Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  const int device = account.active() ? account.device() : -1;
  const uint64_t row = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  uint64_t bytes;
  if (device < 0 || pointer == nullptr || pitch == nullptr ||
      __builtin_mul_overflow(row, height, &bytes)) {
    return call();
  }
  // What surely must fit is the rows without padding; padding that the driver does not add must not
  // be refused.
  if (!charge_reserve(device, width * height)) return CUDA_ERROR_OUT_OF_MEMORY;
  const Pointer pointer_before = *pointer;
  const Size pitch_before = *pitch;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    charge_abort(device, width * height);
    return result;
  }
  const uint64_t actual = static_cast<uint64_t>(*pitch) * height;
  if (!charge_settle(device, width * height, actual)) {
    pointer_free(*pointer);
    *pointer = pointer_before;
    *pitch = pitch_before;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return pointer_record(*pointer, actual, device);
}

}  // namespace

SLUICE_HOOK CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  return allocate(pointer, bytes, [&] { return driver.cuMemAlloc_v2(pointer, bytes); });
}

SLUICE_HOOK CUresult cuMemAlloc(CUdeviceptr_v1* pointer, unsigned int bytes) {
  return allocate(pointer, bytes, [&] { return driver.cuMemAlloc(pointer, bytes); });
}

SLUICE_HOOK CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned int flags) {
  return allocate(pointer, bytes, [&] { return driver.cuMemAllocManaged(pointer, bytes, flags); });
}

SLUICE_HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width,
                                        size_t height, unsigned int element) {
  return allocate_pitched(pointer, pitch, width, height, [&] {
    return driver.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
  });
}

SLUICE_HOOK CUresult cuMemAllocPitch(CUdeviceptr_v1* pointer, unsigned int* pitch,
                                     unsigned int width, unsigned int height,
                                     unsigned int element) {
  return allocate_pitched(pointer, pitch, width, height, [&] {
    return driver.cuMemAllocPitch(pointer, pitch, width, height, element);
  });
}

SLUICE_HOOK CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return memory_free<Free::kNow>(pointer, [&] { return driver.cuMemFree_v2(pointer); });
}

SLUICE_HOOK CUresult cuMemFree(CUdeviceptr_v1 pointer) {
  return memory_free<Free::kNow>(pointer, [&] { return driver.cuMemFree(pointer); });
}
