// Memory between processes. It is charged where it was allocated; when that process frees it or
// ends while others hold it, the driver's charge passes to one of them, and the residual follows
// (residual.h). A process that has shared memory looks again when others of its tenant change.
//
// An import is a load: what it takes is known once it is there, by the driver's figure for the
// process and by what the device has left (memory/kept.h). What the tenant is charged for already
// takes nothing. An import that does not fit the quota is taken back.
#include <fcntl.h>
#include <unistd.h>

#include "interpose/account.h"
#include "interpose/account_uses.h"
#include "interpose/captures.h"
#include "interpose/memory/kept.h"
#include "interpose/residual.h"
#include "interpose/say.h"
#include "interpose/swap.h"
#include "interpose/touch.h"

using namespace sluice::interpose;

namespace {

// `call` gives memory away or takes some that another process may have allocated.
template <class Call>
CUresult share(Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = call();
  if (result != CUDA_SUCCESS || process_mode() != Mode::kActive) return result;
  residual_shared();
  residual_settle_all();
  return result;
}

// `call` imports memory into `*out`; `undo` lets go of it.
template <class Out, class Call, class Undo>
CUresult import(Out* out, Call call, Undo undo) {
  if (out == nullptr) return share(call);  // the driver says no
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const Out before = *out;
  for (bool again = false;; again = true) {
    ImportCharge charged;
    const CUresult result = call();
    if (result != CUDA_SUCCESS || process_mode() != Mode::kActive) return result;
    const ErrnoGuard guard;
    residual_shared();
    const bool measured_fits = residual_settle_import();
    if (measured_fits && charged.fits()) return result;
    {
      LettingGo letting_go;
      letting_go.begin();
      (void)relaxed_call([&] { return undo(*out); });
      residual_settle_all();
    }
    *out = before;
    if (measured_fits && !again && charged.was_others()) continue;
    if (measured_fits) charged.refuse();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// The handle stands for the whole allocation, whichever of its addresses was given. Without memory
// for it, what its free gives back is not waited for.
void pointer_exported(CUdeviceptr pointer) {
  const ErrnoGuard guard;
  CUdeviceptr base = 0;
  Record record;
  if (driver.cuMemGetAddressRange_v2(&base, nullptr, pointer) != CUDA_SUCCESS ||
      !process.records.find(RecordKind::kPointer, base, &record))
    return;
  record.kind = RecordKind::kExported;
  (void)process.records.insert(record);
}

// `call` lets go of such memory.
template <class Call>
CUresult share_end(Call call) {
  SharedEnd shared(residual_is_shared());
  const CUresult result = share(call);
  if (result != CUDA_SUCCESS) return result;
  shared.ended();
  // An exporter may keep its charge for what has just ended.
  residual_others_look();
  return result;
}

RateLimit ipc_refusals_said;

void ipc_refusal_say() {
  const ErrnoGuard guard;
  uint64_t skipped = 0;
  if (!ipc_refusals_said.allow(clock_now_ns(), &skipped)) return;
  Line line;
  line.text(
      "memory of this job may be moved to the host (swap), so cuIpcGetMemHandle has no handle for "
      "it; run the job without swap to share memory between its processes");
  ipc_refusals_said.say(line, skipped);
}

}  // namespace

// Movable memory has no handle of this kind: the other process's mapping could not be moved.
SLUICE_HOOK CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  if (swap_owns(pointer)) {
    ipc_refusal_say();
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return share([&] {
    const CUresult result = driver.cuIpcGetMemHandle(handle, pointer);
    if (result == CUDA_SUCCESS && process_mode() == Mode::kActive) pointer_exported(pointer);
    return result;
  });
}

SLUICE_HOOK CUresult cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle,
                                        unsigned int flags) {
  return import(
      pointer, [&] { return driver.cuIpcOpenMemHandle(pointer, handle, flags); },
      driver.cuIpcCloseMemHandle);
}

SLUICE_HOOK CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle,
                                           unsigned int flags) {
  return import(
      pointer, [&] { return driver.cuIpcOpenMemHandle_v2(pointer, handle, flags); },
      driver.cuIpcCloseMemHandle);
}

