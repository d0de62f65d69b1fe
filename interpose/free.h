// Freeing what the records know, whichever call frees it: cuMemFree takes memory of pools, and
// cuMemFreeAsync what cuMemAlloc gave.
#pragma once

#include "interpose/account.h"
#include "interpose/gate.h"
#include "interpose/memory/device_pages.h"
#include "interpose/memory/kept.h"
#include "interpose/place.h"
#include "interpose/residual.h"
#include "interpose/swap.h"

namespace sluice::interpose {

enum class Free : uint8_t { kNow, kInStreamOrder };

/// memory_free within its scope. `*unknown`: it is gone, but was not in the records, or other
/// processes may have it open.
template <Free When, class Call>
CUresult memory_free_known(CUdeviceptr pointer, CUstream stream, bool* unknown, Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active() || pointer == 0) return call();
  if (swap_owns(pointer)) {
    if (When == Free::kNow) return swap_free(pointer);
    // No context: the driver says so. Of a stream that has a handle it asks for none.
    if (account.device() < 0 && stream_is_special(stream)) return call();
    return swap_free_behind(pointer, stream);
  }
  // Out of the records before the driver can hand the same address to another thread.
  Record record, managed, exported;
  const bool plain = process.records.remove(RecordKind::kPointer, pointer, &record);
  const bool is_managed = plain && SLUICE_UNLIKELY(load_relaxed(managed_seen) != 0) &&
                          process.records.remove(RecordKind::kManaged, pointer, &managed);
  const bool is_exported = plain && SLUICE_UNLIKELY(residual_is_shared()) &&
                           process.records.remove(RecordKind::kExported, pointer, &exported);
  const bool pooled = !plain && process.records.remove(RecordKind::kPooled, pointer, &record);
  const CUresult result = call();
  if (!plain && !pooled) {
    *unknown = result == CUDA_SUCCESS;
    return result;
  }
  if (result != CUDA_SUCCESS) {
    (void)process.records.insert(record);
    if (is_managed) (void)process.records.insert(managed);
    if (is_exported) (void)process.records.insert(exported);
  } else if (is_exported) {
    charge_pass(record.device, record.bytes);
    *unknown = true;
  } else if (plain) {
    if (When == Free::kNow || !residual_defer(record.device, record.bytes))
      device_pages_release(record.device, record.bytes);
  } else {
    // Of a pool that the program has destroyed: the device has it back when the stream gets there.
    if (pools_settle(record.device) == PoolsRead::kSmaller && !residual_defer(record.device, 0))
      residual_want();
  }
  return result;
}

/// True if other holders may have the memory at `pointer`: it was exported, or came by a handle.
inline bool may_be_shared(CUdeviceptr pointer) {
  if (SLUICE_LIKELY(!residual_is_shared())) return false;
  const ErrnoGuard guard;
  Record record;
  return !process.records.find(RecordKind::kPointer, pointer, &record) ||
         process.records.find(RecordKind::kExported, pointer, &record);
}

/// Makes `call` and takes `pointer` off the account if it succeeds. Memory that is not in the
/// records is the driver's business alone, but where it may have come by a handle from outside.
/// `stream` is that of kInStreamOrder.
template <Free When, class Call>
CUresult memory_free(CUdeviceptr pointer, CUstream stream, Call call) {
  bool unknown = false;
  SharedEnd shared(may_be_shared(pointer));
  const CUresult result = memory_free_known<When>(pointer, stream, &unknown, call);
  if (result == CUDA_SUCCESS) shared.ended();
  if (SLUICE_UNLIKELY(unknown) && residual_is_shared())
    residual_imports_freed(When == Free::kInStreamOrder);
  return result;
}

}  // namespace sluice::interpose
