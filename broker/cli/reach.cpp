// See reach.h.
#include "broker/cli/reach.h"

#include <elf.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <sstream>

#include "broker/cli/elf.h"
#include "broker/cli/library_search.h"
#include "broker/cli/options.h"
#include "broker/cli/paths.h"
#include "config/reader/keys.h"

namespace sluice::cli {
namespace {

constexpr int kInterpretersMax = 5;  // as the kernel's limit on scripts that are run by scripts
constexpr std::size_t kLibrariesMax = 1000;
// For what a program mentions. A file may be of any size.
constexpr std::size_t kSearchedMax = std::size_t{1} << 30;

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

CudaRoute route_of(const ElfFacts& facts) {
  for (const std::string& library : facts.needed) {
    if (starts_with(library, "libcudart.so")) return CudaRoute::kSharedRuntime;
  }
  for (const std::string& library : facts.needed) {
    if (starts_with(library, "libcuda.so")) return CudaRoute::kDriver;
  }
  if (facts.names_driver)
    return facts.has_runtime_names ? CudaRoute::kStaticRuntime : CudaRoute::kDriver;
  return CudaRoute::kNone;
}

const char* route_text(CudaRoute route) {
  switch (route) {
    case CudaRoute::kSharedRuntime:
      return "uses the shared CUDA runtime";
    case CudaRoute::kStaticRuntime:
      return "carries a static CUDA runtime";
    case CudaRoute::kDriver:
      return "uses the CUDA driver directly";
    case CudaRoute::kNone:
      break;
  }
  return "shows no use of CUDA of its own (it may load it later, as python does)";
}

// What makes ld.so run it in secure mode, in which it ignores LD_PRELOAD; empty = nothing.
std::string privilege_gained(const std::string& path) {
  struct stat status {};
  struct statvfs mount {};
  if (stat(path.c_str(), &status) < 0) return "";
  if (statvfs(path.c_str(), &mount) == 0 && (mount.f_flag & ST_NOSUID) != 0) return "";
  if ((status.st_mode & S_ISUID) != 0 && status.st_uid != geteuid()) return "setuid";
  if ((status.st_mode & S_ISGID) != 0 && status.st_gid != getegid()) return "setgid";
  if (getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) return "file capabilities";
  return "";
}

/// A setuid program gains nothing for the user that owns it, and others run it as well.
void own_privilege_note(const std::string& file, ProgramReach* reach) {
  struct stat status {};
  if (stat(file.c_str(), &status) < 0 || (status.st_mode & S_ISUID) == 0) return;
  reach->notes.push_back(file +
                         " is setuid: for any user but its owner the loader ignores the shim");
}

void loadable_check(const std::string& file, const ElfFacts& facts, ProgramReach* reach) {
  if (facts.cut_off) {
    reach->obstacles.push_back(
        {file + " cannot start: it is cut off (its headers describe more than the file has)",
         "copy or build it again", kExitNotExecutable});
    return;
  }
  if (facts.machine != EM_X86_64 || !facts.is_64bit) {
    reach->obstacles.push_back(
        {file + " is built for " + machine_name(facts) +
             ", so the shim, which is for x86-64, cannot be loaded into it and no limit reaches it",
         "build it for x86-64"});
    return;
  }
  if (const std::string how = privilege_gained(file); !how.empty()) {
    reach->obstacles.push_back(
        {file + " gains privileges when it starts (" + how +
             "), so the loader ignores the shim and no limit reaches it",
         "run it as the user that owns it, or without the bit (chmod u-s,g-s; setcap -r)"});
  } else {
    own_privilege_note(file, reach);
  }
  if (!facts.dynamic) {
    reach->obstacles.push_back(
        {file +
             " is statically linked, so the shim cannot be loaded into it and no limit reaches it "
             "(programs that it starts are reached)",
         "link it dynamically"});
    return;
  }
  if (file_name(facts.interpreter).rfind("ld-musl", 0) == 0) {
    reach->obstacles.push_back(
        {file + " is built for musl (" + facts.interpreter +
             "), so the shim, which is for glibc, cannot be loaded into it and no limit reaches it",
         "build it for glibc, as the CUDA driver is"});
  } else if (access(facts.interpreter.c_str(), X_OK) != 0) {
    reach->obstacles.push_back(
        {file + " cannot start: its loader " + facts.interpreter + " is missing",
         "install the C library that it was built for", kExitNotFound});
  }
  if (facts.defines_driver) {
    reach->obstacles.push_back(
        {file + " exports functions of the CUDA driver itself, and a program's own functions come "
                "before those of preloaded libraries",
         "link it against libcuda.so.1 instead"});
  }
  if (facts.names_preload) {
    reach->notes.push_back(file + " mentions LD_PRELOAD; it may clear it for what it starts");
  }
  // A static CUDA runtime has the function, and loads the driver by dlopen all the same.
  if (facts.imports_dlmopen && route_of(facts) != CudaRoute::kStaticRuntime) {
    reach->notes.push_back(file +
                           " calls dlmopen; libraries in a namespace of their own are not reached");
  }
}

// The command in the line of a script that is run by env; empty if the line is beyond us.
std::string env_command(const std::string& file, const std::string& argument, ProgramReach* reach) {
  std::istringstream words(argument);
  std::string word;
  while (words >> word) {
    if (word.size() > 2 && starts_with(word, "-S")) word.erase(0, 2);
    if (word == "-i" || word == "-" || word == "--ignore-environment" || word == "LD_PRELOAD=" ||
        word == "-uLD_PRELOAD" || word == "--unset=LD_PRELOAD") {
      reach->obstacles.push_back(
          {file + " runs env " + word + ", which clears LD_PRELOAD, so no limit reaches it",
           "leave that out of its first line"});
    } else if (word == "-u" || word == "-C") {
      words >> word;
      if (word == "LD_PRELOAD") {
        reach->obstacles.push_back({file + " runs env -u LD_PRELOAD, so no limit reaches it",
                                    "leave that out of its first line"});
      }
    } else if (word[0] != '-' && word.find('=') == std::string::npos) {
      return word;
    }
  }
  return "";
}

// Whether the kernel or env takes the CR at the end of the first line for a part of a name.
bool crlf_matters(const ElfFacts& facts) {
  if (!facts.script_crlf) return false;
  if (facts.script_argument.empty()) return true;
  return file_name(facts.script_interpreter) == "env" && !starts_with(facts.script_argument, "-S");
}

// What runs a script: the path, or empty with an obstacle.
std::string interpreter_of(const std::string& file, const ElfFacts& facts, ProgramReach* reach) {
  std::string name = facts.script_interpreter;
  if (name.empty()) {
    reach->notes.push_back(file + " names no interpreter in its first line, so /bin/sh runs it");
    return "";
  }
  if (crlf_matters(facts)) {
    reach->obstacles.push_back({file +
                                    " cannot start: its lines end in CR LF, as on Windows, and " +
                                    (facts.script_argument.empty() ? name : facts.script_argument) +
                                    " followed by a CR is not found",
                                "convert it: sed -i 's/\\r$//' " + file, kExitNotFound});
    return "";
  }
  std::string command;
  if (file_name(name) == "env") command = env_command(file, facts.script_argument, reach);
  if (!command.empty()) name = command;
  bool executable = false;
  const std::string path = program_find(name, &executable);
  if (!path.empty() && executable) return path;
  // env may have set another PATH, and says itself what it does not find.
  const int code = !command.empty() ? 0 : path.empty() ? kExitNotFound : kExitNotExecutable;
  reach->obstacles.push_back({file + " cannot start: its interpreter " + name + " is " +
                                  (path.empty() ? "not found" : "not executable"),
                              "correct its first line, or install the interpreter", code});
  return "";
}

void mentions_read(const std::string& file, const FileBytes& bytes, ElfFacts* facts,
                   ProgramReach* reach) {
  bool all = false;
  for (const std::string_view part : bytes.data(kSearchedMax, &all)) elf_mentions_read(part, facts);
  if (!all)
    reach->notes.push_back(file + " is so large that only its first " +
                           std::to_string(kSearchedMax >> 20) +
                           " MiB were looked through for uses of CUDA");
}

/// What came from files is shown on a terminal, which obeys control characters.
void texts_clean(ProgramReach* reach) {
  const auto clean = [](std::string& text) { text = config::text_shown(text, std::string::npos); };
  for (Obstacle& obstacle : reach->obstacles) {
    clean(obstacle.what);
    clean(obstacle.fix);
  }
  std::ranges::for_each(reach->notes, clean);
  clean(reach->finding);
}

void finish(ProgramReach* reach) {
  texts_clean(reach);
  reach->hookable = reach->obstacles.empty();
  if (reach->hookable) return;
  const auto fatal = std::ranges::find_if(
      reach->obstacles, [](const Obstacle& obstacle) { return obstacle.exit_code != 0; });
  const Obstacle& worst = fatal != reach->obstacles.end() ? *fatal : reach->obstacles.front();
  reach->exit_code = worst.exit_code;
  reach->warning = worst.what + "; " + worst.fix;
  reach->finding = reach->warning;
}

bool empty_file(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && status.st_size == 0;
}

Obstacle not_found(const std::string& name) {
  const std::string what = "there is no program '" + name + "'";
  if (name.empty()) return {"the program's name is empty", "write one behind --", kExitNotFound};
  if (name.find('/') == std::string::npos) {
    if (access(name.c_str(), X_OK) == 0)
      return {what + " in PATH", "the one in this directory is ./" + name, kExitNotFound};
    return {what, "check the name and PATH", kExitNotFound};
  }
  if (errno == ENOENT) return {what, "check the name", kExitNotFound};
  return {what + " (" + std::strerror(errno) + ")", "check the name", kExitNotExecutable};
}

Obstacle not_executable(const std::string& path) {
  struct stat status {};
  const bool known = stat(path.c_str(), &status) == 0;
  if (known && S_ISDIR(status.st_mode))
    return {"'" + path + "' is a directory", "name a program in it", kExitNotExecutable};
  if (known && !S_ISREG(status.st_mode))
    return {"'" + path + "' is no regular file", "name a program", kExitNotExecutable};
  return {"'" + path + "' is not executable", "chmod +x it, or name its interpreter first",
          kExitNotExecutable};
}

}  // namespace

ProgramFile program_locate(const std::string& name) {
  bool executable = false;
  ProgramFile found{program_find(name, &executable), {}};
  if (name == "." || name == "..") found.path = name;
  if (executable) return found;
  found.obstacle = found.path.empty() ? not_found(name) : not_executable(found.path);
  return found;
}

ProgramReach program_reach(const std::string& path) {
  ProgramReach reach;
  std::string file = path;
  ElfFacts facts;
  for (int depth = 0;; ++depth) {
    const FileBytes bytes(file);
    facts = elf_read(bytes.view());
    if (!facts.script) {
      mentions_read(file, bytes, &facts, &reach);
      break;
    }
    if (depth == kInterpretersMax) {
      reach.obstacles.push_back({path + " cannot start: scripts run by scripts, deeper than the "
                                        "kernel follows",
                                 "name the last interpreter in its first line",
                                 kExitNotExecutable});
      break;
    }
    const std::string interpreter = interpreter_of(file, facts, &reach);
    if (interpreter.empty()) break;
    reach.notes.push_back(file + " is a script, run by " + interpreter);
    file = interpreter;
  }
  reach.file = file;
  reach.route = route_of(facts);
  reach.nvidia_runtime = facts.nvidia_runtime && reach.route == CudaRoute::kStaticRuntime;
  if (facts.elf) {
    loadable_check(file, facts, &reach);
    reach.finding = file + " can be shared: it " + route_text(reach.route);
    if (reach.nvidia_runtime)
      reach.finding += " (fine on a GPU; for software GPUs build it with nvcc -cudart shared)";
  } else if (!facts.script && empty_file(file)) {
    reach.obstacles.push_back({file + " is empty, so nothing runs", "copy or build it again"});
  } else if (!facts.script) {
    reach.finding = path + " is neither an ELF file nor a script; nothing can be said about it";
  }
  finish(&reach);
  return reach;
}

void soft_reach(ProgramReach* reach, const std::string& directory) {
  if (reach->nvidia_runtime)
    reach->obstacles.push_back(
        {reach->file + " carries NVIDIA's CUDA runtime, which starts only on NVIDIA's driver: on a "
                       "software GPU its first CUDA call fails",
         "build it with nvcc -cudart shared, or relink it: NVCC_APPEND_FLAGS=\"-L" + directory +
             "\""});
  finish(reach);
}

void libraries_reach(ProgramReach* reach, const std::vector<std::string>& library_path) {
  const LibrarySearch search(library_path);
  std::deque<std::string> waiting = {reach->file};
  std::set<std::string> seen;
  std::string through;
  while (!waiting.empty() && seen.size() < kLibrariesMax) {
    const std::string path = waiting.front();
    waiting.pop_front();
    const FileBytes bytes(path);
    const ElfFacts facts = elf_read(bytes.view());
    if (!facts.elf || !facts.is_64bit || facts.machine != EM_X86_64) continue;
    if (path != reach->file) {
      // The loader has the function, and NVIDIA's runtime loads the driver by dlopen all the same.
      const bool harmless =
          file_name(path).starts_with("ld-linux") || file_name(path).starts_with("libcudart.so");
      if (facts.imports_dlmopen && !harmless) {
        reach->notes.push_back(
            path + " calls dlmopen; libraries in a namespace of their own are not reached");
      }
      const CudaRoute route = route_of(facts);
      if (reach->route == CudaRoute::kNone && through.empty() && route != CudaRoute::kNone) {
        through = path;
        reach->route = route;
      }
    }
    for (const std::string& name : facts.needed) {
      if (!seen.insert(name).second) continue;
      const std::string found = search.find(name, path, facts);
      if (!found.empty()) {
        waiting.push_back(found);
        continue;
      }
      reach->obstacles.push_back({path + " needs " + name + ", which is not found",
                                  "install it, or name its folder in LD_LIBRARY_PATH"});
    }
  }
  if (!through.empty() && reach->hookable) {
    reach->finding =
        reach->file + " can be shared: it " + route_text(reach->route) + ", through " + through;
  }
  finish(reach);
}

}  // namespace sluice::cli
