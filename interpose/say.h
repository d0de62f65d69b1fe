// Sentences for people on stderr: one line, `sluice: ` first, written at once. Of a kind that
// repeats itself, at most one a second (RateLimit). No stdio (the program's streams are its own)
// and no allocation.
#pragma once

#include <stdint.h>

namespace sluice::interpose {

/// Builds one line in a fixed buffer; what does not fit is cut.
class Line {
 public:
  Line& text(const char* s);
  Line& number(uint64_t value);
  /// Bytes with one decimal in the largest binary unit that keeps the number at least 1: "6.8 GiB".
  Line& bytes(uint64_t value);
  /// The same in the given unit (index of B, KiB, MiB, GiB, TiB), without naming it.
  Line& bytes_in(uint64_t value, int unit);
  /// How many lines of the kind were not said since the last one (RateLimit); nothing for none.
  Line& skipped(uint64_t count);
  const char* c_str() const { return buffer_; }
  /// Writes "sluice: ...\n" to stderr, at once or not at all: it neither waits nor raises a signal,
  /// and a file of the program's own at that number is left alone. False: it was not written.
  bool say() const;

 private:
  char buffer_[480] = {};
  unsigned length_ = 0;
};

/// The unit in which bytes() would print.
int bytes_unit(uint64_t value);

/// True at most once a second for a kind of message.
class RateLimit {
 public:
  /// `skipped`: how many it was false for since it was true.
  bool allow(uint64_t now_ns, uint64_t* skipped);
  /// Says the line with that number behind it. One that cannot be written counts as skipped, too.
  void say(Line& line, uint64_t skipped);

 private:
  uint64_t last_ns_ = 0;
  uint64_t skipped_ = 0;
};

/// What descriptor 2 is now is the program's stderr. For the process's registration, and for its
/// start where something has to be done then anyway; in between a program may point it to a log.
void stderr_remember_before();
void stderr_remember();
void stderr_reset_after_fork();

/// Says why a call fails that cannot be put on record, for lack of `what`: uncounted it would pass
/// the job's limits.
void unrecorded_say(const char* what);

}  // namespace sluice::interpose
