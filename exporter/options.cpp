// Parsing by hand: few options, and every mistake has its own sentence.
#include "exporter/options.h"

#include "config/reader/keys.h"

namespace sluice::exporter {
namespace {

struct WithValue {
  const char* name;
  std::optional<std::string> Options::*value;
};
struct Switch {
  const char* name;
  bool Options::*value;
  bool set_to;
};
constexpr WithValue kWithValue[] = {{"--listen", &Options::listen},
                                    {"--socket", &Options::socket},
                                    {"--config", &Options::config},
                                    {"--user", &Options::user}};
constexpr Switch kSwitches[] = {{"--no-bpf", &Options::bpf, false},
                                {"--once", &Options::once, true},
                                {"--describe", &Options::describe, true},
                                {"--help", &Options::help, true},
                                {"-h", &Options::help, true},
                                {"--version", &Options::version, true}};

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const Switch& option : kSwitches) out.emplace_back(option.name);
  for (const WithValue& option : kWithValue) out.emplace_back(option.name);
  return out;
}

}  // namespace

std::optional<Options> options_parse(const std::vector<std::string>& arguments,
                                     std::string* error) {
  Options out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    bool known = false;
    for (const Switch& option : kSwitches) {
      if (argument != option.name) continue;
      out.*option.value = option.set_to;
      known = true;
    }
    for (const WithValue& option : kWithValue) {
      if (name != option.name) continue;
      known = true;
      if (equals != argument.npos) {
        out.*option.value = argument.substr(equals + 1);
      } else if (i + 1 < arguments.size()) {
        out.*option.value = arguments[++i];
      } else {
        *error = name + " needs a value";
        return std::nullopt;
      }
    }
    if (!known) {
      *error = "unknown argument '" + argument + "'" + config::nearest_question(argument, names()) +
               "; --help lists the known ones";
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace sluice::exporter
