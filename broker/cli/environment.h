// The environment that `sluice run` gives to a program, as a function from the present one:
// preload, tenant, socket, visible GPUs, and the software GPU's libraries on request. Pure, so that
// every rule has a test.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "broker/protocol/words.h"

namespace sluice::cli {

/// A whole environment by name; order does not matter to anybody.
using Environment = std::map<std::string, std::string>;

Environment environment_read(const char* const* environment);
/// "NAME=value" for execve.
std::vector<std::string> environment_strings(const Environment& environment);

/// `library` at the end of a preload list, once: another copy of a file of that name is replaced,
/// everything else stays in its order.
std::string preload_merge(std::string_view present, const std::string& library);
/// The list without any file of that name.
std::string preload_without(std::string_view present, std::string_view library_name);
/// `directory` at the front of a search path, once.
std::string path_prepend(std::string_view present, const std::string& directory);

struct RunEnvironment {
  std::string shim;    // path of libsluice.so
  std::string tenant;  // "ID-KEY"
  std::string limits;  // as tenant_limits.h writes them; empty = not known
  std::string socket;  // empty = the system's: programs know it
  std::vector<protocol::GpuUuid> gpus;
};

void environment_enter(Environment* environment, const RunEnvironment& run);
/// Puts the software GPU's libraries first and says how many devices there are.
void environment_soften(Environment* environment, const std::string& directory, unsigned count);
/// Puts the software GPU's libraries first, unless a directory of LD_LIBRARY_PATH has a driver
/// already: for a broker that has software GPUs, whose programs need them to find these.
void environment_reach_soft(Environment* environment, const std::string& directory);
/// One line for each variable SLUICE_... that nothing reads: a typing mistake that would go unseen.
/// Empty inside of `sluice run`, where it has been said.
std::vector<std::string> environment_unknown(const Environment& environment);
/// What a broker may be started with: nothing of a tenant's.
void environment_leave(Environment* environment);

}  // namespace sluice::cli
