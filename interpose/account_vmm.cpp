// Physical memory that the program maps itself (cuMemCreate, cuMemMap). It lives until its last
// handle reference and its last mapping are gone, in whichever order; then, and only then, its
// charge ends. These calls are rare and slow, one lock and short tables do.
#include "interpose/account.h"
#include "interpose/hash_table.h"
#include "interpose/say.h"

namespace sluice::interpose {
namespace {

struct Physical {
  uint64_t handle;  // 0 = empty
  uint64_t bytes;
  int device;
  uint32_t references;
  uint32_t mappings;
  bool exported;  // other holders may keep it when this process lets go of it
};
struct Mapping {
  uint64_t address;  // 0 = empty
  uint64_t bytes;
  uint64_t handle;
};

constinit Table<Physical> physicals;
constinit Table<Mapping> mappings;
Lock lock;

// Returns true if other holders may keep it: then it stays charged until it is seen to be gone.
bool let_go_if_unused(Physical* physical) {
  if (physical->references != 0 || physical->mappings != 0) return false;
  const bool exported = physical->exported && physical->bytes != 0;
  if (exported) {
    charge_pass(physical->device, physical->bytes);
  } else {
    charge_release(physical->device, physical->bytes);
  }
  physicals.erase(physical);
  return exported;
}

// Another thread's release or unmapping is about to return, and the driver has given the handle
// anew: what is left of the old memory goes by a name of its own until then.
void handle_given_anew(Physical* ended) {
  static uint64_t ended_before;
  constexpr uint64_t kEnded = uint64_t{1} << 63;
  if (ended->references != 0) return;
  Physical old = *ended;
  (void)let_go_if_unused(ended);
  if (old.mappings == 0) return;
  physicals.erase(ended);
  const uint64_t handle = old.handle;
  old.handle = kEnded | ++ended_before;
  (void)physicals.insert(old);  // there is room: one has just gone
  mappings.each([&](Mapping& m) {
    if (m.handle == handle) m.handle = old.handle;
  });
}

// The mapping that contains an address. Starts are what programs pass; the search is for the
// others.
Mapping* mapping_of(uint64_t address) {
  Mapping* found = mappings.find(address);
  if (found != nullptr) return found;
  mappings.each([&](Mapping& m) {
    if (address - m.address < m.bytes) found = &m;
  });
  return found;
}

// The lowest mapping that begins within the range.
Mapping* mapping_first(uint64_t from, uint64_t end) {
  Mapping* first = nullptr;
  mappings.each([&](Mapping& m) {
    if (m.address < from || m.address >= end) return;
    if (first == nullptr || m.address < first->address) first = &m;
  });
  return first;
}

// As let_go_if_unused.
bool mapping_end(Mapping* mapping) {
  Physical* physical = physicals.find(mapping->handle);
  mappings.erase(mapping);
  if (physical == nullptr) return false;
  --physical->mappings;
  return let_go_if_unused(physical);
}

}  // namespace

bool vmm_created(CUmemGenericAllocationHandle handle, int device, uint64_t bytes) {
  const LockScope scope(lock);
  if (Physical* ended = physicals.find(handle); ended != nullptr) handle_given_anew(ended);
  if (SLUICE_LIKELY(physicals.insert(Physical{handle, bytes, device, 1, 0, false}))) return true;
  unrecorded_say("an allocation's record");
  return false;
}

void vmm_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address) {
  const LockScope scope(lock);
  const Mapping* mapping = mapping_of(address);
  // The driver answers with the handle the memory was created with; one that we never saw is an
  // import.
  Physical* physical = physicals.find(mapping != nullptr ? mapping->handle : handle);
  if (physical != nullptr) ++physical->references;
}

bool vmm_release_begin(CUmemGenericAllocationHandle handle) {
  const LockScope scope(lock);
  Physical* physical = physicals.find(handle);
  if (physical == nullptr || physical->references == 0) return false;
  --physical->references;
  return true;
}

bool vmm_release_end(CUmemGenericAllocationHandle handle, bool released) {
  const LockScope scope(lock);
  Physical* physical = physicals.find(handle);
  if (physical == nullptr) return true;
  if (!released) ++physical->references;
  return !let_go_if_unused(physical);
}

bool vmm_mapped(CUmemGenericAllocationHandle handle, CUdeviceptr address, uint64_t bytes) {
  const LockScope scope(lock);
  Physical* physical = physicals.find(handle);
  if (physical == nullptr) return true;
  if (SLUICE_UNLIKELY(!mappings.insert(Mapping{address, bytes, handle}))) {
    unrecorded_say("a mapping's record");
    return false;
  }
  ++physical->mappings;
  return true;
}

// Imports have no record: what lies behind one in the range is looked for in the whole table.
// True: all of the range was known, and no other holder may keep any of it.
bool vmm_unmapped(CUdeviceptr address, uint64_t bytes) {
  const LockScope scope(lock);
  const uint64_t end = address + bytes;
  bool whole = true;
  for (uint64_t at = address; at < end;) {
    Mapping* mapping = mappings.find(at);
    if (mapping == nullptr) {
      whole = false;
      mapping = mapping_first(at, end);
    }
    if (mapping == nullptr) break;
    at = mapping->address + mapping->bytes;
    whole &= !mapping_end(mapping);
  }
  return whole;
}

void vmm_sum(uint64_t* bytes_by_device) {
  const LockScope scope(lock);
  physicals.each([&](Physical& p) { bytes_by_device[p.device] += p.bytes; });
}

void vmm_reset_after_fork() {
  lock.reset_after_fork();
  physicals.clear();
  mappings.clear();
}

int vmm_hold(CUmemGenericAllocationHandle handle) {
  const LockScope scope(lock);
  Physical* physical = physicals.find(handle);
  if (physical == nullptr || physical->bytes == 0) return -1;
  ++physical->mappings;
  return physical->device;
}

void vmm_unhold(CUmemGenericAllocationHandle handle) {
  const LockScope scope(lock);
  Physical* physical = physicals.find(handle);
  if (physical == nullptr || physical->mappings == 0) return;
  --physical->mappings;
  (void)let_go_if_unused(physical);
}

bool vmm_mapping_at(CUdeviceptr address, VmmMapping* out) {
  const LockScope scope(lock);
  const Mapping* found = mapping_of(address);
  if (found == nullptr) return false;
  *out = VmmMapping{found->handle, found->address + found->bytes};
  return true;
}

bool vmm_known(CUmemGenericAllocationHandle handle) {
  const LockScope scope(lock);
  return physicals.find(handle) != nullptr;
}

void vmm_exported(CUmemGenericAllocationHandle handle) {
  const LockScope scope(lock);
  Physical* physical = physicals.find(handle);
  if (physical != nullptr) physical->exported = true;
}

bool vmm_is_exported(CUmemGenericAllocationHandle handle) {
  const LockScope scope(lock);
  const Physical* physical = physicals.find(handle);
  return physical != nullptr && physical->exported;
}

}  // namespace sluice::interpose
