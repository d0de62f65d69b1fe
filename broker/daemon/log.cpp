// Formatting and writing of log lines; one write(2) per line so that lines of several brokers never
// mix.
#include "broker/daemon/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <cstdio>

namespace sluice::daemon {
namespace {

bool plain(std::string_view value) {
  if (value.empty()) return false;
  for (const char c : value) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!word && std::string_view("-_./:+,@").find(c) == std::string_view::npos) return false;
  }
  return true;
}

void value_append(std::string* out, std::string_view value) {
  if (plain(value)) {
    out->append(value);
    return;
  }
  *out += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') *out += '\\';
    *out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  *out += '"';
}

const char* level_name(Level level) {
  switch (level) {
    case Level::kError:
      return "error";
    case Level::kWarning:
      return "warning";
    case Level::kInfo:
      return "info";
    case Level::kDebug:
      return "debug";
  }
  return "?";
}

constexpr std::int64_t kLimitedPerSecond = 100;
constexpr std::int64_t kLimitedBurst = 1000;

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

std::string line_begin(Level level, std::string_view event, std::initializer_list<Field> fields) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  char head[64];
  std::snprintf(head, sizeof head,
                "time=%lld.%06ld level=%s event=", static_cast<long long>(now.tv_sec),
                now.tv_nsec / 1000, level_name(level));
  std::string text = head;
  text += event;
  for (const Field& field : fields) {
    text += ' ';
    text += field.key;
    text += '=';
    value_append(&text, field.value);
  }
  return text;
}

}  // namespace

Log::Log() : journal_(getenv("JOURNAL_STREAM") != nullptr) {}

int Log::file_open(const std::string& path) {
  devices::Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd) return errno;
  file_ = std::move(fd);
  journal_ = false;
  return 0;
}

void Log::level_set(std::string_view name) {
  for (const Level level : {Level::kError, Level::kWarning, Level::kInfo, Level::kDebug}) {
    if (name == level_name(level)) level_ = level;
  }
}

void Log::line(Level level, std::string_view event, std::initializer_list<Field> fields) {
  if (enabled(level)) write_line(level, line_begin(level, event, fields));
}

void Log::line_limited(Level level, std::string_view event, std::initializer_list<Field> fields) {
  if (!enabled(level)) return;
  const std::int64_t now = now_ns();
  const std::int64_t earned = (now - limited_at_ns_) / (1'000'000'000 / kLimitedPerSecond);
  if (earned > 0) {
    limited_left_ = std::min(limited_left_ + earned, kLimitedBurst);
    limited_at_ns_ = now;
  }
  if (limited_left_ == 0) {
    ++limited_dropped_;
    return;
  }
  --limited_left_;
  if (limited_dropped_ != 0) line(Level::kWarning, "lines_left_out", {{"count", limited_dropped_}});
  limited_dropped_ = 0;
  line(level, event, fields);
}

void Log::message(Level level, std::string_view event, std::string_view sentence,
                  std::initializer_list<Field> fields) {
  if (!enabled(level)) return;
  std::string text = line_begin(level, event, fields) + " msg=";
  value_append(&text, "sluice: " + std::string(sentence));
  write_line(level, std::move(text));
}

void Log::write_line(Level level, std::string text) {
  if (journal_) text.insert(0, "<" + std::to_string(static_cast<int>(level)) + ">");
  text += '\n';
  const int fd = file_ ? file_.get() : STDERR_FILENO;
  // A full disk, a closed terminal or a pipe that nobody reads must not stop the broker, and there
  // is nowhere to complain to.
  pollfd room{fd, POLLOUT, 0};
  if (poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, text.data(), text.size());
}

}  // namespace sluice::daemon
