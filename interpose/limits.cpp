// See limits.h.
#include "interpose/limits.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/lookup.h"
#include "interpose/types.h"

namespace sluice::interpose {
namespace {

constexpr size_t kPolicyBytesMax = 4096;
constexpr size_t kShownMax = 40;  // of a wrong value

constinit Policy current;
uint32_t current_known;
Lock policy_lock;

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

bool size_unit(const char* text, uint64_t* factor) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  for (int i = 0; i < 5; ++i) {
    if (strcmp(text, kUnits[i]) == 0) {
      *factor = uint64_t{1} << (10 * i);
      return true;
    }
  }
  return false;
}

bool duration_read(const char* text, uint64_t* out) {
  text = digits_read(text, out);
  if (text == nullptr || text[0] == '\0' || text[1] != '\0') return false;
  const uint64_t seconds = *text == 's' ? 1 : *text == 'm' ? 60 : *text == 'h' ? 3600 : 0;
  return seconds != 0 && !__builtin_mul_overflow(*out, seconds * 1'000'000'000, out);
}

Line& value_show(Line& line, const char* text) {
  char shown[kShownMax + 1] = {};
  strncpy(shown, text, kShownMax);
  for (char& c : shown) {
    if (c != '\0' && (c < ' ' || c > '~')) c = '?';
  }
  return line.text("'").text(shown).text(strlen(text) > kShownMax ? "...'" : "'");
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
    return size_read(value, &out->limits.memory_bytes) ? nullptr : "memory is a size such as 2GiB";
  }
  if (strcmp(key, "sm") == 0) {
    return percent_read(value, &out->limits.sm_percent) ? nullptr : "sm is a share such as 50%";
  }
  return "the keys are missing_broker, require_broker, hold_max, memory and sm";
}

void policy_ignored_say(const char* reason, const char* remedy) {
  Line line;
  line.text(policy_path()).text(" is ignored: ").text(reason).text("; ").text(remedy);
  line.text("; programs without a broker run as if it were not there").say();
}

// Looked up when needed: each further version of libc that is named costs every program's start.
const char* error_text(int error) {
  using Describe = const char*(int);
  auto* describe = reinterpret_cast<Describe*>(real_dlsym(RTLD_DEFAULT, "strerrordesc_np"));
  const char* text = describe == nullptr ? nullptr : describe(error);
  return text == nullptr ? "it cannot be opened" : text;
}

// A process without a descriptor left is told of that before anybody looks for the file.
bool policy_is_there() {
  return syscall(SYS_faccessat, AT_FDCWD, policy_path(), F_OK) == 0 ||
         (errno != ENOENT && errno != ENOTDIR);
}

// The whole file as text; false when there is none to obey.
bool policy_text(char* text) {
  const int fd = open(policy_path(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    if (error == ELOOP) {
      policy_ignored_say("it is a symbolic link, which is not followed",
                         "put the file itself in its place");
    } else if (policy_is_there()) {
      policy_ignored_say(error_text(error), "let everybody read it (chmod 644)");
    }
    return false;
  }
  struct stat status;
  const char* fault = nullptr;
  const char* remedy = "chown root, chmod 644";
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    fault = "it is no ordinary file";
    remedy = "put one in its place";
  } else if (status.st_uid != 0) {
    fault = "it does not belong to root";
  } else if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    fault = "others than root may write to it";
  }
  size_t length = 0;
  for (ssize_t n = 1; fault == nullptr && n > 0 && length < kPolicyBytesMax;) {
    n = read(fd, text + length, kPolicyBytesMax - length);
    if (n > 0) length += static_cast<size_t>(n);
  }
  close(fd);
  text[length] = '\0';
  if (fault != nullptr) policy_ignored_say(fault, remedy);
  return fault == nullptr;
}

// Once, by whoever holds policy_lock: no stack of the program's has to have room for the file.
void policy_load() {
  static char text[kPolicyBytesMax + 1];
  if (!policy_text(text)) return;
  Line fault;
  fault.text(policy_path()).text(": ");
  Policy read;
  if (policy_parse(text, &read, &fault)) {
    current = read;
    return;
  }
  // Somebody meant to limit programs here. None of them runs free because of a slip.
  current.missing = MissingBroker::kHold;
  fault.text("; until that is corrected, CUDA calls without a broker wait (missing_broker = hold)");
  fault.say();
}

}  // namespace

Limits limits_narrow(const Limits& a, const Limits& b) {
  Limits out = a;
  // 0 is the widest: by one less, it is the largest number.
  if (b.memory_bytes - 1 < a.memory_bytes - 1) out.memory_bytes = b.memory_bytes;
  if (b.sm_percent < a.sm_percent) out.sm_percent = b.sm_percent;
  return out;
}

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
  if (*text == '\0') {
    if (scale != 1) return false;  // half a byte
  } else {
    while (*text == ' ') ++text;
    if (!size_unit(text, &factor)) return false;
  }
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

bool limits_read(const char* memory, const char* sm, Limits* out, Line* fault) {
  if (memory != nullptr && memory[0] != '\0' && !size_read(memory, &out->memory_bytes)) {
    value_show(fault->text(kMemoryVariable).text(" is "), memory)
        .text(
            ", which is no size above 0; CUDA calls fail until it is one, such as 2GiB or 512MiB, "
            "or is unset");
    return false;
  }
  if (sm != nullptr && sm[0] != '\0' && !percent_read(sm, &out->sm_percent)) {
    value_show(fault->text(kSmVariable).text(" is "), sm)
        .text(
            ", which is no whole percentage from 1 to 100; CUDA calls fail until it is one, such "
            "as 50%, or is unset");
    return false;
  }
  return true;
}

bool policy_parse(char* text, Policy* out, Line* fault) {
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
    fault->text("line ").number(number).text(": ").text(wrong);
    return false;
  }
  if (read.missing == MissingBroker::kStatic && !read.limits.any()) {
    fault->text("missing_broker = static needs memory or sm");
    return false;
  }
  *out = read;
  return true;
}

void policy_reset_after_fork() { policy_lock.reset_after_fork(); }

const Policy& policy() {
  if (load_acquire(current_known) != 0) return current;
  const SystemGuard guard;
  const LockScope scope(policy_lock);
  if (current_known == 0) policy_load();
  store_release(current_known, 1u);
  return current;
}

}  // namespace sluice::interpose
