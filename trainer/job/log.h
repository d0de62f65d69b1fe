// The job log: JSON lines, each written by one write() to a file opened for appending, so that
// lines of several ranks never mix. Every line has "event" and "t_ns" (CLOCK_MONOTONIC) first.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/base/clock.h"

namespace sluice::train {

/// One flat JSON object, built left to right.
class JsonLine {
 public:
  explicit JsonLine(const char* event, Nanos t_ns = now_ns());
  JsonLine& add(const char* key, std::int64_t value);
  JsonLine& add(const char* key, std::uint64_t value) {
    return add(key, static_cast<std::int64_t>(value));
  }
  JsonLine& add(const char* key, int value) { return add(key, static_cast<std::int64_t>(value)); }
  /// JSON has no NaN and no infinity: they become null.
  JsonLine& add(const char* key, double value);
  JsonLine& add(const char* key, const std::string& value);
  JsonLine& add(const char* key, const char* value) { return add(key, std::string(value)); }
  /// The line with its newline.
  std::string text() const { return text_ + "}\n"; }

 private:
  void key_put(const char* key);
  std::string text_;
};

class JobLog {
 public:
  enum class Open { kFresh, kAppend };
  /// An empty path logs nowhere. Throws Failure when the file cannot be opened.
  JobLog(const std::string& path, Open open);
  ~JobLog();
  JobLog(const JobLog&) = delete;
  JobLog& operator=(const JobLog&) = delete;

  /// A full disk or a vanished file system ends logging with one sentence, not the job.
  void write(const JsonLine& line);

 private:
  int fd_ = -1;
};

}  // namespace sluice::train
