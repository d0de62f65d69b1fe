// The broker's log: one line per event, logfmt fields, levels. Knows nothing of what is logged.
// Under systemd every line carries the journal's "<N>" priority; elsewhere that would be noise.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

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
  virtual ~Log() = default;
  /// Appends to `path`. 0 or an errno.
  [[nodiscard]] int file_open(const std::string& path);
  bool in_file() const { return file_in_use_; }
  /// "error", "warning", "info" or "debug"; anything else leaves the level.
  void level_set(std::string_view name);
  bool enabled(Level level) const { return level <= level_; }

  /// "time=12.000345 level=info event=admitted tenant=7 ..."; values with spaces or quotes are
  /// quoted.
  void line(Level level, std::string_view event, std::initializer_list<Field> fields);
  /// Writes a line with a sentence for people behind its fields: ... msg="sluice: ...".
  void message(Level level, std::string_view event, std::string_view sentence,
               std::initializer_list<Field> fields);

  // Each user has an allowance of lines for each event. Lines beyond it are counted, and the count
  // is logged (event=lines_left_out) with the next line of that user and event, or by tend(). Level
  // debug has no limit: it is for a moment's look. `event` must be a literal, and of one kind only.

  /// Writes a line that a client can cause as often as it likes. Its values are cut after
  /// kValueMax. The user has an allowance of bytes for these lines, whatever their events, and all
  /// users together have one of lines.
  void line_of(uid_t uid, Level level, std::string_view event, std::initializer_list<Field> fields);
  /// Writes what the broker itself found or did about a job of this user. The allowance of all
  /// users does not bound it: their clients could empty that before the broker ends a job.
  void message_of(uid_t uid, Level level, std::string_view event, std::string_view sentence,
                  std::initializer_list<Field> fields);
  /// Logs the counts that no later line has told, and forgets who is quiet. To be called now and
  /// then.
  void tend() { tend_at(clock_ns()); }

  /// Lines of one user and event: at once, and from then on each second.
  static constexpr std::int64_t kBurst = 50;
  static constexpr std::int64_t kPerSecond = 5;
  /// Bytes of line_of() of one user: at once, and from then on each second. A job that comes, runs
  /// and goes takes about 800, so that is forty jobs, and then five a second.
  static constexpr std::int64_t kUserBytesBurst = 32 * 1024;
  static constexpr std::int64_t kUserBytesPerSecond = 4 * 1024;
  /// The most bytes of a value in line_of(). A refusal's text has 319 at most (protocol::Refused).
  static constexpr std::size_t kValueMax = 320;
  /// Lines of line_of() for all users together.
  static constexpr std::int64_t kAllBurst = 1000;
  static constexpr std::int64_t kAllPerSecond = 100;

 protected:
  /// The clock, for tests. Nanoseconds that never run back.
  virtual std::int64_t clock_ns() const;
  void tend_at(std::int64_t now_ns);

 private:
  struct Allowance {
    std::int64_t filled_ns = 0;  // when `left` was last filled up
    std::int64_t left = 0;
    std::uint64_t dropped = 0;  // not written since the last line that was
    bool shared = false;        // it also takes from the allowances of its user and of all users
  };
  using Source = std::pair<uid_t, std::string_view>;
  static void fill(Allowance* allowance, std::int64_t now_ns, std::int64_t per_second,
                   std::int64_t burst);
  enum class From : bool { kBroker, kClients };
  bool may_take(uid_t uid, const Allowance& own, std::int64_t now_ns);
  void take(Allowance* own) {
    --own->left;
    if (own->shared) --all_.left;
  }
  /// Returns the allowances that a line of this user and event takes from; null = it is left out.
  const Source* allowed(const Source& source, From from);
  void dropped_tell(const Source& source, Allowance* allowance);
  /// Returns the bytes of the line.
  std::size_t write_line(Level level, std::string text);
  Level level_ = Level::kInfo;
  bool file_in_use_ = false;
  bool journal_ = false;
  bool socket_ = false;  // where lines go is one
  std::map<Source, Allowance> sources_;
  std::map<uid_t, Allowance> bytes_;  // of the users in sources_; `left` can be a line below zero
  Allowance all_;
  devices::Fd file_;
};

}  // namespace sluice::daemon
