// What this process has allocated: driver object -> bytes, device, context. Constant time whatever
// the number of live objects. Knows neither the account nor the driver.
//
// Sharded open addressing with backward-shift deletion; each shard has its own lock, so threads
// that allocate at the same time rarely meet. Memory comes from the kernel in pages.
#pragma once

#include "interpose/types.h"

namespace sluice::interpose {

enum class RecordKind : uint32_t {
  kPointer = 1,  // cuMemAlloc and friends: freed by cuMemFree
  kPooled = 2,   // stream-ordered: charged through its pool, `context` is the pool
  kArray = 3,
  kMipmap = 4,
  kContext = 5,    // made by cuCtxCreate; `bytes` is how often it is attached
  kGraphExec = 6,  // an executable graph that allocates: what it needs; not charged by the record
  kFunction = 7,   // a kernel's handle that was given out; `bytes` is the round of unloads
  kVariable = 8,   // the same of a variable's address
  kLoaded = 9,     // a module, library, green context or limit: what it is estimated to take
  kGreen = 10,     // a green context; `context` is what it was made (green.h)
  kKernel = 11,    // as kFunction, of no context; or of a context in which it was asked about
  kModule = 12,    // where it is loaded; takes nothing by itself
  kManaged = 13,   // of a kPointer that is managed memory, besides that
  kExported = 14,  // of a kPointer that other processes may have open, besides that
  kLibrary = 15,   // loaded with its first use: what that takes; or of a context that has used it
  kLibraryKernel =
      16,       // a kernel that was given out; `bytes` is its library's number (libraries.h)
  kLimit = 17,  // a limit of a context: what is reserved for it (context_limits.h)
};

struct Record {
  uint64_t key;  // the driver's pointer or handle
  uint64_t bytes;
  const void* context;  // what its end takes along: the CUcontext, or the pool of kPooled
  RecordKind kind;
  int32_t device;
};

/// The key of what `owner` has in `context`, for kinds whose records move with a context.
inline uint64_t key_in_context(const void* owner, const void* context) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;
  return reinterpret_cast<uint64_t>(owner) ^ reinterpret_cast<uint64_t>(context) * kOdd;
}

class Records {
 public:
  /// False when there is no memory for the record.
  [[nodiscard]] bool insert(const Record& record);
  /// Takes the record of (kind, key) out; false if there is none.
  [[nodiscard]] bool remove(RecordKind kind, uint64_t key, Record* out);
  [[nodiscard]] bool find(RecordKind kind, uint64_t key, Record* out);
  /// Takes every record of a context out, adding its bytes to bytes_by_device[kDevicesMax]. Visits
  /// all records.
  void remove_context(const void* context, uint64_t* bytes_by_device);
  /// What was of one context is another's, which may be where records of its are already: those of
  /// kLoaded and kLimit have the context in their keys.
  void move_context(const void* from, const void* to,
                    uint64_t (*key_in)(const Record& record, const void* context));
  /// Adds the bytes of every record of that kind by device.
  void sum(RecordKind kind, uint64_t* bytes_by_device);
  /// The bytes of every record of that kind whose `context` this is.
  uint64_t bytes_of(RecordKind kind, const void* context);
  uint64_t count();
  /// Writes as many records of that kind as there is room for; how many there are.
  uint64_t list(RecordKind kind, Record* out, uint64_t room);
  /// In a fork child: the locks are free, and CUDA objects of the parent mean nothing.
  void reset_after_fork();

 private:
  static constexpr unsigned kShards = 64;
  struct Shard {
    BriefLock lock;
    Record* entries;    // kind 0 = empty
    uint64_t capacity;  // a power of two
    uint64_t used;
  };
  static uint64_t hash(RecordKind kind, uint64_t key);
  Shard& shard(uint64_t h) { return shards_[h >> 58]; }
  static Record* slot_find(Shard& shard, RecordKind kind, uint64_t key, uint64_t h);
  static bool grow(Shard& shard);
  static void erase(Shard& shard, Record* record);
  static bool take_keyed(Shard& shard, const void* context, Record* out);

  Shard shards_[kShards]{};
};

}  // namespace sluice::interpose
