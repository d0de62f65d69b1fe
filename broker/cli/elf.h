// Whether a program's CUDA calls can be reached by preloading: looks at the file, runs nothing.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

struct ElfFacts {
  bool elf = false;
  bool dynamic = false;  // has an interpreter: ld.so and so LD_PRELOAD act on it
  std::vector<std::string> needed;
  bool names_driver = false;       // mentions libcuda.so.1 somewhere, as a static CUDA runtime does
  bool has_runtime_names = false;  // mentions entry points of the CUDA runtime
  std::string script_interpreter;  // "#!..." files
};

/// From the bytes of a file; pure.
ElfFacts elf_read(const std::string& bytes);

enum class CudaRoute { kNone, kSharedRuntime, kStaticRuntime, kDriver };

struct ProgramReach {
  bool hookable = true;
  CudaRoute route = CudaRoute::kNone;
  std::string warning;  // empty = nothing to warn of; else what, why, what to do
  std::string finding;  // one line for doctor
};

ProgramReach program_reach(const std::string& path);

}  // namespace sluice::cli
