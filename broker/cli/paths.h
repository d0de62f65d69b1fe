// Where the installation lies, seen from the running program: siblings are found relative to
// /proc/self/exe, so a build tree and an installed tree work the same, wherever they are.
#pragma once

#include <string>
#include <string_view>

namespace sluice::cli {

/// DIR/bin/NAME beside the running program.
std::string program_path(const std::string& name);
/// DIR/lib/NAME.
std::string library_path(const std::string& name);
/// The directory of the software GPU's libraries.
std::string soft_directory();

/// What follows the last slash of a path.
inline std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // no slash: npos + 1 = 0
}
/// PROGRAM as execvp would find it; empty when there is none. `executable` tells a file that may
/// not be executed.
std::string program_find(const std::string& name, bool* executable);

}  // namespace sluice::cli
