// The command line of softgpu-ctl: which command, on which devices, with what.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/device/settings.h"

namespace softgpu::ctl {

struct Options {
  std::string command;
  std::vector<std::string> words;             // after the command
  std::map<std::string, std::string> values;  // of --NAME VALUE, without the dashes
  std::string directory = device::settings_directory();
  bool json = false;
  bool help = false;
};

/// What may follow a command.
struct Accepted {
  std::size_t words;                     // at most
  std::vector<std::string_view> values;  // names of options, without the dashes; "json" is one
};

/// False with a sentence in `error`.
[[nodiscard]] bool options_read(int argc, char** argv, Options& options, std::string& error);

/// False with a sentence in `error`: there is a word or an option that the command does not know.
[[nodiscard]] bool options_accept(const Options& options, const Accepted& accepted,
                                  std::string& error);

/// The value of --NAME as a whole number of at least `least`; `number` stays when it is not given.
[[nodiscard]] bool option_number(const Options& options, const char* name, std::uint64_t least,
                                 std::uint64_t& number, std::string& error);

/// The devices that --gpu names, else all of the directory. False: there are none, or not this one.
[[nodiscard]] bool devices_find(const Options& options, std::vector<device::Device>& devices,
                                std::string& error);

/// "softgpu-ctl: ERROR" on stderr; the exit status.
int fail(const std::string& error, int status = 1);

}  // namespace softgpu::ctl
