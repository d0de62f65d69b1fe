// sluice: picks the command. `lab` and `why` are programs of their own beside this one.
#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "broker/cli/command.h"
#include "broker/cli/config_command.h"
#include "broker/cli/doctor.h"
#include "broker/cli/help.h"
#include "broker/cli/options.h"
#include "broker/cli/paths.h"
#include "broker/cli/run.h"
#include "broker/cli/status.h"
#include "cmake/standard_streams.h"
#include "config/reader/keys.h"

namespace {

using namespace sluice::cli;

const std::vector<std::string> kCommands = {"run",   "status",  "suspend", "resume", "move",
                                            "drain", "undrain", "doctor",  "config", "reload",
                                            "lab",   "why",     "help"};

template <class Options>
int command_run(const std::vector<std::string>& arguments, int usage_code,
                int (*command)(const Options&), Options options = {}) {
  switch (options_parse(arguments, &options)) {
    case Parsed::kHelped:
      return 0;
    case Parsed::kWrong:
      return usage_code;
    case Parsed::kGo:
      break;
  }
  return command(options);
}

/// `room`: what builds it.
int sibling_exec(const char* name, const char* room, char** arguments) {
  const std::string program = program_path(name);
  arguments[0] = const_cast<char*>(program.c_str());
  execv(program.c_str(), arguments);
  std::fprintf(stderr, "sluice: cannot run %s: %s; reinstall Sluice, or build the %s\n",
               program.c_str(), std::strerror(errno), room);
  return kExitSluiceFailed;
}
int lab_exec(char** arguments) { return sibling_exec("sluice-lab", "trainer", arguments); }
int why_exec(char** arguments) { return sibling_exec("sluice-why", "exporter", arguments); }

int unknown(const std::string& word) {
  const std::string near = sluice::config::word_nearest(word, kCommands);
  const std::string question = near.empty() ? "" : " did you mean '" + near + "'?";
  std::fprintf(stderr, "sluice: there is no command '%s';%s sluice help lists them\n", word.c_str(),
               question.c_str());
  return kExitUsage;
}

int help(const std::vector<std::string>& arguments) {
  const std::string topic = arguments.empty() ? "" : arguments.front();
  if (topic == "lab" || topic == "why") {
    char* argv[] = {nullptr, const_cast<char*>("--help"), nullptr};
    return topic == "lab" ? lab_exec(argv) : why_exec(argv);
  }
  return help_print(topic == "help" ? "" : topic.c_str()) ? 0 : unknown(topic);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  const std::vector<std::string> rest(argv + (argc > 1 ? 2 : argc), argv + argc);
  if (word.empty()) {
    help_print("");
    return kExitUsage;
  }
  if (word == "--version") {
    std::printf("sluice %s\n", SLUICE_VERSION);
    return 0;
  }
  if (word == "help" || word == "--help" || word == "-h") return help(rest);
  if (word == "run") {
    standard_output_exit_code = kExitSluiceFailed;
    return command_run<RunOptions>(rest, kExitSluiceFailed, run_command);
  }
  if (word == "status") return command_run<StatusOptions>(rest, kExitUsage, status_command);
  for (std::uint32_t i = 1; i <= 5; ++i) {
    CommandOptions options;
    options.verb = static_cast<sluice::protocol::CommandVerb>(i);
    if (word == verb_name(options.verb))
      return command_run<CommandOptions>(rest, kExitUsage, command_command, options);
  }
  if (word == "doctor") return command_run<DoctorOptions>(rest, kExitUsage, doctor_command);
  if (word == "config") return command_run<ConfigOptions>(rest, kExitUsage, config_command);
  if (word == "reload") return command_run<ReloadOptions>(rest, kExitUsage, reload_command);
  if (word == "lab") return lab_exec(argv + 1);
  if (word == "why") return why_exec(argv + 1);
  return unknown(word);
}
