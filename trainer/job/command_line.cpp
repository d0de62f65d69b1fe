// See command_line.h.
#include "trainer/job/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "config/reader/command_line_fault.h"
#include "config/reader/entries.h"
#include "trainer/base/failure.h"

namespace sluice::train {
namespace {

using Kind = config::Value::Kind;

/// What an option takes.
enum class Takes { kWhole, kNatural, kNumber, kSeconds, kWholes, kNumbers, kText, kFlag };

const char* takes_text(Takes takes) {
  switch (takes) {
    case Takes::kWhole:
      return "a whole number";
    case Takes::kNatural:
      return "a whole number, 0 or more";
    case Takes::kNumber:
      return "a number";
    case Takes::kSeconds:
      return "a number of seconds, or a time in quotes such as \"20s\"";
    case Takes::kWholes:
      return "a whole number or a list of them, such as [256, 64]";
    case Takes::kNumbers:
      return "a number or a list of them, such as [0.5, 2]";
    case Takes::kText:
      return "a string in quotes";
    case Takes::kFlag:
      return "true or false";
  }
  return "something else";
}

std::optional<std::string> word_of(const config::Value& value, Takes takes);

/// One of them, or an array.
std::optional<std::string> list_of(const config::Value& value, Takes each) {
  if (value.kind != Kind::kArray) return word_of(value, each);
  if (value.items.empty()) return std::nullopt;
  std::string words;
  for (const config::Value& item : value.items) {
    const auto word = word_of(item, each);
    if (!word) return std::nullopt;
    words += (words.empty() ? "" : ",") + *word;
  }
  return words;
}

/// The value as the command line would have it; none where it is of another type.
std::optional<std::string> word_of(const config::Value& value, Takes takes) {
  switch (takes) {
    case Takes::kWhole:
      if (value.kind == Kind::kInteger) return value.text;
      break;
    case Takes::kNatural:
      if (value.kind == Kind::kInteger && value.integer >= 0) return value.text;
      break;
    case Takes::kNumber:
      if (value.kind == Kind::kInteger) return value.text;
      if (value.kind == Kind::kFloat) return text_format("%.17g", value.real);
      break;
    case Takes::kSeconds:
      if (value.kind == Kind::kString) return value.text;
      return word_of(value, Takes::kNumber);
    case Takes::kWholes:
      return list_of(value, Takes::kWhole);
    case Takes::kNumbers:
      return list_of(value, Takes::kNumber);
    case Takes::kText:
      if (value.kind == Kind::kString) return value.text;
      break;
    case Takes::kFlag:
      if (value.kind == Kind::kBoolean) return value.integer != 0 ? "true" : "false";
      break;
  }
  return std::nullopt;
}

std::string value_text(const std::string& value) { return value; }
std::string value_text(double value) { return text_format("%.17g", value); }
template <class Whole>
std::string value_text(Whole value) {
  return std::to_string(value);
}
template <class T>
std::string value_text(const std::vector<T>& values) {
  std::string text;
  for (const T& one : values) text += (text.empty() ? "" : ",") + value_text(one);
  return text;
}

std::string place_text(const std::string& file, std::uint32_t line, std::uint32_t column) {
  return text_format("%s:%u:%u: ", file.c_str(), line, column);
}

}  // namespace

struct CommandLine::Parser {
  CLI::App app;
  std::map<std::string, Takes, std::less<>> takes;  // by name without dashes; what a file may have
  std::vector<std::vector<std::string>> exclusives;
  std::string config_path;
  std::map<std::string, std::function<std::string()>> shown;  // by name with dashes

  /// A default of 0 stands for something else, which the help text says.
  template <class T>
  CLI::Option* add(const char* option, T& value, const char* help, Takes what) {
    takes.emplace(option + 2, what);
    shown.emplace(option, [&value] { return value_text(value); });
    CLI::Option* added = app.add_option(option, value, help);
    return value == T{} ? added : added->capture_default_str();
  }

