// See say.h.
#include "interpose/say.h"

#include <string.h>
#include <unistd.h>

#include "interpose/types.h"

namespace sluice::interpose {
namespace {
constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
RateLimit unrecorded_said;
}  // namespace

Line& Line::text(const char* s) {
  while (*s != '\0' && length_ + 1 < sizeof buffer_) buffer_[length_++] = *s++;
  buffer_[length_] = '\0';
  return *this;
}

Line& Line::number(uint64_t value) {
  char digits[24];
  char* p = digits + sizeof digits - 1;
  *p = '\0';
  do {
    *--p = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  return text(p);
}

int bytes_unit(uint64_t value) {
  int unit = 0;
  while (unit < 4 && value >= uint64_t{1024} << (10 * unit)) ++unit;
  return unit;
}

Line& Line::bytes_in(uint64_t value, int unit) {
  if (unit == 0) return number(value);
  const unsigned shift = static_cast<unsigned>(10 * unit);
  const uint64_t half = (uint64_t{1} << shift) / 20;
  uint64_t whole = value >> shift;
  uint64_t tenths = ((value - (whole << shift)) + half) * 10 >> shift;
  if (tenths == 10) {
    ++whole;
    tenths = 0;
  }
  return number(whole).text(".").number(tenths);
}

Line& Line::bytes(uint64_t value) {
  const int unit = bytes_unit(value);
  return bytes_in(value, unit).text(" ").text(kUnits[unit]);
}

Line& Line::skipped(uint64_t count) {
  if (count == 0) return *this;
  return text(" (").number(count).text(" more since the last such line.)");
}

void Line::say() const {
  const SystemGuard guard;
  char line[sizeof buffer_ + 16] = "sluice: ";
  strcat(line, buffer_);
  strcat(line, "\n");
  ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
  (void)ignored;
}

bool RateLimit::allow(uint64_t now_ns, uint64_t* skipped) {
  uint64_t last = load_relaxed(last_ns_);
  const bool due = last == 0 || now_ns - last >= 1000000000u;
  if (!due || !__atomic_compare_exchange_n(&last_ns_, &last, now_ns, false, __ATOMIC_RELAXED,
                                           __ATOMIC_RELAXED)) {
    __atomic_add_fetch(&skipped_, 1, __ATOMIC_RELAXED);
    return false;
  }
  *skipped = __atomic_exchange_n(&skipped_, 0, __ATOMIC_RELAXED);
  return true;
}

void unrecorded_say(const char* what) {
  const ErrnoGuard guard;
  uint64_t skipped = 0;
  if (!unrecorded_said.allow(clock_now_ns(), &skipped)) return;
  Line line;
  line.text("refused a call that cannot be put on record, for lack of ").text(what);
  line.text("; uncounted it would pass the job's limits. Give the program more memory or address ");
  line.text("space (ulimit -v), or have it do with fewer threads, contexts or pools");
  line.skipped(skipped).say();
}

}  // namespace sluice::interpose
