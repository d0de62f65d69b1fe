// A device directory of one test's own, removed when the test ends. Sets SOFTGPU_DIR and the
// settings for this process and its children.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <utility>

namespace softgpu_test {

class TemporaryDevices {
 public:
  explicit TemporaryDevices(
      std::initializer_list<std::pair<const char*, const char*>> settings = {}) {
    std::string pattern = (std::filesystem::temp_directory_path() / "softgpu-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
    setenv("SOFTGPU_DIR", path_.c_str(), 1);
    for (const auto& [name, value] : settings) setenv(name, value, 1);
  }
  ~TemporaryDevices() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDevices(const TemporaryDevices&) = delete;
  TemporaryDevices& operator=(const TemporaryDevices&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace softgpu_test
