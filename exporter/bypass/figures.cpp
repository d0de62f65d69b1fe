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
constexpr int kFiguresFormat = 1;
// format, time, policy, three sources; then the counts.
constexpr char kLine[] = "%d %" PRIu64 " %d %d%d%d %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
                         " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n";
constexpr char kScan[] = "%d %" SCNu64 " %d %1d%1d%1d %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                         " %" SCNu64 " %" SCNu64 " %" SCNu64;
constexpr int kFields = 13;

}  // namespace

std::string bypass_figures_text(const BypassFigures& figures) {
  const BypassCounts& c = figures.counts;
  char out[kBytesMax];
  std::snprintf(out, sizeof out, kLine, kFiguresFormat, figures.at_ns,
                static_cast<int>(figures.policy), figures.sources[0], figures.sources[1],
                figures.sources[2], c.processes, c.exempt, c.bytes, c.found[0], c.found[1],
                c.found[2], c.stopped);
  return out;
}

std::optional<BypassFigures> bypass_figures_parse(const std::string& text) {
  BypassFigures out;
  BypassCounts& c = out.counts;
  int format = 0, policy = 0, sources[kFoundBy] = {};
  const int read = std::sscanf(text.c_str(), kScan, &format, &out.at_ns, &policy, &sources[0],
                               &sources[1], &sources[2], &c.processes, &c.exempt, &c.bytes,
                               &c.found[0], &c.found[1], &c.found[2], &c.stopped);
  if (read != kFields || format != kFiguresFormat || policy < 0 || policy > 2) return std::nullopt;
  out.policy = static_cast<BypassPolicy>(policy);
  for (std::size_t i = 0; i < kFoundBy; ++i) out.sources[i] = sources[i] != 0;
  return out;
}

int bypass_figures_write(const std::string& path, const BypassFigures& figures) {
  const std::string part = path + ".part", text = bypass_figures_text(figures);
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return errno;
  const bool good = fchmod(fd, 0644) == 0 &&
                    write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = good ? 0 : errno;
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
