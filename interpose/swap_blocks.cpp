// See swap_blocks.h.
#include "interpose/swap_blocks.h"

#include <string.h>

namespace sluice::interpose {
namespace {

// Buffer ids of the driver count from 1; these are told apart from them.
constexpr uint64_t kIdBase = uint64_t{1} << 48;
constexpr uint32_t kWordBits = 64;

bool bit(const uint64_t* words, uint32_t i) {
  return (words[i / kWordBits] >> (i % kWordBits) & 1) != 0;
}

// The first unit from `at` on whose bit is `wanted`; `count` when there is none.
uint32_t next_with(const uint64_t* words, uint32_t count, uint32_t at, bool wanted) {
  while (at < count) {
    uint64_t word = words[at / kWordBits];
    if (!wanted) word = ~word;
    word >>= at % kWordBits;
    if (word != 0) {
      const uint32_t found = at + static_cast<uint32_t>(__builtin_ctzll(word));
      return found < count ? found : count;
    }
    at = (at / kWordBits + 1) * kWordBits;
  }
  return count;
}

void bits_set(uint64_t* words, uint32_t at, uint32_t n, bool on) {
  for (uint32_t i = at; i < at + n; ++i) {
    const uint64_t mask = uint64_t{1} << (i % kWordBits);
    if (on) {
      words[i / kWordBits] |= mask;
    } else {
      words[i / kWordBits] &= ~mask;
    }
  }
}

// The first run of n free units; `unit_count` when there is none, and then run_max is exact.
uint32_t run_find(Block& block, uint32_t n) {
  uint32_t longest = 0;
  for (uint32_t at = 0;;) {
    at = next_with(block.used, block.unit_count, at, false);
    if (at == block.unit_count) break;
    const uint32_t end = next_with(block.used, block.unit_count, at, true);
    if (end - at >= n) return at;
    if (end - at > longest) longest = end - at;
    at = end;
  }
  block.run_max = longest;
  return block.unit_count;
}

// The allocation that has the unit begins here.
uint32_t start_of(const Block& block, uint32_t unit) {
  while (!bit(block.starts, unit)) --unit;
  return unit;
}

uint32_t end_of(const Block& block, uint32_t start) {
  const uint32_t next = next_with(block.starts, block.unit_count, start + 1, true);
  const uint32_t hole = next_with(block.used, block.unit_count, start + 1, false);
  return next < hole ? next : hole;
}

struct Layout {
  uint32_t units;
  size_t words, total;
};

Layout layout(uint64_t bytes, bool shared) {
  Layout l{};
  l.units = shared ? static_cast<uint32_t>(bytes / kUnitBytes) : 1;
  l.words = (l.units + kWordBits - 1) / kWordBits;
  l.total = sizeof(Block) + 2 * l.words * sizeof(uint64_t) + l.units * sizeof(Unit);
  return l;
}

}  // namespace

uint32_t Blocks::position(uint64_t address) const {
  uint32_t low = 0, high = count_;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (sorted_[middle]->address <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bool Blocks::grow() {
  const uint32_t capacity = capacity_ == 0 ? 512 : capacity_ * 2;
  auto* sorted = static_cast<Block**>(pages_allocate(capacity * sizeof(Block*)));
  if (sorted == nullptr) return false;
  if (sorted_ != nullptr) {
    memcpy(sorted, sorted_, count_ * sizeof(Block*));
    pages_free(sorted_, capacity_ * sizeof(Block*));
  }
  sorted_ = sorted;
  capacity_ = capacity;
  return true;
}

Block* Blocks::add(uint64_t address, uint64_t bytes, bool shared) {
  if (count_ == capacity_ && !grow()) return nullptr;
  const Layout l = layout(bytes, shared);
  auto* block = static_cast<Block*>(pages_allocate(l.total));
  if (block == nullptr) return nullptr;
  block->address = address;
  block->bytes = bytes;
  block->unit_count = block->run_max = l.units;
  block->unit_bytes = bytes / l.units;
  block->used = reinterpret_cast<uint64_t*>(block + 1);
  block->starts = block->used + l.words;
  block->units = reinterpret_cast<Unit*>(block->starts + l.words);
  const uint32_t at = position(address);
  memmove(&sorted_[at + 1], &sorted_[at], (count_ - at) * sizeof(Block*));
  sorted_[at] = block;
  ++count_;
  return block;
}

void Blocks::remove(Block* block) {
  const uint32_t at = position(block->address) - 1;
  --count_;
  memmove(&sorted_[at], &sorted_[at + 1], (count_ - at) * sizeof(Block*));
  pages_free(block, layout(block->bytes, block->is_shared()).total);
}

Block* Blocks::at(uint64_t address) const {
  const uint32_t next = position(address);
  if (next == 0) return nullptr;
  Block* block = sorted_[next - 1];
  return address - block->address < block->bytes ? block : nullptr;
}

bool Blocks::find(uint64_t address, Placed* out) const {
  Block* block = at(address);
  if (block == nullptr) return false;
  const auto unit = static_cast<uint32_t>((address - block->address) / block->unit_bytes);
  if (!bit(block->used, unit)) return false;
  const uint32_t start = start_of(*block, unit);
  const uint64_t begin = block->address + start * block->unit_bytes;
  // Behind its last byte an allocation's last unit is nobody's.
  if (address - begin >= block->units[start].asked) return false;
  *out = Placed{block, &block->units[start], begin};
  return true;
}

bool Blocks::place(Block& block, uint64_t bytes, Placed* out) {
  const auto n = static_cast<uint32_t>((bytes + block.unit_bytes - 1) / block.unit_bytes);
  if (n > block.run_max) return false;
  const uint32_t at = run_find(block, n);
  if (at == block.unit_count) return false;
  bits_set(block.used, at, n, true);
  bits_set(block.starts, at, 1, true);
  block.units_used += n;
  block.units[at] = Unit{bytes, kIdBase + ++next_id_, 0};
  *out = Placed{&block, &block.units[at], block.address + at * block.unit_bytes};
  return true;
}

bool Blocks::place_shared(const void* context, uint64_t bytes, Placed* out) {
  for (uint32_t i = 0; i < count_; ++i) {
    Block& block = *sorted_[i];
    if (block.context == context && block.is_shared() && place(block, bytes, out)) return true;
  }
  return false;
}

void Blocks::take_out(const Placed& placed) {
  Block& block = *placed.block;
  const auto start = static_cast<uint32_t>(placed.unit - block.units);
  const uint32_t n = end_of(block, start) - start;
  bits_set(block.used, start, n, false);
  bits_set(block.starts, start, 1, false);
  *placed.unit = Unit{};
  block.units_used -= n;
  block.run_max = block.unit_count;
}

void Blocks::reset_after_fork() {
  for (uint32_t i = 0; i < count_; ++i) {
    Block* block = sorted_[i];
    pages_free(block, layout(block->bytes, block->is_shared()).total);
  }
  if (sorted_ != nullptr) pages_free(sorted_, capacity_ * sizeof(Block*));
  sorted_ = nullptr;
  count_ = capacity_ = 0;
}

}  // namespace sluice::interpose
