// The broker's log: one line per event, logfmt fields, levels. Knows nothing of what is logged.
// Under systemd every line carries the journal's "<N>" priority; elsewhere that would be noise.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "broker/devices/fd.h"

namespace sluice::daemon {

enum class Level { kError = 3, kWarning = 4, kInfo = 6, kDebug = 7 };  // syslog's numbers

struct Field {
  std::string_view key;
  std::string value;
  Field(std::string_view k, std::string_view v) : key(k), value(v) {}
  Field(std::string_view k, const char* v) : key(k), value(v) {}
  Field(std::string_view k, const std::string& v) : key(k), value(v) {}
  template <class T>
  requires std::is_arithmetic_v<T> Field(std::string_view k, T v)
      : key(k), value(std::to_string(v)) {}
};

class Log {
 public:
  /// Writes to standard error until file_open succeeds.
  Log();
  /// Appends to `path`. 0 or an errno.
  [[nodiscard]] int file_open(const std::string& path);
  /// "error", "warning", "info" or "debug"; anything else leaves the level.
  void level_set(std::string_view name);
  bool enabled(Level level) const { return level <= level_; }

  /// "time=12.000345 level=info event=admitted tenant=7 ..."; values with spaces or quotes are
  /// quoted.
  void line(Level level, std::string_view event, std::initializer_list<Field> fields);
  /// The same for what any client can cause as often as it likes: some a second, the rest is
  /// counted and the count logged.
  void line_limited(Level level, std::string_view event, std::initializer_list<Field> fields);
  /// The same as line with a sentence for people: ... msg="sluice: ...".
  void message(Level level, std::string_view event, std::string_view sentence,
               std::initializer_list<Field> fields);

 private:
  void write_line(Level level, std::string text);
  Level level_ = Level::kInfo;
  bool journal_ = false;
  std::int64_t limited_at_ns_ = 0;     // the allowance was last filled up,
  std::int64_t limited_left_ = 0;      // to so many lines;
  std::uint64_t limited_dropped_ = 0;  // not written since the last that was
  devices::Fd file_;
};

}  // namespace sluice::daemon
