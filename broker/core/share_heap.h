// A binary heap of shares by a key, least first, and among equals the one that has waited longest.
// Each share knows its place, so that it can be moved or taken out without a search; it is in at
// most one heap at a time.
#pragma once

#include <cassert>
#include <cstdint>
#include <vector>

namespace sluice::core {

struct Share;

/// Where a share is in its heap. `since` orders equals.
struct HeapPlace {
  static constexpr std::uint32_t kNowhere = UINT32_MAX;
  std::uint32_t at = kNowhere;
  std::uint64_t since = 0;
};

/// `Place` finds the HeapPlace of a share.
template <class Key, HeapPlace& (*Place)(Share&)>
class ShareHeap {
 public:
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  Share* first() const { return entries_.empty() ? nullptr : entries_.front().share; }
  Key first_key() const { return entries_.front().key; }

  void insert(Share& share, Key key) {
    assert(Place(share).at == HeapPlace::kNowhere && "a share is in one heap at a time");
    entries_.push_back(Entry{key, Place(share).since, &share});
    rise(entries_.size() - 1);
  }
  void remove(Share& share) {
    const std::size_t at = place(share);
    Place(share).at = HeapPlace::kNowhere;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (at == entries_.size()) return;
    entries_[at] = last;
    settle(at);
  }
  bool contains(Share& share) const {
    const std::size_t at = Place(share).at;
    return at < entries_.size() && entries_[at].share == &share;
  }
  Key key_of(Share& share) const { return entries_[place(share)].key; }
  /// True if the first share of this heap goes before that of the other one, which may be empty.
  bool before(const ShareHeap& other) const {
    return !empty() && (other.empty() || before(entries_.front(), other.entries_.front()));
  }
  /// No entry goes before the one above it.
  bool ordered() const {
    for (std::size_t i = 1; i < entries_.size(); ++i)
      if (before(entries_[i], entries_[(i - 1) / 2])) return false;
    return true;
  }

 private:
  struct Entry {
    Key key;
    std::uint64_t since;
    Share* share;
  };
  static bool before(const Entry& a, const Entry& b) {
    return a.key != b.key ? a.key < b.key : a.since < b.since;
  }
  std::size_t place(Share& share) const {
    assert(contains(share));
    return Place(share).at;
  }
  void put(std::size_t at, const Entry& entry) {
    entries_[at] = entry;
    Place(*entry.share).at = static_cast<std::uint32_t>(at);
  }
  void settle(std::size_t at) {
    if (at > 0 && before(entries_[at], entries_[(at - 1) / 2]))
      rise(at);
    else
      sink(at);
  }
  void rise(std::size_t at) {
    const Entry entry = entries_[at];
    for (; at > 0 && before(entry, entries_[(at - 1) / 2]); at = (at - 1) / 2)
      put(at, entries_[(at - 1) / 2]);
    put(at, entry);
  }
  void sink(std::size_t at) {
    const Entry entry = entries_[at];
    for (std::size_t child = 2 * at + 1; child < entries_.size(); child = 2 * at + 1) {
      if (child + 1 < entries_.size() && before(entries_[child + 1], entries_[child])) ++child;
      if (!before(entries_[child], entry)) break;
      put(at, entries_[child]);
      at = child;
    }
    put(at, entry);
  }

  std::vector<Entry> entries_;
};

}  // namespace sluice::core
