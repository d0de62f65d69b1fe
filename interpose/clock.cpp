// See clock.h.
#include "interpose/clock.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/say.h"

namespace sluice::interpose {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

int64_t offset_ns;
uint32_t known;

// Skips blanks; the digits may have a sign.
int64_t number_take(const char*& at) {
  while (*at == ' ' || *at == '\t') ++at;
  const bool negative = *at == '-';
  if (negative) ++at;
  int64_t value = 0;
  for (; *at >= '0' && *at <= '9'; ++at) value = value * 10 + (*at - '0');
  return negative ? -value : value;
}

int64_t offset_of(const char* path) {
  char text[256] = {};
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  return n > 0 ? clock_offset_read(text) : 0;
}

bool link_read(const char* path, char (&out)[64]) {
  return syscall(SYS_readlinkat, AT_FDCWD, path, out, sizeof out - 1) > 0;
}

// The file is about the children's namespace. That is another one only where this process has made
// it for them; its own is then the one that its parent made for it.
bool children_have_another() {
  char own[64] = {}, children[64] = {};
  return link_read("/proc/self/ns/time", own) &&
         link_read("/proc/self/ns/time_for_children", children) && strcmp(own, children) != 0;
}

int64_t offset_find() {
  if (!children_have_another()) return offset_of("/proc/self/timens_offsets");
  const auto parent = static_cast<uint64_t>(syscall(SYS_getppid));
  Line path;
  return offset_of(path.text("/proc/").number(parent).text("/timens_offsets").c_str());
}

}  // namespace

int64_t clock_offset_read(const char* text) {
  constexpr char kName[] = "monotonic";
  if (strncmp(text, kName, sizeof kName - 1) != 0) return 0;
  const char* at = text + sizeof kName - 1;
  const int64_t seconds = number_take(at);
  return seconds * kSecondNs + number_take(at);
}

int64_t clock_offset_ns() {
  if (SLUICE_LIKELY(load_acquire(known) != 0)) return load_relaxed(offset_ns);
  const SystemGuard guard;
  const int64_t found_ns = offset_find();
  __atomic_store_n(&offset_ns, found_ns, __ATOMIC_RELAXED);
  store_release(known, 1u);
  return found_ns;
}

void clock_reset_after_fork() { store_release(known, 0u); }

}  // namespace sluice::interpose
