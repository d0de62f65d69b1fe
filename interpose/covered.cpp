// See covered.h.
#include "interpose/covered.h"

#include "interpose/clock.h"
#include "interpose/meter.h"
#include "interpose/process.h"

namespace sluice::interpose {
namespace {

using protocol::AtomicU64;
using protocol::kChargedWords;

// Sets bits of one word, which speaks of the time `tag`; the number of those that were not set.
unsigned word_take(AtomicU64& word, uint32_t tag, uint32_t bits) {
  uint64_t before = word.load();
  for (;;) {
    const auto before_tag = static_cast<uint32_t>(before >> 32);
    // Later than this interval: the map has gone round since.
    if (static_cast<int32_t>(before_tag - tag) > 0) break;
    const uint32_t known = before_tag == tag ? static_cast<uint32_t>(before) : 0;
    const uint64_t after = uint64_t{tag} << 32 | known | bits;
    if (__atomic_compare_exchange_n(&word.raw, &before, after, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
      return static_cast<unsigned>(__builtin_popcount(bits & ~known));
    }
  }
  return static_cast<unsigned>(__builtin_popcount(bits));
}

}  // namespace

double covered_take(AtomicU64 (&map)[kChargedWords], uint64_t begin_ns, uint64_t end_ns) {
  // A bit stands for its first instant, so that stretches that follow each other leave none out.
  constexpr uint64_t kRest = (uint64_t{1} << kCoveredBitShift) - 1;
  uint64_t bit = (begin_ns + kRest) >> kCoveredBitShift;
  const uint64_t end_bit = (end_ns + kRest) >> kCoveredBitShift;
  if (bit >= end_bit) return 1;
  const uint64_t all = end_bit - bit;
  constexpr uint64_t kBits = uint64_t{kChargedWords} * kCoveredBitsPerWord;
  uint64_t uncovered = 0;
  if (all > kBits) {
    uncovered = all - kBits;
    bit = end_bit - kBits;
  }
  while (bit < end_bit) {
    const uint64_t index = bit / kCoveredBitsPerWord;
    const unsigned first = bit % kCoveredBitsPerWord;
    const uint64_t left = end_bit - bit;
    const unsigned count = left < kCoveredBitsPerWord - first ? static_cast<unsigned>(left)
                                                              : kCoveredBitsPerWord - first;
    const auto bits = static_cast<uint32_t>(((uint64_t{1} << count) - 1) << first);
    uncovered +=
        word_take(map[index % kChargedWords], static_cast<uint32_t>(index / kChargedWords), bits);
    bit += count;
  }
  return static_cast<double>(uncovered) / static_cast<double>(all);
}

double covered_charge(int device, double end_ns, double grown_ns) {
  if (process_mode() != Mode::kActive || end_ns <= grown_ns) return grown_ns;
  // The first and only process, and the only context of it.
  if (load_relaxed(process.claims->slots_used.raw) == 1 &&
      load_relaxed(contexts_beside[device]) == 0) {
    return grown_ns;
  }
  const int gpu = device_gpu(device);
  if (gpu < 0) return grown_ns;
  return grown_ns * covered_take(process.claims->charged[gpu],
                                 clock_common_ns(static_cast<uint64_t>(end_ns - grown_ns)),
                                 clock_common_ns(static_cast<uint64_t>(end_ns)));
}

}  // namespace sluice::interpose
