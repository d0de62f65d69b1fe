// See say.h.
#include "interpose/say.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "interpose/types.h"

namespace sluice::interpose {
namespace {
constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
RateLimit unrecorded_said;

// What descriptor 2 was, and when.
enum Since : uint32_t { kNever, kBefore, kRegistration };
struct Stderr {
  uint32_t since;
  dev_t device;
  ino_t inode;

  bool is(const struct stat& file) const { return file.st_dev == device && file.st_ino == inode; }
};
Stderr remembered;
constexpr int kKeptMax = 1024;

// Whoever points stderr elsewhere for a while, as test runners do, keeps what it was.
bool former_is_kept() {
  for (int fd = STDERR_FILENO + 1; fd < kKeptMax; ++fd) {
    struct stat file;
    if (fstat(fd, &file) == 0 && remembered.is(file)) return true;
  }
  return false;
}

// Whether what is at descriptor 2 is there for people to read. A program that has closed its stderr
// finds the number under the next file or socket that it opens, and a line in the middle of that is
// worse than none.
bool stderr_is_for_people(const struct stat& file) {
  const uint32_t since = load_acquire(remembered.since);
  const bool other = since != kNever && !remembered.is(file);
  if (!S_ISREG(file.st_mode)) return !other || S_ISCHR(file.st_mode) || S_ISFIFO(file.st_mode);
  const int flags = fcntl(STDERR_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_APPEND) != 0) return flags >= 0;  // nothing is overwritten
  // A stderr goes along to whatever is started.
  if ((fcntl(STDERR_FILENO, F_GETFD) & FD_CLOEXEC) != 0) return false;
  // Many programs open their log before they do anything else. Who reads it again has data in it.
  const bool log = since == kBefore && (flags & O_ACCMODE) == O_WRONLY;
  return !other || log || former_is_kept();
}

void stderr_take(uint32_t since) {
  struct stat file;
  if (fstat(STDERR_FILENO, &file) == 0 && stderr_is_for_people(file)) {
    remembered.device = file.st_dev;
    remembered.inode = file.st_ino;
  }
  store_release(remembered.since, since);
}

// Keeps the signals from the program that a write to a descriptor of its choice may raise: a reader
// that is gone, the limit of a file's size, a terminal that belongs to another job.
class WriteSignals {
 public:
  WriteSignals() {
    sigset_t all;
    sigemptyset(&all);
    sigaddset(&all, SIGPIPE);
    sigaddset(&all, SIGXFSZ);
    sigaddset(&all, SIGTTOU);
    sigprocmask(SIG_BLOCK, &all, &before_);
    sigpending(&pending_);
  }
  ~WriteSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  WriteSignals(const WriteSignals&) = delete;
  WriteSignals& operator=(const WriteSignals&) = delete;

  /// Takes back the one that came with this error. One that waited before is the program's.
  void take_back(int error) const {
    const int number = error == EPIPE ? SIGPIPE : error == EFBIG ? SIGXFSZ : 0;
    if (number == 0 || sigismember(&pending_, number) != 0) return;
    sigset_t raised;
    sigemptyset(&raised);
    sigaddset(&raised, number);
    const timespec now{};
    (void)sigtimedwait(&raised, nullptr, &now);
  }

