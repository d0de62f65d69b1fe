// exec, with the exit codes of env(1) for what cannot be started.
#include "broker/cli/launch.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "broker/cli/library_search.h"
#include "broker/cli/options.h"

namespace sluice::cli {
namespace {

/// What a shell does not take for a script: a NUL byte in the first line, as bash has it.
bool binary(const std::string& program) {
  const int error = errno;
  constexpr std::size_t kLooked = 80;
  const FileBytes bytes(program);
  const std::string_view looked = bytes.view().substr(0, kLooked);
  const std::string_view line = looked.substr(0, looked.find('\n'));
  errno = error;
  return line.find('\0') != line.npos;
}

}  // namespace

int launch(const std::string& program, std::vector<std::string> command,
           const Environment& environment) {
  std::vector<std::string> settings = environment_strings(environment);
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (std::string& text : command) argv.push_back(text.data());
  for (std::string& text : settings) envp.push_back(text.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  execve(program.c_str(), argv.data(), envp.data());
  if (errno == ENOEXEC && binary(program)) {
    std::fprintf(stderr,
                 "sluice: cannot run '%s': it is neither a program for this machine nor a script\n",
                 program.c_str());
    return kExitNotExecutable;
  }
  if (errno == ENOEXEC) {  // a script without a first line: the shell runs it, as execvp does
    std::string shell = "/bin/sh";
    std::string script = program;
    std::vector<char*> script_argv = {shell.data(), script.data()};
    script_argv.insert(script_argv.end(), argv.begin() + 1, argv.end());
    execve(shell.c_str(), script_argv.data(), envp.data());
  }
  const int error = errno;
  std::fprintf(stderr, "sluice: cannot run '%s': %s\n", program.c_str(), std::strerror(error));
  return error == ENOENT ? kExitNotFound : kExitNotExecutable;
}

}  // namespace sluice::cli
