// Descriptors that the software GPU opens, and writes to, within a program that it does not know.
#pragma once

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>

namespace softgpu::device {

/// Moves `file` away from the numbers of stdin, stdout and stderr, and returns its new number; -1
/// with errno. A program that is started with these closed goes on printing: what it prints must
/// not end up in a device's segment. Negative numbers are returned as they are.
inline int above_standard(int file) {
  if (file < 0 || file > STDERR_FILENO) return file;
  const int moved = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(file);
  errno = error;
  return moved;
}

/// The largest file that the program may make (`ulimit -f`).
inline std::uint64_t file_size_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

/// Gives a file this size. False, with errno: a size beyond the program's limit on the size of
/// files raises SIGXFSZ, which ends the program, so it is EFBIG and not tried.
inline bool file_size_set(int file, std::uint64_t bytes) {
  if (file_size_limit() < bytes) {
    errno = EFBIG;
    return false;
  }
  return ftruncate(file, static_cast<off_t>(bytes)) == 0;
}

/// False, with ENOSPC, where the file is in memory (tmpfs) and that has no room for so many bytes
/// more: a mapping beyond it ends the program by SIGBUS. A disk tells less than it has, because
/// what was removed counts for some seconds.
inline bool file_system_has(int file, std::uint64_t bytes) {
  struct statfs there {};
  if (fstatfs(file, &there) != 0 || there.f_type != TMPFS_MAGIC) return true;
  if (there.f_blocks == 0) return true;  // it has no limit
  if (bytes / static_cast<std::uint64_t>(there.f_bsize) < there.f_bavail) return true;
  errno = ENOSPC;
  return false;
}

/// Writes a line. A reader that is gone, or a limit on the size of files, raises no signal in the
/// program.
inline void line_write(int file, const std::string& line) {
  sigset_t raised, before, pending;
  sigemptyset(&raised);
  for (const int number : {SIGPIPE, SIGXFSZ}) sigaddset(&raised, number);
  pthread_sigmask(SIG_BLOCK, &raised, &before);
  sigpending(&pending);
  if (write(file, line.data(), line.size()) < 0 && (errno == EPIPE || errno == EFBIG)) {
    const int number = errno == EPIPE ? SIGPIPE : SIGXFSZ;
    sigemptyset(&raised);
    sigaddset(&raised, number);
    const timespec now{};
    if (sigismember(&pending, number) == 0) sigtimedwait(&raised, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// False with a sentence in `error`: what was opened is a FIFO, a directory or the like. Files that
/// others may replace are opened with O_NONBLOCK, so that a FIFO in their place makes nothing wait.
inline bool regular_file(int file, std::string& error) {
  struct stat status {};
  if (fstat(file, &status) != 0) {
    error = std::strerror(errno);
    return false;
  }
  if (S_ISREG(status.st_mode)) return true;
  const char* const what = S_ISFIFO(status.st_mode)  ? "a FIFO"
                           : S_ISDIR(status.st_mode) ? "a directory"
                                                     : "a device or socket";
  error = std::string("it is ") + what + ", not a file";
  return false;
}

}  // namespace softgpu::device
