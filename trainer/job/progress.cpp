// See progress.h.
#include "trainer/job/progress.h"

#include <unistd.h>

#include <cstdio>

namespace sluice::train {
namespace {

constexpr Nanos kTerminalGap = 200 * kNanosPerMilli;
constexpr Nanos kPlainGap = 5 * kNanosPerSecond;

}  // namespace

Progress::Progress(bool quiet) : quiet_(quiet), terminal_(isatty(STDOUT_FILENO) == 1) {
  // Off a terminal the first state is worth a line only after a while.
  next_ns_ = terminal_ ? 0 : now_ns() + kPlainGap;
}

void Progress::line_end() {
  if (open_) std::fputs("\r\033[K", stdout);
  open_ = false;
  std::fflush(stdout);
}

void Progress::say(const std::string& text) {
  if (quiet_) return;
  line_end();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void Progress::show(const std::string& text) {
  const Nanos now = now_ns();
  if (quiet_ || now < next_ns_) return;
  next_ns_ = now + (terminal_ ? kTerminalGap : kPlainGap);
  if (terminal_) {
    std::printf("\r\033[K%s", text.c_str());
    open_ = true;
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

}  // namespace sluice::train
