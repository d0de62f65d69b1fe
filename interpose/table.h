// The one table: for each of the driver's entry points its name, base name, version, real pointer
// and hook, generated at build time (see generate.py). Pure look-ups; it does not know how the
// driver is found (resolve.h) nor what hooks do.
//
// Entry points that share a base name are variants of one call: cuMemAlloc and cuMemAlloc_v2, or
// cuLaunchKernel and cuLaunchKernel_ptsz. cuGetProcAddress is asked for a base name and a version
// and returns one of them.
#pragma once

#include <stdint.h>

#include "driver_table.gen.h"

namespace sluice::interpose {

/// The real functions, filled by resolve_driver(). One that this driver lacks answers with an
/// error.
extern DriverTable driver;
inline void** driver_pointers() { return reinterpret_cast<void**>(&driver); }

/// The index of an exact driver or NVML name, -1 if there is none. Driver entries come first.
int entry_find(const char* name);
/// Our function for an entry, nullptr when it is not hooked.
void* entry_hook(int entry);
const char* entry_name(int entry);
inline bool entry_is_nvml(int entry) { return entry >= kEntryCount; }
/// Bytes of a name that can name an entry at all; cheap enough for every dlsym of the process. The
/// first letters are in dlsym.S as well.
inline bool name_may_be_ours(const char* name) {
  return (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z') ||
         (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l');
}

/// What to answer for a function that the driver's cuGetProcAddress returned for (base, version,
/// flags): the hook of the same ABI, or `real` itself. Routing goes by the pointer; a pointer that
/// no plain look-up knows is identified by the versions of its variants, unless the request is
/// newer than this table. `known` tells whether the name is in the table, or among those that pass
/// without being in it (the last of unhooked.tsv).
void* route_pointer(const char* base, void* real, int version, uint64_t flags, bool* known);

}  // namespace sluice::interpose
