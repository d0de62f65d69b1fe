// Formatting and writing of log lines; one write(2) per line so that lines of several brokers never
// mix.
#include "broker/daemon/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>

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

void value_append(std::string* out, std::string_view value, std::size_t most = SIZE_MAX) {
  const bool cut = value.size() > most;
  value = value.substr(0, most);
  if (plain(value)) {
    out->append(value);
    if (cut) *out += "...";
    return;
  }
  *out += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') *out += '\\';
    *out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  if (cut) *out += "...";
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

constexpr std::int64_t kLogSecond_ns = 1'000'000'000;
// Users and events that are told apart at a time. Beyond them (a user of many names) all share one.
constexpr std::size_t kSourcesMax = 1024;
constexpr uid_t kManyUsers = UINT32_MAX;

std::string line_begin(Level level, std::string_view event, std::initializer_list<Field> fields,
                       std::size_t value_max = SIZE_MAX) {
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
    value_append(&text, field.value, value_max);
  }
  return text;
}

}  // namespace

Log::Log() : journal_(getenv("JOURNAL_STREAM") != nullptr) {
  struct stat status {};
  socket_ = fstat(STDERR_FILENO, &status) == 0 && S_ISSOCK(status.st_mode);
}

int Log::file_open(const std::string& path) {
  // O_NONBLOCK: a pipe that nobody reads is an error now and holds nobody up later.
  devices::Fd fd(open(path.c_str(),
                      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
  if (!fd) return errno;
  file_ = std::move(fd);
  journal_ = socket_ = false;
  file_in_use_ = true;
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

std::int64_t Log::clock_ns() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kLogSecond_ns + now.tv_nsec;
}

void Log::fill(Allowance* allowance, std::int64_t now_ns, std::int64_t per_second,
               std::int64_t burst) {
  const std::int64_t each_ns = kLogSecond_ns / per_second;
  if (allowance->filled_ns == 0) {
    allowance->left = burst;
    allowance->filled_ns = now_ns;
  }
  const std::int64_t earned = (now_ns - allowance->filled_ns) / each_ns;
  allowance->left = std::min(allowance->left + earned, burst);
  allowance->filled_ns += earned * each_ns;
}

void Log::dropped_tell(const Source& source, Allowance* allowance) {
  if (allowance->dropped == 0) return;
  const auto& [uid, event] = source;
  std::string text = line_begin(Level::kWarning, "lines_left_out",
                                {{"of", event},
                                 {"uid", uid == kManyUsers ? "many" : std::to_string(uid)},
                                 {"count", allowance->dropped}});
  const std::size_t bytes = write_line(Level::kWarning, std::move(text));
  if (allowance->shared) bytes_[uid].left -= static_cast<std::int64_t>(bytes);
  allowance->dropped = 0;
}

bool Log::may_take(uid_t uid, const Allowance& own, std::int64_t now_ns) {
  if (own.left <= 0 || !own.shared) return own.left > 0;
  Allowance& bytes = bytes_[uid];
  fill(&bytes, now_ns, kUserBytesPerSecond, kUserBytesBurst);
  return all_.left > 0 && bytes.left > 0;
}

const Log::Source* Log::allowed(const Source& source, From from) {
  const std::int64_t now = clock_ns();
  fill(&all_, now, kAllPerSecond, kAllBurst);
  Source known = source;
  if (!sources_.contains(known) && sources_.size() >= kSourcesMax) known.first = kManyUsers;
  const auto at = sources_.try_emplace(known).first;
  Allowance& own = at->second;
  own.shared = from == From::kClients;
  fill(&own, now, kPerSecond, kBurst);
  if (!may_take(known.first, own, now)) {
    ++own.dropped;
    return nullptr;
  }
  take(&own);
  dropped_tell(known, &own);
  return &at->first;
}

void Log::tend_at(std::int64_t now_ns) {
  fill(&all_, now_ns, kAllPerSecond, kAllBurst);
  for (auto at = sources_.begin(); at != sources_.end();) {
    Allowance& own = at->second;
    fill(&own, now_ns, kPerSecond, kBurst);
    if (own.dropped != 0 && may_take(at->first.first, own, now_ns)) {
      take(&own);
      dropped_tell(at->first, &own);
    }
    const bool quiet = own.dropped == 0 && own.left == kBurst;
    at = quiet ? sources_.erase(at) : std::next(at);
  }
  for (auto& [uid, bytes] : bytes_) fill(&bytes, now_ns, kUserBytesPerSecond, kUserBytesBurst);
  std::erase_if(bytes_, [](const auto& of) { return of.second.left == kUserBytesBurst; });
}

void Log::line_of(uid_t uid, Level level, std::string_view event,
                  std::initializer_list<Field> fields) {
  if (!enabled(level)) return;
  if (level == Level::kDebug) {
    line(level, event, fields);
    return;
  }
  const Source* source = allowed({uid, event}, From::kClients);
  if (source == nullptr) return;
  const std::size_t bytes = write_line(level, line_begin(level, event, fields, kValueMax));
  bytes_[source->first].left -= static_cast<std::int64_t>(bytes);
}

void Log::message_of(uid_t uid, Level level, std::string_view event, std::string_view sentence,
                     std::initializer_list<Field> fields) {
  if (enabled(level) && (level == Level::kDebug || allowed({uid, event}, From::kBroker) != nullptr))
    message(level, event, sentence, fields);
}

void Log::message(Level level, std::string_view event, std::string_view sentence,
                  std::initializer_list<Field> fields) {
  if (!enabled(level)) return;
  std::string text = line_begin(level, event, fields) + " msg=";
  value_append(&text, "sluice: " + std::string(sentence));
  write_line(level, std::move(text));
}

std::size_t Log::write_line(Level level, std::string text) {
  if (journal_) text.insert(0, "<" + std::to_string(static_cast<int>(level)) + ">");
  // What a pipe with room takes at once; a longer line could wait for its reader.
  if (text.size() >= PIPE_BUF) text.resize(PIPE_BUF - 1);
  text += '\n';
  const int fd = file_ ? file_.get() : STDERR_FILENO;
  // A full disk, a closed terminal or a pipe that nobody reads must not stop the broker, and there
  // is nowhere to complain to.
  pollfd room{fd, POLLOUT, 0};
  if (poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) return text.size();
  if (socket_) {
    [[maybe_unused]] const ssize_t sent =
        send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return text.size();
  }
  [[maybe_unused]] const ssize_t written = write(fd, text.data(), text.size());
  return text.size();
}

}  // namespace sluice::daemon
