// Where movable memory is: blocks of whole granules, each behind one mapping of the driver, and the
// allocations that lie in them. A block of small allocations is shared by those of one context and
// cut into units of 512 bytes; a large allocation has a block of its own. Knows neither the driver
// nor the account; the caller has the lock.
#pragma once

#include "interpose/types.h"

namespace sluice::interpose {

/// What allocations begin at multiples of, as the driver's do.
inline constexpr uint64_t kUnitBytes = 512;

/// The first unit of an allocation says what it is.
struct Unit {
  uint64_t asked;  // bytes, as the program asked
  uint64_t id;     // never used again for another one
  uint32_t gone;   // its free is under way
};

struct Block {
  uint64_t address;
  uint64_t bytes;
  uint64_t handle;      // the driver's, of the memory behind it; 0 = there is none
  const void* context;  // CUcontext; its end takes the block along
  int32_t device;
  bool mapped;
  bool pinned;  // somebody outside may know the memory: never moved again
  char* host;   // the contents while the memory is out; else nullptr
  uint64_t unit_bytes;
  uint32_t unit_count;
  uint32_t units_used;
  uint32_t run_max;  // no run of free units is longer
  uint64_t* used;    // a bit for each unit
  uint64_t* starts;  // the first units of allocations
  Unit* units;

  bool is_shared() const { return unit_count > 1; }
  /// The contents are in the host, and are to be brought back.
  bool is_out() const { return host != nullptr; }
  /// The driver has memory for it, which may also be so while the contents are out: it did not take
  /// the memory back, or could not map it again.
  bool is_on_device() const { return handle != 0; }
};

/// An allocation, found by an address inside it.
struct Placed {
  Block* block;
  Unit* unit;
  uint64_t address;
};

class Blocks {
 public:
  /// A block at `address`, without allocations; nullptr without memory for its record.
  Block* add(uint64_t address, uint64_t bytes, bool shared);
  /// The block is empty; its record is void afterwards.
  void remove(Block* block);

  /// The block that contains the address; nullptr if none does.
  Block* at(uint64_t address) const;
  /// The allocation that contains the address.
  bool find(uint64_t address, Placed* out) const;
  /// Places an allocation in the block; false when there is no room.
  [[nodiscard]] bool place(Block& block, uint64_t bytes, Placed* out);
  /// The same in any shared block of the context.
  [[nodiscard]] bool place_shared(const void* context, uint64_t bytes, Placed* out);
  void take_out(const Placed& placed);

  uint32_t count() const { return count_; }
  /// By address, lowest first; adding and removing changes who is where.
  Block& operator[](uint32_t index) const { return *sorted_[index]; }
  /// In a fork child: the parent's memory means nothing.
  void reset_after_fork();

 private:
  uint32_t position(uint64_t address) const;  // of the first block that begins behind it
  bool grow();

  Block** sorted_ = nullptr;
  uint32_t count_ = 0;
  uint32_t capacity_ = 0;
  uint64_t next_id_ = 0;
};

}  // namespace sluice::interpose
