// A small table of records for rare calls: no locks, no allocation but of pages.
#pragma once

#include <string.h>

#include "interpose/types.h"

namespace sluice::interpose {

/// In pages that double; entries are found by a hash of their first word, which is not 0; deletions
/// leave no tombstones.
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
  /// Takes out what `is_meant` says, which may change the entry and is asked once for each or, if
  /// entries are taken out, sometimes again.
  template <class F>
  void erase_if(F is_meant) {
    for (uint64_t i = 0; i < capacity_;) {
      if (word(entries_[i]) != 0 && is_meant(entries_[i])) {
        erase(&entries_[i]);  // may move another one here
      } else {
        ++i;
      }
    }
  }
  bool empty() const { return used_ == 0; }
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

}  // namespace sluice::interpose