 private:
  sigset_t before_, pending_;
};

// Between the look and the write another thread may fill what had room.
ssize_t write_when_ready(const char* line, size_t length) {
  pollfd look{STDERR_FILENO, POLLOUT, 0};
  errno = EAGAIN;
  if (poll(&look, 1, 0) != 1 || look.revents != POLLOUT) return -1;
  return write(STDERR_FILENO, line, length);
}

ssize_t write_without_waiting(mode_t mode, const char* line, size_t length) {
  if (!S_ISFIFO(mode) && !S_ISSOCK(mode)) return write_when_ready(line, length);
  iovec whole{const_cast<char*>(line), length};
  const ssize_t written = syscall(SYS_pwritev2, STDERR_FILENO, &whole, 1UL, -1L, -1L, RWF_NOWAIT);
  if (written >= 0 || errno == EAGAIN || errno == EPIPE) return written;
  return write_when_ready(line, length);  // Linux before 6.5, or a filter of system calls
}

bool stderr_write(const char* line, size_t length) {
  struct stat file;
  if (fstat(STDERR_FILENO, &file) != 0 || !stderr_is_for_people(file)) return false;
  const WriteSignals signals;
  const ssize_t written = write_without_waiting(file.st_mode, line, length);
  if (written < 0) signals.take_back(errno);
  return written > 0;
}
}  // namespace

Line& Line::text(const char* s) {
  while (*s != '\0' && length_ + 1 < sizeof buffer_) buffer_[length_++] = *s++;
  buffer_[length_] = '\0';
  return *this;
}

Line& Line::number(uint64_t value) {
  char digits[24];
  char* p = digits + sizeof digits - 1;
  *p = '\0';
  do {
    *--p = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  return text(p);
}

int bytes_unit(uint64_t value) {
  int unit = 0;
  while (unit < 4 && value >= uint64_t{1024} << (10 * unit)) ++unit;
  return unit;
}

Line& Line::bytes_in(uint64_t value, int unit) {
  if (unit == 0) return number(value);
  const unsigned shift = static_cast<unsigned>(10 * unit);
  const uint64_t half = (uint64_t{1} << shift) / 20;
  uint64_t whole = value >> shift;
  uint64_t tenths = ((value - (whole << shift)) + half) * 10 >> shift;
  if (tenths == 10) {
    ++whole;
    tenths = 0;
  }
  return number(whole).text(".").number(tenths);
}

Line& Line::bytes(uint64_t value) {
  const int unit = bytes_unit(value);
  return bytes_in(value, unit).text(" ").text(kUnits[unit]);
}

Line& Line::skipped(uint64_t count) {
  if (count == 0) return *this;
  return text(" (").number(count).text(" more since the last such line.)");
}

bool Line::say() const {
  const SystemGuard guard;
  char line[sizeof buffer_ + 16] = "sluice: ";
  strcat(line, buffer_);
  strcat(line, "\n");
  return stderr_write(line, strlen(line));
}

void stderr_remember_before() { stderr_take(kBefore); }
void stderr_remember() { stderr_take(kRegistration); }

void stderr_reset_after_fork() {
  if (remembered.since == kRegistration) remembered.since = kBefore;
}

bool RateLimit::allow(uint64_t now_ns, uint64_t* skipped) {
  uint64_t last = load_relaxed(last_ns_);
  const bool due = last == 0 || now_ns - last >= 1000000000u;
  if (!due || !__atomic_compare_exchange_n(&last_ns_, &last, now_ns, false, __ATOMIC_RELAXED,
                                           __ATOMIC_RELAXED)) {
    __atomic_add_fetch(&skipped_, 1, __ATOMIC_RELAXED);
    return false;
  }
  *skipped = __atomic_exchange_n(&skipped_, 0, __ATOMIC_RELAXED);
  return true;
}

void RateLimit::say(Line& line, uint64_t skipped) {
  if (line.skipped(skipped).say()) return;
  __atomic_add_fetch(&skipped_, skipped + 1, __ATOMIC_RELAXED);
}

void unrecorded_say(const char* what) {
  const ErrnoGuard guard;
  uint64_t skipped = 0;
  if (!unrecorded_said.allow(clock_now_ns(), &skipped)) return;
  Line line;
  line.text("refused a call that cannot be put on record, for lack of ").text(what);
  line.text("; uncounted it would pass the job's limits. Give the program more memory or address ");
  line.text("space (ulimit -v), or have it do with fewer threads, contexts or pools");
  unrecorded_said.say(line, skipped);
}

}  // namespace sluice::interpose
