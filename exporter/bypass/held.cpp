#include "exporter/bypass/held.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "exporter/idle/proc.h"

namespace sluice::exporter {
namespace {

/// 0 for what is no number.
std::uint32_t number_of(const char* name) {
  std::uint32_t out = 0;
  const char* end = name + std::strlen(name);
  const auto read = std::from_chars(name, end, out);
  return read.ec == std::errc() && read.ptr == end ? out : 0;
}

/// Asks for what the kernel has at hand: a file of a server that hangs, or of a program that makes
/// one wait on purpose, holds nobody up.
bool is_device(int folder, const char* name, const std::vector<std::uint32_t>& majors) {
  struct statx file {};
  return statx(folder, name, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &file) == 0 &&
         S_ISCHR(file.stx_mode) && std::ranges::find(majors, file.stx_rdev_major) != majors.end();
}

/// Of the process whose folder of descriptors it is: an open folder is never a later process's. 0
/// where it has ended.
std::uint64_t start_ticks_in(int descriptors) {
  constexpr std::size_t kStatBytes = 4096;
  char text[kStatBytes];
  const int file = openat(descriptors, "../stat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t bytes = read(file, text, sizeof text);
  close(file);
  return bytes > 0 ? start_ticks_read({text, static_cast<std::size_t>(bytes)}) : 0;
}

}  // namespace

/// False at the end of all.
bool HeldScan::process_next() {
  for (const dirent* entry; (entry = readdir(processes_.get())) != nullptr;) {
    process_ = number_of(entry->d_name);
    if (process_ == 0) continue;
    // Who ended, or may not be looked at, has none.
    descriptors_.reset(opendir((folder_ + "/" + entry->d_name + "/fd").c_str()));
    return true;
  }
  return false;
}

std::size_t HeldScan::look(const std::vector<std::uint32_t>& majors, std::size_t most,
                           std::vector<ProcessName>& out) {
  if (majors.empty()) return 0;
  if (processes_ == nullptr) processes_.reset(opendir(folder_.c_str()));
  if (processes_ == nullptr) return 0;
  for (std::size_t looked = 0; looked < most; ++looked) {
    if (descriptors_ == nullptr) {
      if (process_next()) continue;
      processes_.reset();
      return looked;
    }
    const dirent* entry = readdir(descriptors_.get());
    if (entry == nullptr) {
      descriptors_.reset();
    } else if (entry->d_name[0] != '.' &&
               is_device(dirfd(descriptors_.get()), entry->d_name, majors)) {
      out.push_back({process_, start_ticks_in(dirfd(descriptors_.get()))});
      descriptors_.reset();  // one is enough
    }
  }
  return most;
}

}  // namespace sluice::exporter
