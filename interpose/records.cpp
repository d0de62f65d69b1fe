// See records.h.
#include "interpose/records.h"

#include <string.h>

namespace sluice::interpose {

uint64_t Records::hash(RecordKind kind, uint64_t key) {
  uint64_t h = (key ^ (static_cast<uint64_t>(kind) << 60)) * 0x9E3779B97F4A7C15u;
  return h ^ (h >> 29);
}

// The entry of (kind, key), or the empty one where it would go; nullptr when the shard has no table
// yet.
Record* Records::slot_find(Shard& shard, RecordKind kind, uint64_t key, uint64_t h) {
  if (shard.entries == nullptr) return nullptr;
  const uint64_t mask = shard.capacity - 1;
  for (uint64_t i = h & mask;; i = (i + 1) & mask) {
    Record& r = shard.entries[i];
    if (r.kind == RecordKind{} || (r.key == key && r.kind == kind)) return &r;
  }
}

bool Records::grow(Shard& shard) {
  const uint64_t capacity = shard.capacity == 0 ? 128 : shard.capacity * 2;
  auto* entries = static_cast<Record*>(pages_allocate(capacity * sizeof(Record)));
  if (entries == nullptr) return false;
  Shard bigger{{}, entries, capacity, 0};
  for (uint64_t i = 0; i < shard.capacity; ++i) {
    const Record& r = shard.entries[i];
    if (r.kind == RecordKind{}) continue;
    *slot_find(bigger, r.kind, r.key, hash(r.kind, r.key)) = r;
  }
  if (shard.entries != nullptr) pages_free(shard.entries, shard.capacity * sizeof(Record));
  shard.entries = entries;
  shard.capacity = capacity;
  return true;
}

void Records::erase(Shard& shard, Record* record) {
  const uint64_t mask = shard.capacity - 1;
  uint64_t hole = static_cast<uint64_t>(record - shard.entries);
  for (uint64_t i = (hole + 1) & mask; shard.entries[i].kind != RecordKind{}; i = (i + 1) & mask) {
    const uint64_t home = hash(shard.entries[i].kind, shard.entries[i].key) & mask;
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    shard.entries[hole] = shard.entries[i];
    hole = i;
  }
  memset(&shard.entries[hole], 0, sizeof(Record));
  --shard.used;
}

bool Records::insert(const Record& record) {
  const uint64_t h = hash(record.kind, record.key);
  Shard& s = shard(h);
  const LockScope scope(s.lock);
  if (2 * (s.used + 1) > s.capacity && !grow(s)) return false;
  Record* r = slot_find(s, record.kind, record.key, h);
  if (r->kind == RecordKind{}) ++s.used;
  *r = record;
  return true;
}

bool Records::remove(RecordKind kind, uint64_t key, Record* out) {
  const uint64_t h = hash(kind, key);
  Shard& s = shard(h);
  const LockScope scope(s.lock);
  Record* r = slot_find(s, kind, key, h);
  if (r == nullptr || r->kind == RecordKind{}) return false;
  *out = *r;
  erase(s, r);
  return true;
}

bool Records::find(RecordKind kind, uint64_t key, Record* out) {
  const uint64_t h = hash(kind, key);
  Shard& s = shard(h);
  const LockScope scope(s.lock);
  const Record* r = slot_find(s, kind, key, h);
  if (r == nullptr || r->kind == RecordKind{}) return false;
  *out = *r;
  return true;
}

// The owner of a handle may have had the address that is a context's now.
static bool counts_bytes(RecordKind kind) {
  return kind != RecordKind::kFunction && kind != RecordKind::kVariable &&
         kind != RecordKind::kKernel && kind != RecordKind::kManaged &&
         kind != RecordKind::kExported && kind != RecordKind::kLibrary &&
         kind != RecordKind::kLibraryKernel;
}

void Records::remove_context(const void* context, uint64_t* bytes_by_device) {
  for (Shard& s : shards_) {
    const LockScope scope(s.lock);
    for (uint64_t i = 0; i < s.capacity;) {
      Record& r = s.entries[i];
      if (r.kind == RecordKind{} || r.context != context) {
        ++i;
        continue;
      }
      if (counts_bytes(r.kind)) bytes_by_device[r.device] += r.bytes;
      erase(s, &r);  // may move a later one here: look at i again
    }
  }
}

bool Records::take_keyed(Shard& s, const void* context, Record* out) {
  const LockScope scope(s.lock);
  for (uint64_t i = 0; i < s.capacity; ++i) {
    const RecordKind kind = s.entries[i].kind;
    const bool keyed = kind == RecordKind::kLoaded || kind == RecordKind::kLimit;
    if (!keyed || s.entries[i].context != context) continue;
    *out = s.entries[i];
    erase(s, &s.entries[i]);
    return true;
  }
  return false;
}

void Records::move_context(const void* from, const void* to,
                           uint64_t (*key_in)(const Record& record, const void* context)) {
  for (Shard& s : shards_) {
    Record moved;
    while (take_keyed(s, from, &moved)) {
      Record there;
      moved.key = key_in(moved, to);
      moved.context = to;
      if (find(moved.kind, moved.key, &there)) moved.bytes += there.bytes;
      (void)insert(moved);  // without memory it stays charged until the process ends
    }
    const LockScope scope(s.lock);
    for (uint64_t i = 0; i < s.capacity; ++i) {
      if (s.entries[i].kind != RecordKind{} && s.entries[i].context == from)
        s.entries[i].context = to;
    }
  }
}

void Records::sum(RecordKind kind, uint64_t* bytes_by_device) {
  for (Shard& s : shards_) {
    const LockScope scope(s.lock);
    for (uint64_t i = 0; i < s.capacity; ++i) {
      if (s.entries[i].kind == kind) bytes_by_device[s.entries[i].device] += s.entries[i].bytes;
    }
  }
}

uint64_t Records::bytes_of(RecordKind kind, const void* context) {
  uint64_t total = 0;
  for (Shard& s : shards_) {
    const LockScope scope(s.lock);
    for (uint64_t i = 0; i < s.capacity; ++i) {
      const Record& r = s.entries[i];
      if (r.kind == kind && r.context == context) total += r.bytes;
    }
  }
  return total;
}

uint64_t Records::count() {
  uint64_t total = 0;
  for (Shard& s : shards_) {
    const LockScope scope(s.lock);
    total += s.used;
  }
  return total;
}

uint64_t Records::list(RecordKind kind, Record* out, uint64_t room) {
  uint64_t found = 0;
  for (Shard& s : shards_) {
    const LockScope scope(s.lock);
    for (uint64_t i = 0; i < s.capacity; ++i) {
      if (s.entries[i].kind != kind) continue;
      if (found < room) out[found] = s.entries[i];
      ++found;
    }
  }
  return found;
}

void Records::reset_after_fork() {
  for (Shard& s : shards_) {
    s.lock.reset_after_fork();
    if (s.entries != nullptr) pages_free(s.entries, s.capacity * sizeof(Record));
    s.entries = nullptr;
    s.capacity = s.used = 0;
  }
}

}  // namespace sluice::interpose
