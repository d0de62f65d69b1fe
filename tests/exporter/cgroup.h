// Control groups of a test's own, to slow its children and nobody else. Version 1 and 2.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace sluice::exporter {

class Cgroup {
 public:
  /// In which a disk gives `bytes_per_s` to reads of the file system that holds `path`. On failure
  /// null, and `reason` says why.
  static std::unique_ptr<Cgroup> with_slow_disk(const std::string& path, std::uint64_t bytes_per_s,
                                                std::string* reason);
  /// Whose processes get `percent` of one CPU, in slices of a tenth of a second.
  static std::unique_ptr<Cgroup> with_cpu(unsigned percent, std::string* reason);
  /// Waits for its processes to be gone and removes it.
  ~Cgroup();
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  bool add(std::uint32_t process) const;

 private:
  explicit Cgroup(std::string folder) : folder_(std::move(folder)) {}
  static std::unique_ptr<Cgroup> made(const std::string& controller, bool* second,
                                      std::string* reason);
  bool put(const std::string& file, const std::string& text) const;

  std::string folder_;
};

}  // namespace sluice::exporter
