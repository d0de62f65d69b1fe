// See shim_policy.h. The shim links this file, so it uses libc alone and allocates nothing.
#include "broker/protocol/shim_policy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sluice::protocol {
namespace {

__extension__ typedef unsigned __int128 Wide;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

const char* digits_read(const char* text, uint64_t* out) {
  if (!is_digit(*text)) return nullptr;
  for (*out = 0; is_digit(*text); ++text) {
    if (__builtin_mul_overflow(*out, 10, out) ||
        __builtin_add_overflow(*out, static_cast<uint64_t>(*text - '0'), out)) {
      return nullptr;
    }
  }
  return text;
}

// "B"; "K", "KiB" are binary, "KB" and "kB" decimal, and so on up to P.
bool size_unit(const char* text, uint64_t* factor) {
  static constexpr char kPrefixes[] = "KMGTP";
  *factor = 1;
  if (strcmp(text, "B") == 0) return true;
  const char first = strcmp(text, "kB") == 0 ? 'K' : *text;
  const char* prefix = first == '\0' ? nullptr : strchr(kPrefixes, first);
  const bool decimal = first != '\0' && strcmp(text + 1, "B") == 0;
  if (prefix == nullptr || !(decimal || text[1] == '\0' || strcmp(text + 1, "iB") == 0))
    return false;
  for (ptrdiff_t n = prefix - kPrefixes; n >= 0; --n) *factor *= decimal ? 1000 : 1024;
  return true;
}

bool duration_read(const char* text, uint64_t* out) {
  text = digits_read(text, out);
  if (text == nullptr || text[0] == '\0' || text[1] != '\0') return false;
  const uint64_t seconds = *text == 's' ? 1 : *text == 'm' ? 60 : *text == 'h' ? 3600 : 0;
  return seconds != 0 && !__builtin_mul_overflow(*out, seconds * 1'000'000'000, out);
}

char* trim(char* text) {
  while (*text == ' ' || *text == '\t') ++text;
  for (size_t n = strlen(text); n > 0 && strchr(" \t\r", text[n - 1]) != nullptr; --n) {
    text[n - 1] = '\0';
  }
  return text;
}

// nullptr = good; otherwise what the value should have been.
const char* policy_set(const char* key, const char* value, Policy* out) {
  if (strcmp(key, "missing_broker") == 0) {
    out->missing = strcmp(value, "hold") == 0     ? MissingBroker::kHold
                   : strcmp(value, "static") == 0 ? MissingBroker::kStatic
                   : strcmp(value, "open") == 0   ? MissingBroker::kOpen
                                                  : MissingBroker::kKeep;
    return out->missing == MissingBroker::kKeep && strcmp(value, "keep") != 0
               ? "missing_broker is keep, open, hold or static"
               : nullptr;
  }
  if (strcmp(key, "require_broker") == 0) {
    out->broker_required = strcmp(value, "yes") == 0;
    return out->broker_required || strcmp(value, "no") == 0 ? nullptr
                                                            : "require_broker is yes or no";
  }
  if (strcmp(key, "hold_max") == 0) {
    return duration_read(value, &out->hold_ns) ? nullptr
                                               : "hold_max is a time such as 60s, 5m or 0s";
  }
  if (strcmp(key, "memory") == 0) {
    return size_read(value, &out->limits.memory_bytes)
               ? nullptr
               : "memory is a size with its unit, such as 2GiB";
  }
  if (strcmp(key, "sm") == 0) {
    return percent_read(value, &out->limits.sm_percent) ? nullptr : "sm is a share such as 50%";
  }
  return "the keys are missing_broker, require_broker, hold_max, memory and sm";
}

// A process without a descriptor left is told of that before the file is looked for.
bool policy_is_there(const char* path) {
  return syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

PolicyFile not_opened(const char* path, int error, PolicyIgnored* ignored) {
  if (error == ELOOP) {
    *ignored = {0, "it is a symbolic link, which is not followed",
                "put the file itself in its place"};
    return PolicyFile::kIgnored;
  }
  *ignored = {error, nullptr, "let everybody read it (chmod 644)"};
  return policy_is_there(path) ? PolicyFile::kIgnored : PolicyFile::kAbsent;
}

bool is_roots_alone(int fd, PolicyIgnored* ignored) {
  struct stat status;
  *ignored = {0, nullptr, "chown root, chmod 644"};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    *ignored = {0, "it is no ordinary file", "put one in its place"};
  } else if (status.st_uid != 0) {
    ignored->reason = "it does not belong to root";
  } else if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    ignored->reason = "others than root may write to it";
  }
  return ignored->reason == nullptr;
}

}  // namespace

bool size_read(const char* text, uint64_t* out) {
  constexpr int kFractionDigitsMax = 9;
  uint64_t whole = 0, fraction = 0, scale = 1, factor = 1;
  text = digits_read(text, &whole);
  if (text == nullptr) return false;
  if (*text == '.') {
    const char* begin = ++text;
    text = digits_read(text, &fraction);
    if (text == nullptr || text - begin > kFractionDigitsMax) return false;
    for (; begin < text; ++begin) scale *= 10;
  }
  while (*text == ' ') ++text;
  if (!size_unit(text, &factor)) return false;
  const Wide bytes = Wide{whole} * factor + Wide{fraction} * factor / scale;
  if (bytes == 0 || bytes > UINT64_MAX) return false;
  *out = static_cast<uint64_t>(bytes);
  return true;
}

bool percent_read(const char* text, uint32_t* out) {
  uint64_t value = 0;
  text = digits_read(text, &value);
  if (text == nullptr || value < 1 || value > 100) return false;
  if (*text == '%') ++text;
  if (*text != '\0') return false;
  *out = static_cast<uint32_t>(value);
  return true;
}

bool policy_parse(char* text, Policy* out, PolicyMistake* mistake) {
  Policy read;
  uint64_t number = 1;
  for (char* line = text; line != nullptr; ++number) {
    char* end = strchr(line, '\n');
    if (end != nullptr) *end = '\0';
    char* key = trim(line);
    line = end == nullptr ? nullptr : end + 1;
    if (*key == '\0' || *key == '#') continue;
    char* equals = strchr(key, '=');
    const char* wrong = "a line is KEY = VALUE";
    if (equals != nullptr) {
      *equals = '\0';
      wrong = policy_set(trim(key), trim(equals + 1), &read);
    }
    if (wrong == nullptr) continue;
    *mistake = {number, wrong};
    return false;
  }
  if (read.missing == MissingBroker::kStatic && !read.limits.any()) {
    *mistake = {0, "missing_broker = static needs memory or sm"};
    return false;
  }
  *out = read;
  return true;
}

Policy policy_of_mistake() {
  Policy policy;
  policy.missing = MissingBroker::kHold;
  policy.broker_required = true;
  return policy;
}

PolicyFile policy_file_read(const char* path, char text[kPolicyBytesMax + 1],
                            PolicyIgnored* ignored) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return not_opened(path, errno, ignored);
  const bool good = is_roots_alone(fd, ignored);
  size_t length = 0;
  for (ssize_t n = 1; good && n > 0 && length < kPolicyBytesMax;) {
    n = read(fd, text + length, kPolicyBytesMax - length);
    if (n > 0) length += static_cast<size_t>(n);
  }
  close(fd);
  text[length] = '\0';
  if (!good) return PolicyFile::kIgnored;
  const bool whole = length < kPolicyBytesMax && strlen(text) == length;
  return whole ? PolicyFile::kRead : PolicyFile::kNoText;
}

}  // namespace sluice::protocol
