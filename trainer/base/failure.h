// The world's failures inside a trainer program: a text for people (what happened, why, what to do)
// carried up to main, which prints it after "sluice: " and chooses the exit code. Never crosses
// into another room.
#pragma once

#include <stdexcept>
#include <string>

namespace sluice::train {

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string text_format(const char* format, ...);

/// "pread of x: Permission denied (...)" for the current errno.
Failure errno_failure(const std::string& what);

}  // namespace sluice::train
