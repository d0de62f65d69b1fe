// See log.h.
#include "trainer/job/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "trainer/base/failure.h"

namespace sluice::train {

JsonLine::JsonLine(const char* event, Nanos t_ns) : text_("{") {
  add("event", event);
  add("t_ns", static_cast<std::int64_t>(t_ns));
}

void JsonLine::key_put(const char* key) {
  if (text_.size() > 1) text_ += ',';
  text_ += '"';
  text_ += key;
  text_ += "\":";
}

JsonLine& JsonLine::add(const char* key, std::int64_t value) {
  key_put(key);
  text_ += std::to_string(value);
  return *this;
}

JsonLine& JsonLine::add(const char* key, double value) {
  key_put(key);
  text_ += std::isfinite(value) ? text_format("%.9g", value) : "null";
  return *this;
}

JsonLine& JsonLine::add(const char* key, const std::string& value) {
  key_put(key);
  text_ += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      text_ += text_format("\\u%04x", c);
    } else {
      text_ += c;
    }
  }
  text_ += '"';
  return *this;
}

JobLog::JobLog(const std::string& path, Open open_mode) {
  if (path.empty()) return;
  const int truncate = open_mode == Open::kFresh ? O_TRUNC : 0;
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | truncate, 0644);
  if (fd_ < 0) throw errno_failure("opening the log " + path);
}

JobLog::~JobLog() {
  if (fd_ >= 0) close(fd_);
}

void JobLog::write(const JsonLine& line) {
  if (fd_ < 0) return;
  const std::string text = line.text();
  if (::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size())) return;
  std::fprintf(stderr, "sluice: %s; the job goes on without a log\n",
               errno_failure("writing the log").what());
  close(fd_);
  fd_ = -1;
}

}  // namespace sluice::train
