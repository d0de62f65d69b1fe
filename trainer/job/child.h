// Work that a launcher must not do itself: a process that has called the CUDA driver cannot fork
// ranks that use it. So children do it, and send what they found back as text.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace sluice::train {

/// Runs `work(i)` in `count` children at once and returns their answers in order. Throws Failure
/// with the text of the first that failed; the others are ended then. `busy` says what a child was
/// doing that ended without a word: "counting the GPUs". Only from a process with one thread.
std::vector<std::string> children_ask(int count, const char* busy,
                                      const std::function<std::string(int)>& work);

}  // namespace sluice::train
