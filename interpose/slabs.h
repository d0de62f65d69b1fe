// A table that grows and never moves: its records lie in slabs, each twice as large as the one
// before, which are never given back. Whoever has an index below count(), or an address, may go on
// with it without a lock; adding is for one thread at a time.
#pragma once

#include <string.h>

#include "interpose/types.h"

namespace sluice::interpose {

/// `T` means nothing when all its bytes are zero. Slabs come from the kernel as they are needed,
/// the first one with room for kFirst.
template <class T, uint32_t kFirst>
class Slabs {
 public:
  uint32_t count() const { return load_acquire(count_); }

  T& operator[](uint32_t index) const {
    const unsigned slab = slab_of(index);
    return slabs_[slab][index - first_in(slab)];
  }

  /// The record behind the last one, all bytes zero, to be filled and then published. The same one
  /// until that is done. nullptr = no memory.
  T* next() {
    const unsigned slab = slab_of(count_);
    if (slab >= kSlabs) return nullptr;
    if (slabs_[slab] == nullptr) {
      slabs_[slab] = static_cast<T*>(pages_allocate((size_t{kFirst} << slab) * sizeof(T)));
      if (slabs_[slab] == nullptr) return nullptr;
    }
    return &(*this)[count_];
  }
  void publish() { store_release(count_, count_ + 1); }

  /// Forgets all records, as a fork child does, and keeps their memory.
  void clear() {
    for (uint32_t i = 0; i < count_; ++i) memset(static_cast<void*>(&(*this)[i]), 0, sizeof(T));
    store_release(count_, 0u);
  }

 private:
  static_assert(kFirst != 0 && (kFirst & (kFirst - 1)) == 0);
  // More records than a process can have objects of any kind.
  static constexpr unsigned kSlabs = 24;
  static unsigned slab_of(uint32_t index) {
    return 31u - static_cast<unsigned>(__builtin_clz(index / kFirst + 1));
  }
  static uint32_t first_in(unsigned slab) { return kFirst * ((1u << slab) - 1); }

  T* slabs_[kSlabs] = {};
  uint32_t count_ = 0;
};

}  // namespace sluice::interpose
