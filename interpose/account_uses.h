// Sparse arrays and multicast objects that hold memory of cuMemCreate (uses.h), and the moments at
// which they hold it no more: an unmapping in a stream is over when the stream has come to it.
#pragma once

#include "interpose/resolve.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// Uses that the driver is about to be asked for: consecutive tickets.
struct Tickets {
  uint64_t first = 0;
  uint64_t count = 0;
};

// Each begin is followed by its end, with the driver's answer. False: there is no memory for the
// record, the driver is not to be asked, and the sentence was said.
[[nodiscard]] bool array_maps_begin(const CUarrayMapInfo* list, unsigned count, const void* context,
                                    Tickets* out);
/// `stream` is where the driver was asked to do it.
void array_maps_end(const CUarrayMapInfo* list, unsigned count, const Tickets& tickets,
                    CUstream stream, CUresult result);
[[nodiscard]] bool bind_begin(CUmemGenericAllocationHandle object, uint64_t offset,
                              CUmemGenericAllocationHandle handle, uint64_t bytes, Tickets* out);
[[nodiscard]] bool bind_address_begin(CUmemGenericAllocationHandle object, uint64_t offset,
                                      CUdeviceptr address, uint64_t bytes, Tickets* out);
void bind_end(const Tickets& tickets, CUresult result);
void unbound(CUmemGenericAllocationHandle object, int device, uint64_t offset, uint64_t bytes);

/// After vmm_exported: what is bound to a multicast object stays so until it is unbound, for the
/// object may outlive the process's handle.
void uses_exported(CUmemGenericAllocationHandle object);

/// An array has been destroyed, or a context with all of its arrays.
void uses_object_end(const void* array);
void uses_context_end(const void* context);
void uses_context_moves(const void* from, const void* to);

/// Looks which uses are over by now: streams have come to them, or their multicast object is gone.
/// Also before a handle that the driver gave is put on record: it may be that of such an object.
extern uint32_t uses_open;  // there may be some
SLUICE_NOINLINE void uses_read();
inline void uses_settle() {
  if (SLUICE_UNLIKELY(load_relaxed(uses_open) != 0)) uses_read();
}
void uses_reset_after_fork();

}  // namespace sluice::interpose
