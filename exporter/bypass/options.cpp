#include "exporter/bypass/options.h"

#include <charconv>

#include "config/reader/keys.h"

namespace sluice::exporter {

std::optional<BypassOptions> bypass_options_parse(const std::vector<std::string>& arguments,
                                                  std::string* error) {
  constexpr std::uint32_t kMajorsMax = 4095;  // the kernel has 12 bits for them
  BypassOptions out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (argument == "--help" || argument == "-h") {
      out.help = true;
      continue;
    }
    if (name != "--socket" && name != "--config" && name != "--device-major") {
      *error =
          "unknown argument '" + argument + "'" +
          config::nearest_question(argument, {"--socket", "--config", "--device-major", "--help"}) +
          "; --help lists the known ones";
      return std::nullopt;
    }
    if (equals == argument.npos && i + 1 == arguments.size()) {
      *error = name + " needs a value";
      return std::nullopt;
    }
    const std::string value =
        equals != argument.npos ? argument.substr(equals + 1) : arguments[++i];
    if (name == "--socket") out.socket = value;
    if (name == "--config") out.config = value;
    if (name != "--device-major") continue;
    std::uint32_t major = 0;
    const char* end = value.data() + value.size();
    const auto read = std::from_chars(value.data(), end, major);
    if (read.ec != std::errc() || read.ptr != end || major == 0 || major > kMajorsMax) {
      *error = "'" + value + "' is no number of devices; /proc/devices lists them";
      return std::nullopt;
    }
    out.device_major = major;
  }
  return out;
}

}  // namespace sluice::exporter
