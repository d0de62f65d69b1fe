// What the conformance rows share. A row is one GoogleTest case, FAMILY.NAME, and one line of the
// table of behaviours; it runs in a process of its own. The same program runs on the software GPU
// and on hardware: nothing here may ask which of the two it is, except to choose settings that
// hardware has by itself (settings_soft) and to leave out what a machine lacks (devices_need).
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace conformance {

/// True when a call's result is the wanted one; else a failure that names the call, which ends the
/// row where `fatal`. Results of every library here are enumerations of an int. A function and not
/// GoogleTest's macros: most lines of most rows are such a check.
bool answered(int result, int wanted, const char* call, const char* file, int line,
              bool fatal) noexcept;

/// A row: `ROW(family, name) { ... }`. A function and a line of a list, where GoogleTest's macro
/// makes a class and a factory: there are more than a thousand of them.
#define ROW(family, name)                                                                      \
  static void row_##family##_##name();                                                         \
  static const ::conformance::Row listed_##family##_##name(#family, #name, __FILE__, __LINE__, \
                                                           row_##family##_##name);             \
  static void row_##family##_##name()
/// Rows hand themselves to GoogleTest before main begins.
struct Row {
  Row(const char* family, const char* name, const char* file, int line, void (*body)());
};

/// The call must succeed for the row to have any meaning.
#define MUST(call)                                                                             \
  do {                                                                                         \
    if (!::conformance::answered(call, CUDA_SUCCESS, #call, __FILE__, __LINE__, true)) return; \
  } while (false)
/// The rule itself: the exact result of a call.
#define ANSWERS(result, call) \
  ::conformance::answered(call, result, #call, __FILE__, __LINE__, false)

/// Settings of the software GPU for this row (SOFTGPU_COUNT, SOFTGPU_PACING, ...), before the first
/// driver call. Without effect on hardware. Rows start with one unpaced GPU of 1 GiB.
void settings_soft(std::initializer_list<std::pair<const char*, const char*>> settings);
/// True where a physical GPU runs the rows (CONFORMANCE_HARDWARE is set).
bool on_hardware();
/// Initialises the driver and counts; a row that needs more says
/// `if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";`
int devices_count();

/// Memory that is shared with other processes goes there as a file descriptor.
inline constexpr auto kDescriptorHandle = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
inline void* os_handle(int file) {
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
}

/// A value that the enumeration does not have, for calls that must refuse it.
template <typename Enum>
Enum no_such(int value) {
  Enum result{};
  static_assert(sizeof result == sizeof value);
  std::memcpy(&result, &value, sizeof value);
  return result;
}

/// A figure that is no rule but worth comparing between machines (a granularity, a size): written
/// beside the row's result.
void observe(std::string_view name, long long value);

/// cuInit, the device, a context current to this thread; destroyed with it.
class Context {
 public:
  explicit Context(int ordinal = 0, unsigned flags = 0);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  operator CUcontext() const { return context_; }  // NOLINT: it stands for the handle
  CUdevice device() const { return device_; }

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

CUcontext context_current();
/// Bytes free on the current device.
std::size_t memory_free();
/// The same where other processes have just let go of memory, or taken it: looked at again for
/// CONFORMANCE_PATIENCE_MS until it is as wanted. A driver is right at once (0, unless set).
std::size_t memory_free_from(std::size_t wanted);
std::size_t memory_free_below(std::size_t wanted);
/// The word at an address of the device.
unsigned word_at(CUdeviceptr address);

/// A kernel of kernels.cu, loaded into the current context. nullptr (and a failed expectation) when
/// it is not there.
CUfunction kernel(const char* name);
/// The fat binary that holds them, for rows about modules and libraries.
const std::string& kernels_image();
/// A fat binary beside it, by name.
std::string image_read(const char* name);

/// Launches `function` with one pointer and one count on `stream`: what most rows need.
CUresult launch(CUfunction function, unsigned grid, unsigned block, std::vector<void*> arguments,
                CUstream stream = nullptr);

}  // namespace conformance