  CLI::Option& option(const std::string& name) { return *app.get_option("--" + name); }
  void config_apply();
  void entry_apply(const config::Entry& entry, const std::map<std::string, std::string>& excluded);
  /// Options that those on the command line exclude, and by which.
  std::map<std::string, std::string> excluded_find();
};

std::map<std::string, std::string> CommandLine::Parser::excluded_find() {
  std::map<std::string, std::string> out;
  for (const auto& group : exclusives) {
    for (const std::string& one : group) {
      if (option(one).count() == 0) continue;
      for (const std::string& other : group)
        if (other != one) out.emplace(other, one);
    }
  }
  return out;
}

void CommandLine::Parser::entry_apply(const config::Entry& entry,
                                      const std::map<std::string, std::string>& excluded) {
  const auto found = takes.find(entry.key);
  if (found == takes.end()) {
    std::vector<std::string> known;
    for (const auto& [name, what] : takes) known.push_back(name);
    const std::string near = config::word_nearest(entry.key, known);
    throw Failure(place_text(config_path, entry.line, entry.column) + "unknown key '" +
                  config::text_shown(entry.key) + "'; " +
                  (near.empty() ? "keys are the options of the command line without their dashes"
                                : "did you mean '" + near + "'?"));
  }
  const std::string at = place_text(config_path, entry.value.line, entry.value.column);
  const auto word = word_of(entry.value, found->second);
  if (!word) throw Failure(at + "'" + entry.key + "' must be " + takes_text(found->second));
  CLI::Option& target = option(entry.key);
  if (target.count() > 0 || excluded.count(entry.key) > 0) return;
  try {
    target.add_result(*word);
    target.run_callback();
  } catch (const CLI::ParseError& error) {
    throw Failure(at + "'" + entry.key + "': " + error.what());
  }
}

void CommandLine::Parser::config_apply() {
  if (config_path.empty()) return;
  const auto entries = config::entries_read(config_path);
  if (!entries.ok()) throw Failure(entries.errors().front().text());
  const std::map<std::string, std::string> excluded = excluded_find();
  std::map<std::string, const config::Entry*> seen;
  for (const config::Entry& entry : *entries) {
    entry_apply(entry, excluded);
    for (const auto& group : exclusives) {
      if (std::find(group.begin(), group.end(), entry.key) == group.end()) continue;
      for (const std::string& other : group) {
        if (seen.count(other) == 0) continue;
        throw Failure(place_text(config_path, entry.line, entry.column) + "'" + entry.key +
                      "' excludes '" + other + "' of line " + std::to_string(seen[other]->line));
      }
    }
    seen.emplace(entry.key, &entry);
  }
}

CommandLine::CommandLine(const char* name, const char* description)
    : name_(name), parser_(new Parser{CLI::App(description, name), {}, {}, {}, {}}) {
  parser_->app.set_version_flag("--version", name_ + " " + SLUICE_VERSION);
}

CommandLine::~CommandLine() = default;

void CommandLine::number(const char* option, int& value, const char* help, int least, int most) {
  parser_->add(option, value, help, Takes::kWhole)->check(CLI::Range(least, most));
}

void CommandLine::number(const char* option, double& value, const char* help, double least,
                         double most) {
  parser_->add(option, value, help, Takes::kNumber)->check(CLI::Range(least, most));
}

void CommandLine::seconds(const char* option, double& value, const char* help, double least,
                          double most) {
  const auto read = [least, most](std::string& text) -> std::string {
    const auto ns = config::duration_parse(text);
    double s = ns ? static_cast<double>(*ns) / 1e9 : 0;
    if ((ns || CLI::detail::lexical_cast(text, s)) && s >= least && s <= most) {
      text = text_format("%.17g", s);
      return "";
    }
    return text_format("takes a time from %g s to %g s, such as 20s or 5m, not '%s'", least, most,
                       config::text_shown(text).c_str());
  };
  parser_->add(option, value, help, Takes::kSeconds)->transform(CLI::Validator(read, ""));
}

void CommandLine::number(const char* option, std::uint64_t& value, const char* help,
                         std::uint64_t least, std::uint64_t most) {
  CLI::Option* added = parser_->add(option, value, help, Takes::kNatural);
  if (least > 0 || most < UINT64_MAX) added->check(CLI::Range(least, most));
}

void CommandLine::number(const char* option, std::uint32_t& value, const char* help) {
  parser_->add(option, value, help, Takes::kNatural);
}

void CommandLine::numbers(const char* option, std::vector<int>& values, const char* help) {
  parser_->add(option, values, help, Takes::kWholes)->delimiter(',');
}

void CommandLine::numbers(const char* option, std::vector<double>& values, const char* help) {
  parser_->add(option, values, help, Takes::kNumbers)->delimiter(',');
}

void CommandLine::texts(const char* option, std::vector<std::string>& values, const char* help) {
  parser_->app.add_option(option, values, help)->allow_extra_args(false);
}

void CommandLine::text(const char* option, std::string& value, const char* help) {
  parser_->add(option, value, help, Takes::kText);
}

void CommandLine::word(const char* option, std::string& value, const char* help,
                       std::initializer_list<const char*> words) {
  parser_->add(option, value, help, Takes::kText)
      ->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end())));
}

void CommandLine::flag(const char* option, bool& value, const char* help) {
  parser_->takes.emplace(option + 2, Takes::kFlag);
  parser_->shown.emplace(option, [&value] { return value_text(value); });
  parser_->app.add_flag(option, value, help);
}

void CommandLine::hidden(const char* option, std::string& value) {
  parser_->app.add_option(option, value)->group("");
}

void CommandLine::config_file(const char* help) {
  parser_->app.add_option("--config", parser_->config_path, help);
}

bool CommandLine::given(const char* option) const {
  return parser_->app.get_option(option)->count() > 0;
}

std::string CommandLine::values(std::initializer_list<const char*> without) const {
  std::string text;
  for (const auto& [option, value] : parser_->shown) {
    const bool left_out =
        std::any_of(without.begin(), without.end(), [&](const char* one) { return option == one; });
    if (!left_out) text += option + " " + value() + "\n";
  }
  return text;
}

void CommandLine::exclusive(std::initializer_list<const char*> options) {
  std::vector<std::string> names;
  for (const char* one : options) names.emplace_back(one + 2);
  parser_->exclusives.push_back(std::move(names));
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
    parser_->config_apply();
    if (check) check();
    return true;
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", parser_->app.help().c_str());
    *exit_code = 0;
    return false;
  } catch (const CLI::CallForVersion& version) {
    std::printf("%s\n", version.what());
    *exit_code = 0;
    return false;
  } catch (const CLI::ParseError& error) {
    wrong = config::command_line_fault(parser_->app, error);
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
