// What a program is told of movable memory and may do with it: to the program it is memory of
// cuMemAlloc. Pointers of others are the driver's to answer.
#include "interpose/say.h"
#include "interpose/swap.h"
#include "interpose/touch.h"

using namespace sluice::interpose;

namespace {

template <class T>
void store_as(void* out, T value) {
  __builtin_memcpy(out, &value, sizeof value);
}

// Puts what is so of an allocation in the place of what is so of its mapping.
void attribute_correct(void* out, CUpointer_attribute attribute, const SwapPointer& pointer) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      store_as(out, pointer.context);
      return;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      store_as(out, static_cast<unsigned long long>(pointer.id));
      return;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      store_as(out, pointer.base);
      return;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      store_as(out, static_cast<size_t>(pointer.bytes));
      return;
    default:
      return;
  }
}

// An address of a block that is in no allocation of it, for calls that must know none there.
constexpr CUdeviceptr kNobody = 0;

bool sync_memops_on(const void* value, CUpointer_attribute attribute) {
  unsigned int on = 0;
  __builtin_memcpy(&on, value, sizeof on);
  return attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && on != 0;
}

// The current context and its device, of a thread whose call is the program's own.
ThreadRecord* caller_in_context() {
  if (process_enter() != Mode::kActive) return nullptr;
  ThreadRecord* thread = thread_record();
  return thread != nullptr && thread->depth == 0 && thread_context(thread) ? thread : nullptr;
}

// Whether any GPU of the tenant has memory that peers must be shown one by one.
bool swap_anywhere() { return load_relaxed(process.swap_gpus) != 0; }

}  // namespace

// The attributes are asked of the driver first, so that it checks the arguments. It can answer only
// while the memory is there.
SLUICE_HOOK CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  process_enter();
  if (SLUICE_LIKELY(!swap_owns(address)))
    return driver.cuPointerGetAttribute(out, attribute, address);
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  SwapPointer pointer;
  const bool known = swap_find(address, &pointer);
  const CUresult result = driver.cuPointerGetAttribute(out, attribute, known ? address : kNobody);
  if (known && result == CUDA_SUCCESS) attribute_correct(out, attribute, pointer);
  return result;
}

SLUICE_HOOK CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                            void** out, CUdeviceptr address) {
  process_enter();
  if (SLUICE_LIKELY(!swap_owns(address)))
    return driver.cuPointerGetAttributes(count, attributes, out, address);
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  SwapPointer pointer;
  const bool known = swap_find(address, &pointer);
  const CUresult result =
      driver.cuPointerGetAttributes(count, attributes, out, known ? address : kNobody);
  for (unsigned int i = 0; known && result == CUDA_SUCCESS && i < count; ++i)
    attribute_correct(out[i], attributes[i], pointer);
  return result;
}

// SYNC_MEMOPS is what libraries set before they let another device at the memory by its physical
// addresses; it would not be there to be obeyed either after the memory was moved.
SLUICE_HOOK CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (!swap_owns(address)) return driver.cuPointerSetAttribute(value, attribute, address);
  SwapPointer pointer;
  const bool known = swap_find(address, &pointer);
  const CUresult result = driver.cuPointerSetAttribute(value, attribute, known ? address : kNobody);
  if (known && result == CUDA_SUCCESS && sync_memops_on(value, attribute)) swap_pin(address);
  return result;
}

SLUICE_HOOK CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes,
                                             CUdeviceptr address) {
  process_enter();
  SwapPointer pointer;
  if (SLUICE_LIKELY(!swap_owns(address)) || caller_in_context() == nullptr)
    return driver.cuMemGetAddressRange_v2(base, bytes, address);
  if (const CUresult fault = context_fault(); fault != CUDA_SUCCESS) return fault;
  if (!swap_find(address, &pointer)) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = pointer.base;
  if (bytes != nullptr) *bytes = pointer.bytes;
  return CUDA_SUCCESS;
}

SLUICE_HOOK CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = driver.cuCtxEnablePeerAccess(peer, flags);
  if (result != CUDA_SUCCESS || process_mode() != Mode::kActive || !swap_anywhere()) return result;
  const ThreadRecord* thread = caller_in_context();
  if (thread == nullptr) return result;
  const CUresult shown = swap_peer(thread->context, thread->device, peer, true);
  if (shown != CUDA_SUCCESS) driver.cuCtxDisablePeerAccess(peer);
  return shown;
}

SLUICE_HOOK CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = driver.cuCtxDisablePeerAccess(peer);
  if (result != CUDA_SUCCESS || process_mode() != Mode::kActive || !swap_anywhere()) return result;
  const ThreadRecord* thread = caller_in_context();
  return thread == nullptr ? result : swap_peer(thread->context, thread->device, peer, false);
}

// The mappings are not the program's.
SLUICE_HOOK CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes,
                                    const CUmemAccessDesc* access, size_t count) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (swap_owns(address)) return CUDA_ERROR_INVALID_VALUE;
  return driver.cuMemSetAccess(address, bytes, access, count);
}

SLUICE_HOOK CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (swap_owns(address)) return CUDA_ERROR_INVALID_VALUE;
  return driver.cuMemAddressFree(address, bytes);
}
