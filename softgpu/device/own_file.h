// A file that the software GPU keeps open within a program that it does not know. The program may
// close the descriptor at any moment, and its number is then another file's: one of the program's,
// or a device's. So nothing is resized, emptied or written through the number, and what is mapped
// through it counts only if the number was the file's before and after.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace softgpu::device {

/// Tells a file from any other that has its number later.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  /// Of an open file; of none, it is no file's.
  static FileIdentity of(int file);
  bool is(int file) const;
};

/// Owns a descriptor. Another thread of the program may take it away during any call.
class OwnFile {
 public:
  OwnFile() = default;
  /// Takes `file`, which may be -1, away from the numbers of stdin, stdout and stderr.
  explicit OwnFile(int file);
  /// A file in memory of `bytes`, none of which is taken before it is touched. Without one: errno;
  /// EFBIG is the program's limit on the size of files (`ulimit -f`).
  static OwnFile in_memory(const char* name, std::uint64_t bytes);
  /// Closes it, unless the number is another file's.
  ~OwnFile();
  OwnFile(OwnFile&& other) noexcept;
  OwnFile& operator=(OwnFile&& other) noexcept;

  /// Whether there ever was a file.
  bool opened() const { return file_ >= 0; }
  /// The descriptor; -1 with EBADF in errno: there is none, or the program took it away.
  int number() const;
  std::uint64_t inode() const { return identity_.inode; }
  /// As mmap; EBADF if the program took the descriptor away. With MAP_FIXED the addresses have no
  /// memory behind them then.
  void* map(void* at, std::size_t bytes, int protection, int flags, std::uint64_t offset) const;

 private:
  int file_ = -1;
  FileIdentity identity_;
};

/// Gives back the host's pages of a file behind a mapping that is about to go.
void mapped_pages_drop(void* pages, std::size_t bytes);

}  // namespace softgpu::device
