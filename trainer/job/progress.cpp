// See progress.h.
#include "trainer/job/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

namespace sluice::train {
namespace {

constexpr Nanos kTerminalGap = 200 * kNanosPerMilli;
constexpr std::size_t kUsualColumns = 80;
constexpr std::size_t kAnyColumns = SIZE_MAX;

/// Of the terminal now: people resize windows. One less than it has, because some terminals begin a
/// new line after the last.
std::size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return (known ? size.ws_col : kUsualColumns) - 1;
}

}  // namespace

std::string line_fit(const std::vector<std::string>& parts, std::size_t columns) {
  std::string line;
  for (const std::string& part : parts) {
    const std::string more = line.empty() ? part : ", " + part;
    if (line.size() + more.size() > columns) break;
    line += more;
  }
  if (line.empty() && !parts.empty()) line = parts[0].substr(0, columns);
  return line;
}

Progress::Progress(bool quiet, Nanos plain_gap)
    : quiet_(quiet), terminal_(isatty(STDOUT_FILENO) == 1), plain_gap_(plain_gap) {
  next_ns_ = terminal_ ? 0 : now_ns() + plain_gap_;
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

void Progress::show(const std::vector<std::string>& parts) {
  const Nanos now = now_ns();
  if (quiet_ || now < next_ns_) return;
  next_ns_ = now + (terminal_ ? kTerminalGap : plain_gap_);
  if (terminal_) {
    std::printf("\r\033[K%s", line_fit(parts, terminal_columns()).c_str());
    open_ = true;
  } else {
    std::printf("%s\n", line_fit(parts, kAnyColumns).c_str());
  }
  std::fflush(stdout);
}

}  // namespace sluice::train
