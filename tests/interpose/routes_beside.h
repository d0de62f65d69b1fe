// What the shim may ask the driver beside the call that the program made: one list, hook by hook or
// by the words of the reference list (classes.tsv). Nothing in it waits for the GPU; what is not in
// it fails, so that no hook comes to free, unmap, destroy or copy in passing.
#pragma once

#include <string>

#include "tests/interpose/routes_table.h"

namespace sluice::test {

enum class Outcome { kDone, kUndone };

/// Looks at all calls that were noted since the count was set to 0, in which the program called
/// this hook and nothing else. `own`: that call; nullptr = it was to be refused without reaching
/// the driver. `program`: the thread that made it; all others are the helper. kUndone: the driver
/// did it, and the shim took it back. While a test has a capture in progress
/// (RecordingAnswers::capturing), calls that are unsafe in one must be made in the RELAXED mode; if
/// it is one of all streams, no call must be made that a capturing stream takes or forbids.
void expect_only_listed(const HookedEntry& entry, const Call* own, int program,
                        Outcome outcome = Outcome::kDone);

}  // namespace sluice::test
