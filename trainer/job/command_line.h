// The command line of a job program: options with their limits, `--help` that shows them, and one
// line for whatever is wrong. Values already in the variables are the defaults; they are shown.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace sluice::train {

class CommandLine {
 public:
  /// `name` is the program's, as errors and help show it.
  CommandLine(const char* name, const char* description);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Every variable must outlive parse(). Limits are inclusive.
  void number(const char* option, int& value, const char* help, int least, int most);
  void number(const char* option, double& value, const char* help, double least, double most);
  void number(const char* option, std::uint64_t& value, const char* help, std::uint64_t least = 0,
              std::uint64_t most = UINT64_MAX);
  void number(const char* option, std::uint32_t& value, const char* help);
  /// A time: "20s", "5m", "1h30m", or a number of seconds.
  void seconds(const char* option, double& value, const char* help, double least, double most);
  /// Whole numbers with commas between them.
  void numbers(const char* option, std::vector<int>& values, const char* help);
  void numbers(const char* option, std::vector<double>& values, const char* help);
  void text(const char* option, std::string& value, const char* help);
  /// May be given several times, on the command line alone. Two names may be given with a comma
  /// between them.
  void texts(const char* option, std::vector<std::string>& values, const char* help);
  void word(const char* option, std::string& value, const char* help,
            std::initializer_list<const char*> words);
  void flag(const char* option, bool& value, const char* help);
  /// For the program's own use: not in the help.
  void hidden(const char* option, std::string& value);
  /// `--config FILE`: every option that is not hidden may stand in a TOML file, under its name
  /// without the dashes. What the command line says wins; what excludes an option that the command
  /// line gave is left out. A mistake is named with line and column.
  void config_file(const char* help);
  /// At most one of these may be given.
  void exclusive(std::initializer_list<const char*> options);

  /// False: the program ends with `exit_code`, which is 0 after --help and 2 after an error, and
  /// what there is to say has been said. `check` looks at the whole; what it throws is an error.
  bool parse(int argc, char** argv, int* exit_code, const std::function<void()>& check = nullptr);
  /// After parse(): the option was given, in a file or on the command line.
  bool given(const char* option) const;
  /// After parse(): a line "OPTION VALUE" for each that may stand in a file, but for `without`, in
  /// the order of names. Those of two programs are alike where they mean the same.
  std::string values(std::initializer_list<const char*> without) const;

 private:
  struct Parser;
  const std::string name_;
  const std::unique_ptr<Parser> parser_;
};

/// The outermost frame of a job program: what `run` throws becomes one line and exit code 1.
int program_main(const char* name, const std::function<int()>& run);

}  // namespace sluice::train
