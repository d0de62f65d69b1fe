// The system calls that the journal makes, behind an interface, so that a test can have any one of
// them fail. Every function answers as the kernel does, with -errno in place of -1.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace sluice::daemon {

class JournalFiles {
 public:
  virtual ~JournalFiles() = default;
  virtual int make_directory(const char* path, mode_t mode);
  /// Owner and permissions of a directory; -ENOTDIR for anything else.
  virtual int look_at_directory(const char* path, uid_t* owner, mode_t* mode);
  virtual int open(const char* path, int flags, mode_t mode);
  /// Owner, and kind and permissions, of an open file.
  virtual int look_at_file(int fd, uid_t* owner, mode_t* mode);
  /// Exclusive, without waiting; it ends with the descriptor.
  virtual int lock(int fd);
  virtual ssize_t read(int fd, void* bytes, std::size_t size);
  virtual ssize_t write(int fd, const void* bytes, std::size_t size);
  virtual int sync(int fd);
  virtual int truncate(int fd, off_t size);
  virtual int rename(const char* from, const char* to);
  virtual int remove(const char* path);
  virtual int close(int fd);
};

}  // namespace sluice::daemon
