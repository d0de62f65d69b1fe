// The kernel itself.
#include "broker/daemon/journal_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sluice::daemon {
namespace {

template <class T>
T or_errno(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

}  // namespace

int JournalFiles::make_directory(const char* path, mode_t mode) {
  return or_errno(mkdir(path, mode));
}

int JournalFiles::look_at_directory(const char* path, uid_t* owner, mode_t* mode) {
  struct stat status {};
  if (lstat(path, &status) < 0) return -errno;
  if (!S_ISDIR(status.st_mode)) return -ENOTDIR;
  *owner = status.st_uid;
  *mode = status.st_mode & 07777;
  return 0;
}

int JournalFiles::open(const char* path, int flags, mode_t mode) {
  return or_errno(::open(path, flags | O_CLOEXEC, mode));
}

int JournalFiles::look_at_file(int fd, uid_t* owner, mode_t* mode) {
  struct stat status {};
  if (fstat(fd, &status) < 0) return -errno;
  *owner = status.st_uid;
  *mode = status.st_mode;
  return 0;
}

int JournalFiles::lock(int fd) { return or_errno(flock(fd, LOCK_EX | LOCK_NB)); }

ssize_t JournalFiles::read(int fd, void* bytes, std::size_t size) {
  return or_errno(::read(fd, bytes, size));
}

ssize_t JournalFiles::write(int fd, const void* bytes, std::size_t size) {
  return or_errno(::write(fd, bytes, size));
}

int JournalFiles::sync(int fd) { return or_errno(fsync(fd)); }

int JournalFiles::truncate(int fd, off_t size) { return or_errno(ftruncate(fd, size)); }

int JournalFiles::rename(const char* from, const char* to) { return or_errno(::rename(from, to)); }

int JournalFiles::remove(const char* path) { return or_errno(unlink(path)); }

int JournalFiles::close(int fd) { return or_errno(::close(fd)); }

}  // namespace sluice::daemon
