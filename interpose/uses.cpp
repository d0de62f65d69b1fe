// See uses.h.
#include "interpose/uses.h"

namespace sluice::interpose {
namespace {

constexpr uint64_t kOwnKey = uint64_t{1} << 63;  // of a use that is not, or no longer, its part's

uint64_t key_of(const Part& part) {
  constexpr uint64_t kPrime = 0x100000001B3;  // FNV-1a, by words
  uint64_t key = 0xCBF29CE484222325;
  uint64_t words[sizeof(Part) / sizeof(uint64_t)];
  memcpy(words, &part, sizeof part);
  for (const uint64_t word : words) {
    key = (key ^ word) * kPrime;
    key ^= key >> 29;
  }
  return (key & ~kOwnKey) | 1;
}

bool within(const Part& inner, const Part& outer) {
  if (inner.object != outer.object || inner.kind != outer.kind || inner.level != outer.level ||
      inner.layer != outer.layer) {
    return false;
  }
  for (int i = 0; i < 3; ++i) {
    if (inner.begin[i] < outer.begin[i] || inner.end[i] > outer.end[i]) return false;
  }
  return true;
}

}  // namespace

bool Uses::begin(uint64_t ticket, uint64_t handle, const void* context, const Part& part,
                 bool followed) {
  return table_.insert(Use{ticket | kOwnKey, handle, context, 0, followed, part});
}

bool Uses::settle(uint64_t ticket, uint64_t ending) {
  Use* found = table_.find(ticket | kOwnKey);
  if (found == nullptr) return false;
  Use use = *found;
  table_.erase(found);
  use.key = key_of(use.part);
  Use* before = table_.find(use.key);
  const bool ends = before != nullptr && before->part == use.part;
  if (before != nullptr) {
    // It gives its place to the new one; or to one that has the same key and nothing else.
    Use old = *before;
    table_.erase(before);
    old.key = ticket | kOwnKey;
    if (ends && ending != 0) old.ending = ending;
    (void)table_.insert(old);  // in place of one that was taken out: there is room
  }
  (void)table_.insert(use);
  return ends;
}

bool Uses::cancel(uint64_t ticket, Use* out) {
  Use* found = table_.find(ticket | kOwnKey);
  if (found == nullptr) return false;
  *out = *found;
  table_.erase(found);
  return true;
}

uint32_t Uses::leave(const Part& part, uint64_t ending) {
  uint32_t count = 0;
  table_.each([&](Use& use) {
    if (use.ending != 0 || !within(use.part, part)) return;
    use.ending = ending;
    ++count;
  });
  return count;
}

void Uses::unfollow(uint64_t object) {
  table_.each([&](Use& use) { use.followed &= use.part.object != object; });
}

void Uses::context_moves(const void* from, const void* to) {
  table_.each([&](Use& use) {
    if (use.context == from) use.context = to;
  });
}

}  // namespace sluice::interpose
