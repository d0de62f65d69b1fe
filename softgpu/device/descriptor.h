// Descriptors that the software GPU opens within a program that it does not know.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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
