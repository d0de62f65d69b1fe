// See command_line.h.
#include "trainer/job/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "trainer/base/failure.h"

namespace sluice::train {

struct CommandLine::Parser {
  CLI::App app;

  /// A default of 0 stands for something else, which the help text says.
  template <class T>
  CLI::Option* add(const char* option, T& value, const char* help) {
    CLI::Option* added = app.add_option(option, value, help);
    return value == T{} ? added : added->capture_default_str();
  }
};

CommandLine::CommandLine(const char* name, const char* description)
    : name_(name), parser_(new Parser{CLI::App(description, name)}) {}

CommandLine::~CommandLine() = default;

void CommandLine::number(const char* option, int& value, const char* help, int least, int most) {
  parser_->add(option, value, help)->check(CLI::Range(least, most));
}

void CommandLine::number(const char* option, double& value, const char* help, double least,
                         double most) {
  parser_->add(option, value, help)->check(CLI::Range(least, most));
}

void CommandLine::number(const char* option, std::uint64_t& value, const char* help,
                         std::uint64_t least, std::uint64_t most) {
  CLI::Option* added = parser_->add(option, value, help);
  if (least > 0 || most < UINT64_MAX) added->check(CLI::Range(least, most));
}

void CommandLine::number(const char* option, std::uint32_t& value, const char* help) {
  parser_->add(option, value, help);
}

void CommandLine::numbers(const char* option, std::vector<int>& values, const char* help) {
  parser_->add(option, values, help)->delimiter(',');
}

void CommandLine::text(const char* option, std::string& value, const char* help) {
  parser_->add(option, value, help);
}

void CommandLine::word(const char* option, std::string& value, const char* help,
                       std::initializer_list<const char*> words) {
  parser_->add(option, value, help)
      ->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end())));
}

void CommandLine::flag(const char* option, bool& value, const char* help) {
  parser_->app.add_flag(option, value, help);
}

void CommandLine::hidden(const char* option, std::string& value) {
  parser_->app.add_option(option, value)->group("");
}

void CommandLine::exclusive(std::initializer_list<const char*> options) {
  for (const char* one : options) {
    for (const char* other : options) {
      if (one != other) parser_->app.get_option(one)->excludes(other);
    }
  }
}

bool CommandLine::parse(int argc, char** argv, int* exit_code, const std::function<void()>& check) {
  std::string wrong;
  try {
    parser_->app.parse(argc, argv);
    if (check) check();
    return true;
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", parser_->app.help().c_str());
    *exit_code = 0;
    return false;
  } catch (const CLI::ParseError& error) {
    wrong = error.what();
  } catch (const Failure& failure) {
    wrong = failure.what();
  }
  std::fprintf(stderr, "sluice: %s: %s; see %s --help\n", name_.c_str(), wrong.c_str(),
               name_.c_str());
  *exit_code = 2;
  return false;
}

int program_main(const char* name, const std::function<int()>& run) {
  try {
    return run();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "sluice: %s: %s\n", name, failure.what());
    return 1;
  }
}

}  // namespace sluice::train
