// Memory of cuMemCreate that is mapped into sparse arrays and bound to multicast objects. Both hold
// it, whatever becomes of its handle, and so does its charge (account_uses.h).
#include "interpose/account.h"
#include "interpose/account_uses.h"
#include "interpose/captures.h"
#include "interpose/gate.h"

using namespace sluice::interpose;

namespace {

template <class Begin, class Call, class End>
CUresult recorded(Begin begin, Call call, End end) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active()) return call();
  uses_settle();
  Tickets tickets;
  if (!begin(account, &tickets)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  end(tickets, result);
  return result;
}

// How far a list makes sense: the driver refuses one in which something is neither of the two.
unsigned sane_count(const CUarrayMapInfo* list, unsigned count) {
  unsigned sane = 0;
  while (list != nullptr && sane < count &&
         (list[sane].memOperationType == CU_MEM_OPERATION_TYPE_MAP ||
          list[sane].memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)) {
    ++sane;
  }
  return sane;
}

template <class Call>
CUresult map_arrays(const CUarrayMapInfo* list, unsigned all, CUstream stream, Call call) {
  const unsigned count = sane_count(list, all);
  return recorded(
      [&](const AccountScope& account, Tickets* tickets) {
        const void* context = account.device() >= 0 ? this_thread->context : nullptr;
        return array_maps_begin(list, count, context, tickets);
      },
      call,
      [&](const Tickets& tickets, CUresult result) {
        array_maps_end(list, count, tickets, stream, result);
      });
}

}  // namespace

SLUICE_HOOK CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  return map_arrays(list, count, stream,
                    [&] { return driver.cuMemMapArrayAsync(list, count, stream); });
}

SLUICE_HOOK CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* list, unsigned int count,
                                             CUstream stream) {
  return map_arrays(list, count, stream_per_thread(stream),
                    [&] { return driver.cuMemMapArrayAsync_ptsz(list, count, stream); });
}

// The object is on record so that its end is seen, with which all that is bound to it is let go.
SLUICE_HOOK CUresult cuMulticastCreate(CUmemGenericAllocationHandle* object,
                                       const CUmulticastObjectProp* properties) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUmemGenericAllocationHandle before = object == nullptr ? 0 : *object;
  const CUresult result = driver.cuMulticastCreate(object, properties);
  if (!account.active() || result != CUDA_SUCCESS || object == nullptr || *object == 0)
    return result;
  uses_settle();
  if (vmm_created(*object, 0, 0)) return result;
  (void)relaxed_call([&] { return driver.cuMemRelease(*object); });
  *object = before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

SLUICE_HOOK CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset,
                                        CUmemGenericAllocationHandle memory, size_t memory_offset,
                                        size_t bytes, unsigned long long flags) {
  return recorded(
      [&](const AccountScope&, Tickets* tickets) {
        return bind_begin(object, offset, memory, bytes, tickets);
      },
      [&] {
        return driver.cuMulticastBindMem(object, offset, memory, memory_offset, bytes, flags);
      },
      bind_end);
}

SLUICE_HOOK CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset,
                                         CUdeviceptr address, size_t bytes,
                                         unsigned long long flags) {
  return recorded(
      [&](const AccountScope&, Tickets* tickets) {
        return bind_address_begin(object, offset, address, bytes, tickets);
      },
      [&] { return driver.cuMulticastBindAddr(object, offset, address, bytes, flags); }, bind_end);
}

SLUICE_HOOK CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device,
                                       size_t offset, size_t bytes) {
  return recorded([](const AccountScope&, Tickets*) { return true; },
                  [&] { return driver.cuMulticastUnbind(object, device, offset, bytes); },
                  [&](const Tickets&, CUresult result) {
                    if (result == CUDA_SUCCESS) unbound(object, device, offset, bytes);
                  });
}
