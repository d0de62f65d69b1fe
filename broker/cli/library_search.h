// Where ld.so(8) would find a shared library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "broker/cli/elf.h"
#include "broker/devices/fd.h"

namespace sluice::cli {

/// A file's bytes while the object lives; empty when it cannot be read.
class FileBytes {
 public:
  explicit FileBytes(const std::string& path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;
  std::string_view view() const { return view_; }
  /// The parts of it that are no holes, from its begin up to so many bytes together. `all`: they
  /// are all that it has.
  std::vector<std::string_view> data(std::size_t most, bool* all) const;

 private:
  std::string_view view_;
  devices::Fd file_;
};

class LibrarySearch {
 public:
  /// `first` are directories looked into as if they were in LD_LIBRARY_PATH.
  explicit LibrarySearch(std::vector<std::string> first);
  /// The path of `name` as needed by the object at `path`; empty if there is none of its kind.
  std::string find(const std::string& name, const std::string& path, const ElfFacts& object) const;

 private:
  std::vector<std::string> first_;
  std::string cache_;  // of /etc/ld.so.cache
};

/// The path of a library in the bytes of an ld.so.cache; empty if it is not there. Pure.
std::string cache_find(std::string_view cache, std::string_view name);

}  // namespace sluice::cli
