// Descriptors of device memory that the program has been given (cuMemExportToShareableHandle). Each
// keeps the memory on the device, wherever it is: in a child, in a message on its way, in a program
// that never calls the driver. No call tells when the last copy is closed. So the open file
// description that the program gets has a lock, which ends with its last descriptor, and the kernel
// lists the locks of all processes (/proc/locks).
#pragma once

#include <cstdint>
#include <set>

namespace softgpu::device {

/// Returns a new open file description of the file behind `file`, or a copy of the descriptor where
/// /proc does not have it; -1 with errno.
int file_reopen(int file);
/// Returns the same for the program, with the lock; a copy has none and keeps no memory.
int file_give(int file);

/// The memory files of which a program has a descriptor, as the kernel lists them at the first
/// question.
class GivenFiles {
 public:
  /// Returns true also if there is no list.
  bool has(std::uint64_t inode);

 private:
  void list_read();
  bool read_ = false, told_ = false;
  std::set<std::uint64_t> inodes_;
};

}  // namespace softgpu::device
