// exec, with the exit codes of env(1) for what cannot be started.
#include "broker/cli/launch.h"

#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "broker/cli/options.h"
#include "broker/cli/paths.h"

namespace sluice::cli {

int launch_check(const std::string& name, std::string* program) {
  bool executable = false;
  *program = program_find(name, &executable);
  if (program->empty()) {
    std::fprintf(stderr, "sluice: there is no program '%s'; check the name and PATH\n",
                 name.c_str());
    return kExitNotFound;
  }
  if (!executable) {
    std::fprintf(stderr,
                 "sluice: '%s' is not executable; chmod +x it, or name its interpreter first\n",
                 program->c_str());
    return kExitNotExecutable;
  }
  return 0;
}

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