SLUICE_HOOK CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
  return share_end([&] { return driver.cuIpcCloseMemHandle(pointer); });
}

SLUICE_HOOK CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                                  CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
  return share([&] {
    const CUresult result = driver.cuMemExportToShareableHandle(out, handle, type, flags);
    if (result != CUDA_SUCCESS) return result;
    vmm_exported(handle);
    uses_exported(handle);
    return result;
  });
}

SLUICE_HOOK CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                    void* os_handle,
                                                    CUmemAllocationHandleType type) {
  return import(
      handle, [&] { return driver.cuMemImportFromShareableHandle(handle, os_handle, type); },
      driver.cuMemRelease);
}

SLUICE_HOOK CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr pointer, size_t bytes,
                                                   CUmemRangeHandleType type,
                                                   unsigned long long flags) {
  return share([&] {
    const CUresult result =
        driver.cuMemGetHandleForAddressRange(handle, pointer, bytes, type, flags);
    // Whoever has it may come to the memory at any time, so it stays where it is.
    for (CUdeviceptr at = pointer, end = pointer + bytes;
         result == CUDA_SUCCESS && at < end && swap_owns(at);) {
      at = swap_pin(at);
    }
    return result;
  });
}

SLUICE_HOOK CUresult cuMemPoolExportToShareableHandle(void* out, CUmemoryPool pool,
                                                      CUmemAllocationHandleType type,
                                                      unsigned long long flags) {
  return share([&] { return driver.cuMemPoolExportToShareableHandle(out, pool, type, flags); });
}

SLUICE_HOOK CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* out, CUdeviceptr pointer) {
  return share([&] { return driver.cuMemPoolExportPointer(out, pointer); });
}

// Nothing can be allocated from an imported pool, and what is reserved for it is its owner's.
SLUICE_HOOK CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* os_handle,
                                                        CUmemAllocationHandleType type,
                                                        unsigned long long flags) {
  return share([&] {
    const AccountScope account;
    const CUresult result = driver.cuMemPoolImportFromShareableHandle(pool, os_handle, type, flags);
    if (!account.active() || result != CUDA_SUCCESS) return result;
    const PoolsScope scope;
    (void)pool_add(*pool, -1);
    return result;
  });
}

SLUICE_HOOK CUresult cuMemPoolImportPointer(CUdeviceptr* pointer, CUmemoryPool pool,
                                            CUmemPoolPtrExportData* data) {
  return import(
      pointer, [&] { return driver.cuMemPoolImportPointer(pointer, pool, data); },
      driver.cuMemFree_v2);
}

SLUICE_HOOK CUresult cuImportExternalMemory(CUexternalMemory* memory,
                                            const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* what) {
  if (what == nullptr || what->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) {
    return import(
        memory, [&] { return driver.cuImportExternalMemory(memory, what); },
        driver.cuDestroyExternalMemory);
  }
  // An import takes the descriptor over: the driver gets one of its own, because an import that is
  // taken back leaves the program its descriptor.
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC own = *what;
  const CUresult result = import(
      memory,
      [&] {
        const ErrnoGuard guard;
        own.handle.fd = fcntl(what->handle.fd, F_DUPFD_CLOEXEC, 0);
        if (own.handle.fd < 0) own.handle.fd = what->handle.fd;
        const CUresult done = driver.cuImportExternalMemory(memory, &own);
        if (done != CUDA_SUCCESS && own.handle.fd != what->handle.fd) close(own.handle.fd);
        return done;
      },
      driver.cuDestroyExternalMemory);
  if (result == CUDA_SUCCESS && own.handle.fd != what->handle.fd) {
    const ErrnoGuard guard;
    close(what->handle.fd);
  }
  return result;
}

SLUICE_HOOK CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr* pointer, CUexternalMemory memory,
                                                     const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* what) {
  return share([&] { return driver.cuExternalMemoryGetMappedBuffer(pointer, memory, what); });
}

SLUICE_HOOK CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray* array, CUexternalMemory memory,
                                        const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* what) {
  return share([&] { return driver.cuExternalMemoryGetMappedMipmappedArray(array, memory, what); });
}

SLUICE_HOOK CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
  return share_end([&] { return driver.cuDestroyExternalMemory(memory); });
}
