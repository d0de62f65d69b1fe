// Physical memory that the program maps itself (cuMemCreate, cuMemMap). It lives until its last
// handle reference and its last mapping are gone, in whichever order; then, and only then, its
// charge ends. These calls are rare and slow, one lock and short tables do.
#include <string.h>

#include "interpose/account.h"
#include "interpose/say.h"

namespace sluice::interpose {
namespace {

struct Physical {
  uint64_t handle;  // 0 = empty
  uint64_t bytes;
  int device;
  uint32_t references;
  uint32_t mappings;
};
struct Mapping {
  uint64_t address;  // 0 = empty
  uint64_t bytes;
  uint64_t handle;
};

// A table in pages that doubles; entries are found by a hash of their first word, deletions leave
// no tombstones.
template <class T>
class Table {
 public:
  T* find(uint64_t key) {
    if (entries_ == nullptr) return nullptr;
    for (uint64_t i = home(key);; i = (i + 1) & mask()) {
      if (word(entries_[i]) == key) return &entries_[i];
      if (word(entries_[i]) == 0) return nullptr;
    }
  }
  bool insert(const T& entry) {
    if (2 * (used_ + 1) > capacity_ && !grow()) return false;
    place(entry);
    ++used_;
    return true;
  }
  void erase(T* entry) {
    uint64_t hole = static_cast<uint64_t>(entry - entries_);
    for (uint64_t i = (hole + 1) & mask(); word(entries_[i]) != 0; i = (i + 1) & mask()) {
      if (((i - home(word(entries_[i]))) & mask()) < ((i - hole) & mask())) continue;
      entries_[hole] = entries_[i];
      hole = i;
    }
    memset(&entries_[hole], 0, sizeof(T));
    --used_;
  }
  template <class F>
  void each(F visit) {
    for (uint64_t i = 0; i < capacity_; ++i) {
      if (word(entries_[i]) != 0) visit(entries_[i]);
    }
  }
  void clear() {
    if (entries_ != nullptr) pages_free(entries_, capacity_ * sizeof(T));
    entries_ = nullptr;
    capacity_ = used_ = 0;
  }

 private:
  static uint64_t word(const T& entry) { return *reinterpret_cast<const uint64_t*>(&entry); }
  uint64_t mask() const { return capacity_ - 1; }
  uint64_t home(uint64_t key) const { return ((key * 0x9E3779B97F4A7C15u) >> 20) & mask(); }
  void place(const T& entry) {
    uint64_t i = home(word(entry));
    while (word(entries_[i]) != 0) i = (i + 1) & mask();
    entries_[i] = entry;
  }
  bool grow() {
    const uint64_t capacity = capacity_ == 0 ? 128 : capacity_ * 2;
    auto* entries = static_cast<T*>(pages_allocate(capacity * sizeof(T)));
    if (entries == nullptr) return false;
    T* old = entries_;
    const uint64_t old_capacity = capacity_;
    entries_ = entries;
    capacity_ = capacity;
    for (uint64_t i = 0; i < old_capacity; ++i) {
      if (word(old[i]) != 0) place(old[i]);
    }
    if (old != nullptr) pages_free(old, old_capacity * sizeof(T));
    return true;
  }

  T* entries_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t used_ = 0;
};

constinit Table<Physical> physicals;
constinit Table<Mapping> mappings;
Lock lock;

void let_go_if_unused(Physical* physical) {
  if (physical->references != 0 || physical->mappings != 0) return;
  charge_release(physical->device, physical->bytes);
  physicals.erase(physical);
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

void mapping_end(Mapping* mapping) {
  Physical* physical = physicals.find(mapping->handle);
  mappings.erase(mapping);
  if (physical == nullptr) return;
  --physical->mappings;
  let_go_if_unused(physical);
}

}  // namespace

bool vmm_created(CUmemGenericAllocationHandle handle, int device, uint64_t bytes) {
  const LockScope scope(lock);
  // Another thread's release is about to return, and the driver has given the handle anew.
  if (Physical* ended = physicals.find(handle); ended != nullptr) let_go_if_unused(ended);
  if (SLUICE_LIKELY(physicals.insert(Physical{handle, bytes, device, 1, 0}))) return true;
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

void vmm_release_end(CUmemGenericAllocationHandle handle, bool released) {
  const LockScope scope(lock);
  Physical* physical = physicals.find(handle);
  if (physical == nullptr) return;
  if (!released) ++physical->references;
  let_go_if_unused(physical);
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
// True: all of the range was known.
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
    mapping_end(mapping);
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

}  // namespace sluice::interpose
