// Paths relative to the program, and the search of PATH.
#include "broker/cli/paths.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

namespace sluice::cli {
namespace {

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string own_directory() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  return length <= 0 ? "." : parent(std::string(path, static_cast<std::size_t>(length)));
}

bool regular(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

std::string program_path(const std::string& name) { return own_directory() + "/" + name; }
std::string library_path(const std::string& name) {
  return parent(own_directory()) + "/lib/" + name;
}
std::string soft_directory() { return library_path("softgpu"); }

std::string program_find(const std::string& name, bool* executable) {
  *executable = false;
  if (name.find('/') != std::string::npos) {
    *executable = regular(name) && access(name.c_str(), X_OK) == 0;
    return access(name.c_str(), F_OK) == 0 ? name : "";
  }
  const char* variable = getenv("PATH");
  std::string_view rest = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  std::string found;
  for (;;) {
    const std::size_t end = rest.find(':');
    const std::string directory(rest.substr(0, end));
    const std::string path = (directory.empty() ? "." : directory) + "/" + name;
    if (regular(path)) {
      *executable = access(path.c_str(), X_OK) == 0;
      if (*executable) return path;
      if (found.empty()) found = path;
    }
    if (end == std::string_view::npos) return found;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace sluice::cli
