// One entry point per fuzz target. With libFuzzer each target is a program of its own and this is
// the function that it calls; without, all targets are one program, which finds them by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace fuzz {

using Entry = int (*)(const std::uint8_t* data, std::size_t size);

/// What must hold of every input.
inline void require(bool held) {
  if (!held) std::abort();
}

#ifdef SLUICE_LIBFUZZER
#define FUZZ_TARGET(name)                                                            \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size); \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
#else
/// Makes a target known to the driver; `name` lives as long as the program.
struct Target {
  Target(const char* name, Entry entry);
};
#define FUZZ_TARGET(name)                                             \
  static int fuzz_##name(const std::uint8_t* data, std::size_t size); \
  static const ::fuzz::Target target_##name(#name, fuzz_##name);      \
  static int fuzz_##name(const std::uint8_t* data, std::size_t size)
#endif

}  // namespace fuzz
