// What holds memory of cuMemCreate besides its handle and its mappings: a sparse array that it is
// mapped into, tile by tile, and a multicast object that it is bound to. Neither has an address, so
// they are known by the object and the part of it. Knows no driver; its user has the lock.
//
// A part that is mapped anew just as it was mapped is followed exactly, as is one that lies within
// what is unmapped or unbound. A part of which only pieces are mapped anew or unmapped is held
// until the object ends: rather too long than too short.
#pragma once

#include "interpose/hash_table.h"

namespace sluice::interpose {

enum class PartKind : uint32_t { kTiles = 1, kMipTail = 2, kBound = 3 };

/// A box of tiles of one level and layer; a range of bytes of a mip tail; a range of a multicast
/// object, whose level is the device.
struct Part {
  uint64_t object;
  PartKind kind;
  uint32_t level;
  uint32_t layer;
  uint32_t reserved;
  uint64_t begin[3];
  uint64_t end[3];
  bool operator==(const Part& other) const = default;
};
static_assert(sizeof(Part) == 24 + 6 * 8, "hashed as bytes");

struct Use {
  uint64_t key;     // 0 = empty
  uint64_t handle;  // of the memory
  const void* context;
  uint64_t ending;  // the moment at which it ends (Uses::leave); 0 = not yet
  bool followed;    // it ends with its object, whose end is seen
  Part part;
};

class Uses {
 public:
  /// To be said before the driver is asked: `ticket` names the use, other than all before. False:
  /// there is no memory for it.
  [[nodiscard]] bool begin(uint64_t ticket, uint64_t handle, const void* context, const Part& part,
                           bool followed);
  /// The driver said yes; what the part held before is to end at the moment `ending` (0: it may be
  /// there all the same). True when that was something.
  bool settle(uint64_t ticket, uint64_t ending);
  /// It said no. False: there is no such use.
  bool cancel(uint64_t ticket, Use* out);
  /// The part is given up. How many uses are to end at that moment.
  uint32_t leave(const Part& part, uint64_t ending);
  /// Takes out the uses that `is_over` says, each of which is told to `ended`.
  template <class Is, class F>
  void end_if(Is is_over, F ended) {
    table_.erase_if([&](const Use& use) {
      const bool over = is_over(use);
      if (over) ended(use);
      return over;
    });
  }
  /// The object's end is not seen any more.
  void unfollow(uint64_t object);
  void context_moves(const void* from, const void* to);
  bool empty() const { return table_.empty(); }
  void clear() { table_.clear(); }

 private:
  Table<Use> table_;
};

}  // namespace sluice::interpose
