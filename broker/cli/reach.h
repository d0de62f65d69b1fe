// Whether a program's CUDA calls can be reached by preloading: looks at files, runs nothing. What a
// program does when it runs cannot be seen here.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

enum class CudaRoute { kNone, kSharedRuntime, kStaticRuntime, kDriver };

/// One reason why a program cannot be reached (or cannot be started), and what to do.
struct Obstacle {
  std::string what;
  std::string fix;
  int exit_code = 0;  // of a shell where the program cannot be started; else 0
};

/// What a name on the command line means.
struct ProgramFile {
  std::string path;   // empty = there is none
  Obstacle obstacle;  // its exit code is 0 if the file may be executed
};

struct ProgramReach {
  bool hookable = true;
  CudaRoute route = CudaRoute::kNone;
  std::vector<Obstacle> obstacles;
  bool nvidia_runtime = false;     // carries NVIDIA's CUDA runtime, which needs NVIDIA's driver
  std::vector<std::string> notes;  // worth knowing, and no obstacle
  std::string file;                // what ld.so starts: the program, or its script's interpreter
  std::string warning;             // of the worst obstacle; empty = nothing to warn of
  int exit_code = 0;               // of a shell where it cannot be started; else 0
  std::string finding;             // one line when there is no obstacle
};

/// Searches PATH as execvp does.
ProgramFile program_locate(const std::string& name);
/// The program, and where it is a script its interpreters.
ProgramReach program_reach(const std::string& path);
/// Adds what keeps the program from a software GPU whose libraries are in `directory`.
void soft_reach(ProgramReach* reach, const std::string& directory);
/// Looks at the shared libraries it needs, too. `library_path`: directories looked into first.
void libraries_reach(ProgramReach* reach, const std::vector<std::string>& library_path);

}  // namespace sluice::cli
