// What the parts of probe_driver share: the driver as it was loaded, and other programs beside this
// one. Each part prints one member of the JSON object.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <string>
#include <vector>

namespace probe {

template <class Function>
Function function_named(void* library, const char* name) {
  Function function = nullptr;
  void* found = dlsym(library, name);
  std::memcpy(&function, &found, sizeof(function));
  return function;
}

/// What a child printed and how it ended.
struct Answer {
  std::string text;
  std::string ended;  // "status 0", "signal 11", "timeout"
};
/// Runs a program of this program's own directory. `settings` are NAME=VALUE; a value of another
/// program is told by its full path.
Answer sibling_run(const std::string& program, const std::vector<std::string>& arguments,
                   const std::vector<std::string>& settings = {}, unsigned timeout_s = 60);
std::string sibling_path(const std::string& name);

/// For every call of which the manuals leave open whether a capturing stream bears it: what it
/// answers and whether the capture survives. Each call in a process of its own.
void captures_print();
/// That process: prints the answers of one call.
int capture_probe(void* library, const std::string& symbol);
/// Which changed answers NVIDIA's runtime accepts.
void integrity_print();
/// What a wrapper adds to a launch through the runtime, and what a pair of events costs.
void overhead_print();

}  // namespace probe
