// See given_files.h.
#include "softgpu/device/given_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace softgpu::device {
namespace {

/// Beyond the contents of any file, where no program locks.
constexpr off_t kMark = (off_t{1} << 40) + 1;

/// Reads the list whole. A program's first call may come from a thread with the smallest stack that
/// there is, so the buffer lies elsewhere.
bool locks_read(std::string& text) {
  const int file = open("/proc/locks", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::string part(16384, '\0');
  ssize_t length = 0;
  while ((length = read(file, part.data(), part.size())) > 0)
    text.append(part, 0, static_cast<std::size_t>(length));
  close(file);
  return length == 0;
}

/// "1: OFDLCK ADVISORY  READ -1 00:01:1027159 0 0": the inode of a line that is a mark; else 0.
std::uint64_t marked_inode(const char* line) {
  unsigned long long inode = 0, begin = 0;
  const int fields =
      std::sscanf(line, "%*d: OFDLCK %*s READ %*d %*x:%*x:%llu %llu", &inode, &begin);
  return fields == 2 && begin == static_cast<unsigned long long>(kMark) ? inode : 0;
}

int opened_anew(int file) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  return open(path, O_RDWR | O_CLOEXEC);
}

}  // namespace

int file_reopen(int file) {
  const int opened = opened_anew(file);
  return opened >= 0 ? opened : fcntl(file, F_DUPFD_CLOEXEC, 0);
}

int file_give(int file) {
  const int opened = opened_anew(file);
  if (opened < 0) return fcntl(file, F_DUPFD_CLOEXEC, 0);
  struct flock mark {};
  mark.l_type = F_RDLCK;
  mark.l_whence = SEEK_SET;
  mark.l_start = kMark;
  mark.l_len = 1;
  (void)fcntl(opened, F_OFD_SETLK, &mark);
  return opened;
}

bool GivenFiles::has(std::uint64_t inode) {
  if (!read_) list_read();
  return !told_ || inodes_.contains(inode);
}

void GivenFiles::list_read() {
  read_ = true;
  std::string text;
  told_ = locks_read(text);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    text[end] = '\0';
    if (const std::uint64_t inode = marked_inode(text.data() + at); inode != 0)
      inodes_.insert(inode);
    at = end + 1;
  }
}

}  // namespace softgpu::device
