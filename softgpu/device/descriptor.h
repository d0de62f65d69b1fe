// Descriptors that the software GPU opens within a program that it does not know.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

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

}  // namespace softgpu::device
