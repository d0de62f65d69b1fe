// The outermost frame of a job program: command line, failures, exit codes. 0 = done, 1 = failed, 2
// = wrong command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

namespace sluice::train {

/// Parses the command line with `app` (whose name is the program's) and calls `run`; whatever goes
/// wrong becomes one line.
template <class Run>
int program_main(CLI::App& app, int argc, char** argv, Run run) {
  const char* name = app.get_name().c_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", app.help().c_str());
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "sluice: %s: %s; see %s --help\n", name, error.what(), name);
    return 2;
  }
  try {
    return run();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "sluice: %s: %s\n", name, failure.what());
    return 1;
  }
}

}  // namespace sluice::train
