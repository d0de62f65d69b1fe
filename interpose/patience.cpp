// See patience.h.
#include "interpose/patience.h"

namespace sluice::interpose {

bool patience_ends(Patience& patience, const InFlight& seen, uint64_t now_ns) {
  if (patience.next_ns == 0) {
    patience = Patience{now_ns + kLetAfterNs, kLetAfterNs, seen};
    return false;
  }
  if (now_ns < patience.next_ns) return false;
  const bool same = seen.stream != nullptr && seen.stream == patience.first.stream &&
                    seen.done == patience.first.done;
  if (!same) {
    patience.first = seen;
    if (patience.step_ns < kLetAfterEndNs) patience.step_ns *= 2;
  } else if (seen.launches > patience.first.launches && patience.step_ns < kLetAfterMaxNs) {
    patience.step_ns *= 2;
  }
  patience.next_ns = now_ns + patience.step_ns;
  return true;
}

}  // namespace sluice::interpose
