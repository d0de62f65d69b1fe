#include "exporter/bypass/figures.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

namespace sluice::exporter {
namespace {

constexpr std::size_t kBytesMax = 1024;
constexpr int kFiguresFormat = 2;
// In one line: format, time, policy; processes, exempt ones, bytes, stopped ones; then for each of
// the sources whether it is looked at and how many it found.
constexpr char kHead[] = "%d %" PRIu64 " %d %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64;
constexpr char kHeadScan[] = "%d %" SCNu64 " %d %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 "%n";
constexpr int kHeadFields = 7;

}  // namespace

std::string bypass_figures_text(const BypassFigures& figures) {
  const BypassCounts& c = figures.counts;
  char head[kBytesMax];
  std::snprintf(head, sizeof head, kHead, kFiguresFormat, figures.at_ns,
                static_cast<int>(figures.policy), c.processes, c.exempt, c.bytes, c.stopped);
  std::string out = head;
  for (std::size_t i = 0; i < kFoundBy; ++i)
    out += (figures.sources[i] ? " 1 " : " 0 ") + std::to_string(c.found[i]);
  return out + "\n";
}

std::optional<BypassFigures> bypass_figures_parse(const std::string& text) {
  BypassFigures out;
  BypassCounts& c = out.counts;
  int format = 0, policy = 0, length = 0;
  if (std::sscanf(text.c_str(), kHeadScan, &format, &out.at_ns, &policy, &c.processes, &c.exempt,
                  &c.bytes, &c.stopped, &length) != kHeadFields ||
      format != kFiguresFormat || policy < 0 || policy > 2)
    return std::nullopt;
  out.policy = static_cast<BypassPolicy>(policy);
  const char* rest = text.c_str() + length;
  for (std::size_t i = 0; i < kFoundBy; ++i) {
    int looked_at = 0;
    if (std::sscanf(rest, "%d %" SCNu64 "%n", &looked_at, &c.found[i], &length) != 2)
      return std::nullopt;
    out.sources[i] = looked_at != 0;
    rest += length;
  }
  return out;
}

int bypass_figures_write(const std::string& path, const BypassFigures& figures) {
  const std::string part = path + ".part", text = bypass_figures_text(figures);
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return errno;
  const ssize_t written = fchmod(fd, 0644) == 0 ? write(fd, text.data(), text.size()) : ssize_t{-1};
  // A disk that is full takes a part without an error.
  const int error = written < 0                                       ? errno
                    : static_cast<std::size_t>(written) < text.size() ? ENOSPC
                                                                      : 0;
  close(fd);
  return error != 0 ? error : rename(part.c_str(), path.c_str()) == 0 ? 0 : errno;
}

std::optional<BypassFigures> bypass_figures_read(const std::string& path, std::uint64_t now_ns) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  char text[kBytesMax] = {};
  const ssize_t count = read(fd, text, sizeof text - 1);
  close(fd);
  auto out = count > 0 ? bypass_figures_parse(text) : std::nullopt;
  const bool good = out && out->at_ns <= now_ns && now_ns - out->at_ns < kFiguresGoodNs;
  return good ? out : std::nullopt;
}

}  // namespace sluice::exporter
