// The management library as the rows use it: opened by its name when the row starts, its functions
// found by theirs, as monitors do. Only the declarations come from the repository.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "softgpu/nvml/nvml.h"
#include "tests/conformance/harness.h"

namespace conformance {

/// The address of a function of libnvidia-ml.so.1; the row ends when there is none.
void* nvml_symbol(const char* name);
template <typename Function>
Function* nvml_function(const char* name) {
  return reinterpret_cast<Function*>(nvml_symbol(name));
}
#define NVML(name) (conformance::nvml_function<decltype(name)>(#name))

#define NVML_MUST(call)                                                                        \
  do {                                                                                         \
    if (!::conformance::answered(call, NVML_SUCCESS, #call, __FILE__, __LINE__, true)) return; \
  } while (false)
#define NVML_ANSWERS(result, call) ANSWERS(result, call)

/// The library, initialised; shut down with it.
class Library {
 public:
  Library();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  /// The device that CUDA calls `ordinal`, found by its UUID.
  nvmlDevice_t device(int ordinal = 0) const;
  /// The first of the library's own order.
  nvmlDevice_t first() const;
};

std::string uuid_text(int ordinal);
/// The processes of a device, with a buffer that is large enough.
std::vector<nvmlProcessInfo_t> processes(nvmlDevice_t device);
/// Process numbers are those of the machine: inside a process namespace of its own a row cannot
/// know its own.
bool pid_is_global();

/// A kernel that runs from construction to destruction, in a context that is current.
class Busy {
 public:
  Busy();
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  unsigned* words_ = nullptr;  // pinned: [0] the flag, [1] what was seen
};

/// Asks again, at most so long, until it is true.
bool becomes_true(const std::function<bool()>& ask, int seconds = 15);

}  // namespace conformance
