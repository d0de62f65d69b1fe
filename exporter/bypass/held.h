// Who holds a device open, whenever it was opened: the descriptors of all processes, in pieces of a
// bounded size. Not thread-safe.
#pragma once

#include <dirent.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exporter/bypass/process_name.h"

namespace sluice::exporter {

class HeldScan {
 public:
  /// `folder`: what is looked through, /proc.
  explicit HeldScan(std::string folder = "/proc") : folder_(std::move(folder)) {}

  /// Appends processes that hold a character device of these numbers. Looks at no more than
  /// `most` processes and descriptors, and goes on from there the next time; how many it looked
  /// at, which is less only where it came to the end of all processes.
  std::size_t look(const std::vector<std::uint32_t>& majors, std::size_t most,
                   std::vector<ProcessName>& out);

 private:
  using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;
  bool process_next();

  const std::string folder_;
  Folder processes_{nullptr, closedir};    // where the pass through all of them is
  Folder descriptors_{nullptr, closedir};  // of the process that is looked at
  std::uint32_t process_ = 0;
};

}  // namespace sluice::exporter
