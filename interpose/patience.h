// How long a launch waits for what is in flight before it is let through. Kernels may wait for each
// other, for a value that the program writes, or for a callback; if the program waits in us
// meanwhile, nobody ever ends. A launch is let through after kLetAfterNs, and the next one of the
// same waiter after twice as long, so that what was let through without need, because what is in
// flight merely takes long, stays little: its number grows with the logarithm of the time. As long
// as the very work is there that was there first, the wait grows no further than kLetAfterMaxNs,
// and not at all if what was let through has ended meanwhile: a persistent kernel may need any
// number of others beside it. Pure: no clock.
#pragma once

#include <stdint.h>

namespace sluice::interpose {

struct StreamRecord;

/// What is in flight: the stream that has most of it, how far that has come, and all launches.
struct InFlight {
  const StreamRecord* stream;
  uint64_t done;
  uint64_t launches;
};

/// Of one waiter. All zero: it does not wait.
struct Patience {
  uint64_t next_ns;  // when a launch is let through; 0 = nobody waits
  uint64_t step_ns;
  InFlight first;
};

inline constexpr uint64_t kLetAfterNs = 50'000'000;
inline constexpr uint64_t kLetAfterMaxNs = 1'600'000'000;
/// Longer than any program runs.
inline constexpr uint64_t kLetAfterEndNs = uint64_t{1} << 60;

/// To be asked again and again while one waits. `seen`: what is in flight now.
bool patience_ends(Patience& patience, const InFlight& seen, uint64_t now_ns);

}  // namespace sluice::interpose
